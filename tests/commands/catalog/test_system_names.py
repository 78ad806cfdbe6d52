"""Names that begin with `system.`: which MongoDB allows, and the errors of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.driven import DrivenServer

ALLOWED = [("t", "system.js"), ("admin", "system.keys"), ("local", "system.replset"), ("config", "system.sessions")]
REFUSED = [
    ("t", "system.indexes", 73), ("t", "system.foo", 73), ("t", "system.version", 73), ("t", "system.profile", 73),
    ("t", "system.views", 73), ("admin", "system.foo", 73), ("config", "system.foo", 73),
    ("t", "a.system.b", 2),
]  # fmt: skip


@pytest.fixture(scope="module")
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        yield server


def writes(name: str) -> list[dict[str, Any]]:
    """Commands that write to a collection or make one."""
    return [
        {"insert": name, "documents": [{"_id": 1}]},
        {"update": name, "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "upsert": True}]},
        {"update": name, "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]},
        {"findAndModify": name, "query": {"_id": 1}, "update": {"a": 1}},
        {"findAndModify": name, "query": {"_id": 1}, "remove": True},
        {"delete": name, "deletes": [{"q": {}, "limit": 0}]},
        {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    ]


@pytest.mark.parametrize(("database", "name", "code"), REFUSED)
def test_writes_to_other_system_names_are_refused(at: DrivenServer, database: str, name: str, code: int) -> None:
    for body in writes(name):
        reply = at.run(database, body)
        assert reply.get("code") == code, (body, reply)
    bulk = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1}}], "nsInfo": [{"ns": f"{database}.{name}"}]}
    assert at.must("admin", bulk)["cursor"]["firstBatch"][0]["code"] == code
    listed = at.must(database, {"listCollections": 1, "filter": {"name": name}})
    assert not listed["cursor"]["firstBatch"]


@pytest.mark.parametrize(("database", "name", "code"), REFUSED)
def test_create_refuses_the_same_but_for_the_profiler(at: DrivenServer, database: str, name: str, code: int) -> None:
    reply = at.run(database, {"create": name})
    if name == "system.profile":
        assert reply["ok"] == 1.0
        at.must(database, {"drop": name})
    else:
        assert reply.get("code") == code, reply
    assert at.run(database, {"create": name, "viewOn": "c"}).get("code") == code
    clone = {"cloneCollectionAsCapped": "c", "toCollection": name, "size": 9}
    assert name == "system.profile" or at.run(database, clone)["ok"] == 0.0


@pytest.mark.parametrize(("database", "name"), ALLOWED)
def test_names_of_mongodb_may_be_written(at: DrivenServer, database: str, name: str) -> None:
    for body in writes(name):
        assert at.run(database, body)["ok"] == 1.0, body


@pytest.mark.parametrize(
    "name", ["system.foo", "system.js", "system.views", "system.profile", "system.users", "a.system.b"]
)
def test_a_rename_from_or_to_a_system_name_is_illegal(at: DrivenServer, name: str) -> None:
    for source, goal in (("t.c", f"t.{name}"), (f"t.{name}", "t.d")):
        reply = at.run("admin", {"renameCollection": source, "to": goal})
        assert reply.get("code") == 20, reply


@pytest.mark.parametrize("name", ["system.foo", "system.js", "system.users", "system.buckets.x", "system.views"])
def test_pipelines_write_to_no_system_name(at: DrivenServer, name: str) -> None:
    for stage, code in (({"$out": name}, 17385), ({"$merge": name}, 31319), ({"$merge": {"into": name}}, 31319)):
        reply = at.run("t", {"aggregate": "c", "pipeline": [stage], "cursor": {}})
        assert reply.get("code") == code, reply
    reply = at.run("t", {"aggregate": "c", "pipeline": [{"$out": {"db": "admin", "coll": "x"}}], "cursor": {}})
    assert reply.get("code") == 31321


def test_the_accounts_are_not_dropped(at: DrivenServer) -> None:
    at.must("t", {"createUser": "ann", "pwd": "x", "roles": []})
    reply = at.run("admin", {"drop": "system.users"})
    assert (reply["code"], reply["errmsg"]) == (20, "can't drop system collection admin.system.users")
