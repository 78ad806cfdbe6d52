"""`collectionUUID`: a command that expects another collection is refused, and has done nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COMMANDS: dict[str, dict[str, Any]] = {
    "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
    "collMod": {"collMod": "c", "validationLevel": "off"},
    "count": {"count": "c"},
    "createIndexes": {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]},
    "delete": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    "distinct": {"distinct": "c", "key": "a"},
    "drop": {"drop": "c"},
    "dropIndexes": {"dropIndexes": "c", "index": "a"},
    "find": {"find": "c"},
    "findAndModify": {"findAndModify": "c", "update": {"$set": {"a": 2}}},
    "insert": {"insert": "c", "documents": [{"_id": 2}]},
    "renameCollection": {"renameCollection": "t.c", "to": "t.e"},
    "update": {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 2}}}]},
}
NOT_THERE = Binary(b"n" * 16, 4)
SESSION = {"lsid": {"id": Binary(b"s" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        for name in ("c", "d"):
            server.must("t", {"insert": name, "documents": [{"_id": 1, "a": 1}]})
            server.must("t", {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a"}]})
        server.must("t", {"create": "v", "viewOn": "c"})
        server.must("u", {"create": "other"})
        yield server


def uuid_of(at: DrivenServer, name: str, database: str = "t") -> Any:
    shown = at.must(database, {"listCollections": 1, "filter": {"name": name}})["cursor"]["firstBatch"]
    return shown[0]["info"]["uuid"]


def run(at: DrivenServer, command: dict[str, Any]) -> Any:
    return at.run("admin" if "renameCollection" in command or "bulkWrite" in command else "t", command)


def entries(at: DrivenServer) -> int:
    return int(at.must("local", {"count": "oplog.rs", "query": {"op": {"$ne": "n"}}})["n"])


def refusal(reply: Any) -> dict[str, Any]:
    names = ("code", "codeName", "db", "collectionUUID", "expectedCollection", "actualCollection")
    return {name: reply[name] for name in names if name in reply}


def mismatch(uuid: Any, expected: str, actual: str | None) -> dict[str, Any]:
    return {
        "code": 361, "codeName": "CollectionUUIDMismatch", "db": "t", "collectionUUID": uuid,
        "expectedCollection": expected, "actualCollection": actual,
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_on_the_collection_that_it_expects_only(at: DrivenServer, name: str) -> None:
    command = COMMANDS[name]
    before = entries(at)
    for uuid, actual in ((NOT_THERE, None), (uuid_of(at, "d"), "d"), (uuid_of(at, "other", "u"), None)):
        assert refusal(run(at, {**command, "collectionUUID": uuid})) == mismatch(uuid, "c", actual)
    assert entries(at) == before
    assert run(at, {**command, "collectionUUID": uuid_of(at, "c")})["ok"] == 1.0


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"renameCollection"}))
@pytest.mark.parametrize("target", ["missing", "v"])
def test_neither_a_view_nor_a_missing_collection_has_a_uuid(at: DrivenServer, name: str, target: str) -> None:
    uuid, before = uuid_of(at, "c"), entries(at)
    command = {**COMMANDS[name], name: target, "collectionUUID": uuid}
    assert refusal(run(at, command)) == mismatch(uuid, target, "c")
    assert entries(at) == before


@pytest.mark.parametrize("name", ["delete", "find", "insert", "update"])
def test_a_statement_of_a_transaction_expects_it_too(at: DrivenServer, name: str) -> None:
    uuid = uuid_of(at, "d")
    assert refusal(run(at, {**COMMANDS[name], **SESSION, "collectionUUID": uuid})) == mismatch(uuid, "c", "d")


@pytest.mark.parametrize("expects_first", [True, False])
@pytest.mark.parametrize("name", ["delete", "find", "insert", "update"])
def test_each_statement_of_a_transaction_expects_what_it_says_itself(
    at: DrivenServer, name: str, expects_first: bool
) -> None:
    uuid = uuid_of(at, "d")
    for number, expects in enumerate((expects_first, not expects_first), 1):
        session = {**SESSION, "txnNumber": Int64(number)}
        reply = run(at, {**COMMANDS[name], **session, **({"collectionUUID": uuid} if expects else {})})
        assert reply.get("code") == (361 if expects else None)


@pytest.mark.parametrize("operation", [
    {"insert": 0, "document": {"_id": 2}},
    {"update": 0, "filter": {}, "updateMods": {"$set": {"a": 2}}},
    {"delete": 0, "filter": {}},
])  # fmt: skip
def test_an_operation_of_a_bulk_write_expects_the_collection_of_its_namespace(
    at: DrivenServer, operation: dict[str, Any]
) -> None:
    uuid = uuid_of(at, "d")
    spaces = [{"ns": "t.c", "collectionUUID": uuid}, {"ns": "t.d", "collectionUUID": uuid}]
    other = {name: 1 if value == 0 else value for name, value in operation.items()}
    reply = run(at, {"bulkWrite": 1, "ops": [operation, other], "nsInfo": spaces, "ordered": False})
    refused, done = reply["cursor"]["firstBatch"]
    assert {**refusal(refused), "codeName": "CollectionUUIDMismatch"} == mismatch(uuid, "c", "d")
    assert (refused["ok"], refused["idx"], done["ok"], done["n"]) == (0.0, 0, 1.0, 1)
    spaces[0]["collectionUUID"] = uuid_of(at, "c")
    reply = run(at, {"bulkWrite": 1, "ops": [operation], "nsInfo": spaces})
    assert reply["nErrors"] == 0 and reply["cursor"]["firstBatch"][0]["n"] == 1


@pytest.mark.parametrize("uuid", [Binary(b"n" * 16, 0), Binary(b"n" * 15, 4), "n" * 16])
@pytest.mark.parametrize("name", COMMANDS)
def test_another_value_is_refused(at: DrivenServer, name: str, uuid: Any) -> None:
    code = 207 if len(uuid) == 15 else 14
    assert run(at, {**COMMANDS[name], "collectionUUID": uuid})["code"] == code


def test_explain_expects_the_collection_of_the_command_inside(at: DrivenServer) -> None:
    uuid = uuid_of(at, "d")
    assert refusal(run(at, {"explain": {**COMMANDS["find"], "collectionUUID": uuid}})) == mismatch(uuid, "c", "d")
    assert run(at, {"explain": {**COMMANDS["find"], "collectionUUID": uuid_of(at, "c")}})["ok"] == 1.0


@pytest.mark.parametrize("value", ["$a", -1, 9223372036854775807, None, Binary(b"n" * 16, 4)])
@pytest.mark.parametrize("name", ["features", "getCmdLineOpts", "replSetGetStatus"])
def test_a_command_that_does_not_know_the_field_ignores_it_as_any_other(
    at: DrivenServer, name: str, value: Any
) -> None:
    assert at.must("admin", {name: 1, "collectionUUID": value})["ok"] == 1.0
