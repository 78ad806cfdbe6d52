"""validateDBMetadata, and commands about what a set of one member has nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
STRICT = {"version": "1", "strict": True}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        for database in ("t", "u"):
            server.must(database, {"create": "c"})
            server.must(database, {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "sparse": True}]})
        server.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$indexStats": {}}]})
        server.must("t", {"create": "w", "viewOn": "c", "pipeline": [{"$match": {}}]})
        yield server


def errors(at: DrivenServer, **more: Any) -> list[str]:
    reply = at.must("t", {"validateDBMetadata": 1, "apiParameters": STRICT, **more})
    assert all(error["code"] == 323 and error["codeName"] == "APIStrictError" for error in reply["apiVersionErrors"])
    return [error["ns"] for error in reply["apiVersionErrors"]]


def test_what_a_strict_client_could_not_have_made_is_listed(at: DrivenServer) -> None:
    assert errors(at) == ["t.v", "t.c", "u.c"]
    assert errors(at, db="t") == ["t.v", "t.c"]
    assert errors(at, db="u") == errors(at, db="u", collection="c") == ["u.c"]
    assert errors(at, collection="c") == ["t.c", "u.c"]
    assert errors(at, db="nope") == errors(at, db="t", collection="w") == []
    for parameters in ({}, {"version": "1"}, {"version": "1", "strict": False, "deprecationErrors": True}):
        assert errors(at, apiParameters=parameters) == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"validateDBMetadata": 1}, 40414),
        ({"validateDBMetadata": 1, "apiParameters": 1}, 14),
        ({"validateDBMetadata": 1, "apiParameters": {"version": 1}}, 14),
        ({"validateDBMetadata": 1, "apiParameters": {"strict": 1}}, 14),
        ({"validateDBMetadata": 1, "apiParameters": {"nope": 1}}, 40415),
        ({"validateDBMetadata": 1, "apiParameters": {"version": "2"}}, 322),
        ({"validateDBMetadata": 1, "apiParameters": STRICT, "db": 1}, 14),
        ({"validateDBMetadata": 1, "apiParameters": STRICT, "collection": []}, 14),
        ({"dropConnections": 1}, 40414),
        ({"dropConnections": 1, "hostAndPort": "a:1"}, 14),
        ({"dropConnections": 1, "hostAndPort": [1]}, 14),
        ({"autoCompact": 1}, 14),
        ({"autoCompact": True, "freeSpaceTargetMB": 0}, 51024),
        ({"autoCompact": True, "freeSpaceTargetMB": "x"}, 14),
        ({"autoCompact": True, "runOnce": "x"}, 14),
        ({"autoCompact": True, "nope": 1}, 40415),
    ],
)
def test_wrong_arguments_are_refused(at: DrivenServer, body: Document, code: int) -> None:
    reply: Any = at.run("admin", body)
    assert reply["code"] == code, reply


def test_a_set_of_one_has_no_connections_to_others_and_nothing_to_compact(at: DrivenServer) -> None:
    at.must("admin", {"dropConnections": 1, "hostAndPort": ["other:27017"]})
    for value in (True, False):
        at.must("admin", {"autoCompact": value, "freeSpaceTargetMB": 10, "runOnce": True})
    assert at.run("t", {"compact": "c", "force": True, "freeSpaceTargetMB": 0})["code"] == 51024


def test_automatic_compaction_must_be_off_to_be_changed(at: DrivenServer) -> None:
    on = {"autoCompact": True, "freeSpaceTargetMB": 30}
    for body in (on, on, {"autoCompact": False}, {"autoCompact": True}, {"autoCompact": True, "freeSpaceTargetMB": 20}):
        at.must("admin", body)
    for body in (on, {"autoCompact": True, "runOnce": True}):
        reply: Any = at.run("admin", body)
        assert reply["code"] == 117, reply
    for body in ({"autoCompact": False}, {**on, "runOnce": True}, {"autoCompact": True}):
        at.must("admin", body)
