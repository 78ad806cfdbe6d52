"""Which inserts are quick enough to run outside a turn."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.commands.writing import insert
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


def test_an_insert_of_one_document_is_quick(server: Any) -> None:
    assert not insert.pauses(server.engine, request("insert", "c", "documents", {"_id": 1}))
    assert insert.pauses(server.engine, request("insert", "valid", "documents", {"_id": 1}))
    assert insert.pauses(server.engine, request("insert", "c", "documents", {"_id": 1}, {"_id": 2}))
    assert insert.pauses(server.engine, request("insert", "c", "documents", {"_id": "x" * 2_000_000}))
