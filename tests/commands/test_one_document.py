"""Which writes are quick enough to run outside a turn."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64, ObjectId

from headrace.commands.writing import delete, insert, update
from headrace.dispatch.request import ClientInfo, Request
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode

CLIENT = ClientInfo(1, "127.0.0.1:1", ("127.0.0.1", 1))


def request(name: str, collection: str, field: str, *statements: dict[str, Any]) -> Request:
    body = {name: collection, "$db": "t"}
    return Request(name, "t", encode(body), {field: [encode(item) for item in statements]}, CLIENT)


@pytest.fixture
def server() -> Any:
    with DrivenServer() as made:
        made.must("t", {"create": "valid", "validator": {"a": 1}})
        yield made


@pytest.mark.parametrize("key", [ObjectId(), 5, Int64(5)])
@pytest.mark.parametrize("change", [{"$set": {"a": 1}}, {"$inc": {"a": 1, "b": 2}}, {"$unset": {"a": ""}}])
def test_a_simple_update_of_one_document_is_quick(server: Any, key: Any, change: dict[str, Any]) -> None:
    statement = {"q": {"_id": key}, "u": change, "multi": False, "upsert": True}
    assert not update.pauses(server.engine, request("update", "c", "updates", statement))
    assert update.pauses(server.engine, request("update", "valid", "updates", statement))
    assert update.pauses(server.engine, request("update", "c", "updates", statement, statement))


@pytest.mark.parametrize(
    "statement",
    [
        {"q": {"_id": 1, "a": {"$regex": "x"}}, "u": {"$set": {"a": 1}}},
        {"q": {"_id": {"$gt": 1}}, "u": {"$set": {"a": 1}}},
        {"q": {"a": 1}, "u": {"$set": {"a": 1}}},
        {"q": {"_id": 1}, "u": [{"$set": {"a": 1}}]},
        {"q": {"_id": 1}, "u": {"$push": {"a": {"$each": [], "$sort": 1}}}},
        {"q": {"_id": 1}, "u": {"$set": {"a": 1}, "$pull": {"b": {"$regex": "x"}}}},
        {"q": {"_id": 1}, "u": {"$set": {"a.$[x]": 1}}, "arrayFilters": [{"x": {"$regex": "x"}}]},
        {"q": {"_id": 1}, "u": {"$set": {"a": "x" * 10_000}}},
        {"u": {"$set": {"a": 1}}, "q": {"_id": 1}},
    ],
)
def test_any_other_update_runs_in_a_turn(server: Any, statement: dict[str, Any]) -> None:
    assert update.pauses(server.engine, request("update", "c", "updates", statement))


def test_a_delete_of_one_document_is_quick(server: Any) -> None:
    assert not delete.pauses(server.engine, request("delete", "c", "deletes", {"q": {"_id": 1}, "limit": 1}))
    assert delete.pauses(server.engine, request("delete", "c", "deletes", {"q": {}, "limit": 0}))


def test_an_insert_of_one_document_is_quick(server: Any) -> None:
    assert not insert.pauses(server.engine, request("insert", "c", "documents", {"_id": 1}))
    assert insert.pauses(server.engine, request("insert", "valid", "documents", {"_id": 1}))
    assert insert.pauses(server.engine, request("insert", "c", "documents", {"_id": 1}, {"_id": 2}))
    assert insert.pauses(server.engine, request("insert", "c", "documents", {"_id": "x" * 2_000_000}))
