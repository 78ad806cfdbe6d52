"""The replies to writes that fail: whether the command fails or a statement of it, and its `writeConcernError`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, Regex

import headrace
from headrace.errors import code_name
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SESSION = {"lsid": {"id": Binary(b"s" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        yield server


FAILING: dict[str, tuple[dict[str, Any], int]] = {
    "aggregate": ({"aggregate": "c", "pipeline": [{"$out": "a$b"}], "cursor": {}}, 73),
    "collMod": ({"collMod": "d"}, 26),
    "create": ({"create": "c", "capped": True, "size": 10}, 48),
    "createIndexes": ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": ""}]}, 67),
    "dropIndexes": ({"dropIndexes": "c", "index": "a"}, 27),
    "findAndModify": ({"findAndModify": "c", "update": {"$set": {"_id": 2}}}, 66),
    "renameCollection": ({"renameCollection": "t.d", "to": "t.e"}, 26),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize(("w", "code"), [(2, 100), ("nowhere", 79)])
def test_a_command_that_fails_has_the_error_of_its_write_concern(
    at: DrivenServer, name: str, w: Any, code: int
) -> None:
    command, expected = FAILING[name]
    database = "admin" if name == "renameCollection" else "t"
    reply: Any = at.run(database, {**command, "writeConcern": {"w": w}})
    assert (reply["code"], reply["writeConcernError"]["code"]) == (expected, code)
    reply = at.run(database, {**command, "writeConcern": {"w": 1}})
    assert reply["code"] == expected and "writeConcernError" not in reply


@pytest.mark.parametrize("command", [{"drop": "c", "unknown": 1}, {"find": "c", "filter": {"$no": 1}}, {"no": 1}])
def test_a_command_that_did_not_run_as_a_write_has_none(at: DrivenServer, command: dict[str, Any]) -> None:
    reply: Any = at.run("t", {**command, "writeConcern": {"w": 2}})
    assert not reply["ok"] and "writeConcernError" not in reply


@pytest.mark.parametrize(("pipeline", "code"), [([{"$no": 1}], 40324), ([{}], 40323), ([1], 14)])
def test_an_update_with_an_unknown_stage_fails_as_a_command(at: DrivenServer, pipeline: list[Any], code: int) -> None:
    good = {"q": {}, "u": {"$set": {"a": 1}}}
    for name in ("c", "missing"):
        reply: Any = at.run("t", {"update": name, "updates": [good, {"q": {}, "u": pipeline}]})
        assert (reply["ok"], reply["code"]) == (0.0, code)
    assert at.must("t", {"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1}]
    reply = at.run("t", {"update": "c", "updates": [{"q": {}, "u": [{"$match": {}}]}]})
    assert (reply["ok"], reply["writeErrors"][0]["code"]) == (1.0, 72)


def test_a_transaction_does_not_create_what_is_there(at: DrivenServer) -> None:
    assert at.must("t", {"create": "c"})["ok"] == 1.0
    asked = {"create": "c", **SESSION}
    reply: Any = at.run("t", {**asked, "startTransaction": True})
    assert (reply["code"], reply.get("errorLabels", [])) == (48, [])
    session = {**SESSION, "txnNumber": Int64(2)}
    assert at.must("t", {"create": "e", **session, "startTransaction": True})["ok"] == 1.0
    reply = at.run("t", {"create": "e", **session})
    assert reply["code"] == 48
    reply = at.run("admin", {"commitTransaction": 1, **session})
    assert reply["code"] == 251


def test_every_code_of_mongodb_has_its_name() -> None:
    source = Path(headrace.__file__).parent
    raised = {
        int(code)
        for path in source.rglob("*.py")
        for code in re.findall(r"CommandError\(\s*(\d+),", path.read_text(encoding="utf-8"))
    }
    assert {code for code in raised if code < 1000 and code_name(code).startswith("Location")} == set()
    names = {143: "CursorInUse", 161: "IncompatibleCollationVersion", 171: "CannotIndexParallelArrays",
             301: "DataCorruptionDetected"}  # fmt: skip
    assert {code: code_name(code) for code in names} == names


def test_a_retryable_write_has_no_negative_number(at: DrivenServer) -> None:
    session = {"lsid": {"id": Binary(b"r" * 16, 4)}, "txnNumber": Int64(-1)}
    assert at.run("t", {"insert": "c", "documents": [{}], **session})["code"] == 72


def test_a_retryable_write_of_many_documents_is_refused(at: DrivenServer) -> None:
    """Other statements of the command run."""
    session = {"lsid": {"id": Binary(b"r" * 16, 4)}}
    at.must("t", {"insert": "retried", "documents": [{"_id": 1}, {"_id": 2}]})
    updates = [{"q": {}, "u": {"$set": {"a": 1}}, "multi": multi} for multi in (True, False)]
    answer = at.run("t", {"update": "retried", "updates": updates, "ordered": False, **session, "txnNumber": Int64(1)})
    assert (answer["n"], [(e["index"], e["code"]) for e in answer["writeErrors"]]) == (1, [(0, 72)])
    deletes = [{"q": {}, "limit": limit} for limit in (1, 0)]
    for number, name in enumerate(("retried", "missing"), 2):
        answer = at.run("t", {"delete": name, "deletes": deletes, **session, "txnNumber": Int64(number)})
        assert (answer["n"], [(e["index"], e["code"]) for e in answer["writeErrors"]]) == (name == "retried", [(1, 72)])


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({"remove": True}, {"update": {"a": 1}}, 40606), ({"remove": True}, {"remove": 1}, None),
        ({"update": {"a": 1}, "upsert": True}, {"update": {"a": 1}, "upsert": True}, None),
        ({"update": {"a": 1}, "upsert": True}, {"update": {"a": 2}}, 40608),
        ({"update": {"a": 1}, "upsert": True}, {"remove": True}, 40608),
        ({"update": {"b": 1}}, {"update": {"b": 1}}, None),
    ],
)  # fmt: skip
def test_a_find_and_modify_is_repeated_as_it_was(at: DrivenServer, first: Any, second: Any, code: int | None) -> None:
    """A repeated command is answered by what the first changed, and must be of the same kind."""
    if not first.get("upsert"):
        at.must("t", {"insert": "retried", "documents": [{"_id": 1}]})
    session = {"lsid": {"id": Binary(b"k" * 16, 4)}, "txnNumber": Int64(1)}
    command = {"findAndModify": "retried", "query": {"_id": 1}, **session}
    answer = at.must("t", {**command, **first})
    again: Any = at.run("t", {**command, **second})
    assert again.get("code") == code, again
    if code is None:
        assert again["lastErrorObject"] == answer["lastErrorObject"] and again["value"] == answer["value"]


@pytest.mark.parametrize("number", [math.inf, math.nan, 1e308, Decimal128("NaN"), Decimal128("1E+40")])
def test_numbers_without_bounds_are_cut_to_an_int(at: DrivenServer, number: Any) -> None:
    is_nan = str(number).lower() == "nan"
    stage = {"$collStats": {"storageStats": {"scale": number}}}
    reply: Any = at.run("t", {"aggregate": "c", "pipeline": [stage], "cursor": {}})
    shown = None if is_nan else reply["cursor"]["firstBatch"][0]["storageStats"]["scaleFactor"]
    assert reply.get("code") == 2 if is_nan else shown == 2**31 - 1
    at.must("admin", {"replSetStepDown": number, "force": True})
    assert at.run("t", {"insert": "c", "documents": [{}]})["code"] == 10107


@pytest.mark.parametrize(
    ("database", "body", "message"),
    [
        ("t", {"collMod": "c", "index": {"name": "n", "hidden": True}}, "cannot find index n for ns t.c"),
        ("t", {"collMod": "c", "index": {"keyPattern": {"n": 1}, "hidden": True}},
         "cannot find index { n: 1 } for ns t.c"),
        ("t", {"dropIndexes": "c", "index": {"n": "x"}}, 'can\'t find index with key: { n: "x" }'),
        ("t", {"find": "c", "collation": {"locale": "$a", "backwards": True}},
         'Field \'locale\' is invalid in: { locale: "$a", backwards: true }'),
        ("t", {"find": "c", "filter": {"a": {"$size": None}}},
         "Failed to parse $size. Expected a number in: $size: null"),
        ("t", {"aggregate": "c", "pipeline": [{"$limit": Regex("a", "i")}], "cursor": {}},
         "invalid argument to $limit stage: Expected a number in: $limit: /a/i"),
    ],
)  # fmt: skip
def test_messages_have_values_as_mongodb_writes_them(
    at: DrivenServer, database: str, body: dict[str, Any], message: str
) -> None:
    at.must("t", {"create": "c"})
    reply: Any = at.run(database, body)
    assert reply["errmsg"] == message
