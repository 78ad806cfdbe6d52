"""Arguments of `create` and `collMod` (sizes, the index on `_id`), and the documents that session commands list."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64

from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
ID_INDEX = {"key": {"_id": 1}, "name": "_id_"}
ID = {"id": Binary(bytes(16), 4)}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        yield server


@pytest.mark.parametrize(
    "body",
    [
        {"capped": True, "size": 0}, {"capped": True, "size": 4096.7}, {"capped": 1, "size": Decimal128("5000")},
        {"capped": True, "size": 5000, "max": 0}, {"capped": True, "size": 5000, "max": -1}, {"capped": False},
        {"capped": True, "size": math.nan}, {"capped": True, "size": -0.0, "max": math.nan},
        {"idIndex": ID_INDEX}, {"idIndex": {**ID_INDEX, "v": 2}}, {"idIndex": {"key": {"_id": 1.0}, "name": "x"}},
        {"idIndex": {**ID_INDEX, "collation": {"locale": "fr"}}, "collation": {"locale": "fr"}},
        {"idIndex": ID_INDEX, "collation": {"locale": "fr"}},
    ],
)  # fmt: skip
def test_collections_that_can_be_created(at: DrivenServer, body: Document) -> None:
    at.must("t", {"create": "c", **body})
    assert at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"][0]["name"] == "_id_"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"capped": True}, 72), ({"capped": True, "max": 5}, 72), ({"size": 0}, 72), ({"size": 5000}, 72),
        ({"max": 5}, 72), ({"capped": False, "size": 5000}, 72), ({"capped": True, "size": -1}, 2),
        ({"capped": True, "size": 2**50 + 1}, 2), ({"capped": True, "size": math.inf}, 2),
        ({"capped": True, "size": 5000, "max": 2**31}, 2), ({"capped": True, "size": True}, 14),
        ({"capped": "x", "size": 5000}, 14), ({"pipeline": []}, 72),
        ({"idIndex": {}}, 9), ({"idIndex": {"key": {"_id": 1}}}, 9), ({"idIndex": {"name": "_id_"}}, 9),
        ({"idIndex": {"key": {"a": 1}, "name": "_id_"}}, 2), ({"idIndex": {"key": {"_id": -1}, "name": "_id_"}}, 2),
        ({"idIndex": {"key": {"_id": "hashed"}, "name": "_id_"}}, 2),
        ({"idIndex": {**ID_INDEX, "sparse": True}}, 197), ({"idIndex": {**ID_INDEX, "nope": 1}}, 197),
        ({"idIndex": {**ID_INDEX, "collation": {"locale": "fr"}}}, 2), ({"idIndex": ID_INDEX, "viewOn": "d"}, 72),
        ({"idIndex": [ID_INDEX]}, 14),
    ],
)  # fmt: skip
def test_collections_that_cannot_be_created(at: DrivenServer, body: Document, code: int) -> None:
    reply: Any = at.run("t", {"create": "c", **body})
    assert reply["code"] == code, reply
    assert at.must("t", {"listCollections": 1})["cursor"]["firstBatch"] == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cappedSize": 0}, 2), ({"cappedSize": -1}, 2), ({"cappedSize": 2**50 + 1}, 2), ({"cappedMax": 2**31}, 2),
        ({"cappedSize": "x"}, 14), ({"cappedMax": True}, 14),
    ],
)  # fmt: skip
def test_limits_that_a_capped_collection_cannot_have(at: DrivenServer, change: Document, code: int) -> None:
    at.must("t", {"create": "c", "capped": True, "size": 5000})
    reply: Any = at.run("t", {"collMod": "c", **change})
    assert reply["code"] == code, reply
    at.must("t", {"create": "d"})
    plain: Any = at.run("t", {"collMod": "d", "cappedSize": 5000})
    assert (plain["code"], plain["errmsg"]) == (72, "Collection must be capped.")


@pytest.mark.parametrize("command", ["convertToCapped", "cloneCollectionAsCapped"])
def test_a_capped_copy_has_a_size(at: DrivenServer, command: str) -> None:
    at.must("t", {"create": "c"})
    more = {"toCollection": "d"} if command == "cloneCollectionAsCapped" else {}
    no_number = 14 if command == "convertToCapped" else 72
    sizes = ((0, 72), (-1, 72), (math.nan, 72), (2**50 + 1, 2), (math.inf, 2), ("x", no_number), (True, no_number))
    for size, code in sizes:
        reply: Any = at.run("t", {command: "c", "size": size, **more})
        assert reply["code"] == code, (size, reply)


WRONG_SESSIONS: list[tuple[Any, int]] = [
    ({}, 40414), ({"id": None}, 40414), ({"id": 1}, 14), ({"id": Binary(bytes(16))}, 14), ({**ID, "x": 1}, 40415),
    ({"id": Binary(bytes(15), 4)}, 207), ({**ID, "uid": "x"}, 14), ({**ID, "txnNumber": 1}, 14), (1, 14), ("x", 14),
]  # fmt: skip


@pytest.mark.parametrize("command", ["endSessions", "killSessions", "refreshSessions"])
def test_sessions_are_named_by_uuids(at: DrivenServer, command: str) -> None:
    at.must("admin", {command: []})
    at.must("admin", {command: [ID, {**ID, "uid": Binary(bytes(32))}, {**ID, "txnNumber": Int64(1)}]})
    for item, code in WRONG_SESSIONS:
        reply: Any = at.run("admin", {command: [ID, item]})
        assert reply["code"] == code, (item, reply)


@pytest.mark.parametrize("command", ["find", "getMore", "insert", "ping"])
def test_every_command_checks_its_session(at: DrivenServer, command: str) -> None:
    own = {"insert": {"documents": [{}]}, "getMore": {"collection": "c"}}.get(command, {})
    name: Any = {"ping": 1, "getMore": Int64(1)}.get(command, "c")
    for session, code in WRONG_SESSIONS:
        reply: Any = at.run("t", {command: name, **own, "lsid": session})
        assert reply["code"] == code, (session, reply)
    for good in (ID, {**ID, "uid": Binary(bytes(32))}, None):
        answer: Any = at.run("t", {command: name, **own, "lsid": good})
        assert answer["ok"] or answer["code"] == 43, (good, answer)  # the getMore of an unknown cursor


def test_users_and_patterns_name_sessions_to_kill(at: DrivenServer) -> None:
    user = {"user": "a", "db": "admin"}
    at.must("admin", {"killAllSessions": [user]})
    for item, code in (({}, 40414), ({"user": "a"}, 40414), ({**user, "db": 1}, 14), ({**user, "x": 1}, 40415)):
        assert at.run("admin", {"killAllSessions": [item]})["code"] == code
    digest = Binary(bytes(32))
    for item in ({}, {"lsid": ID}, {"uid": digest}, {"users": [user]}, {"roles": [{"role": "r", "db": "admin"}]}):
        at.must("admin", {"killAllSessionsByPattern": [item]})
    wrong: list[tuple[Document, int]] = [
        ({"lsid": {}}, 40414), ({"lsid": 1}, 14), ({"uid": "x"}, 14), ({"users": [{}]}, 40414), ({"users": [1]}, 14),
        ({"roles": {}}, 14), ({"user": "a"}, 40415),
    ]  # fmt: skip
    for pattern, code in wrong:
        reply: Any = at.run("admin", {"killAllSessionsByPattern": [pattern]})
        assert reply["code"] == code, (pattern, reply)
