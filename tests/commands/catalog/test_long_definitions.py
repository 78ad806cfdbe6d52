"""Long definitions of views, validators and indexes: all of them together have a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.driven import DrivenServer

MEGABYTE = 1024 * 1024
LONG: dict[str, Any] = {"note": "x" * 150_000}


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    """A server whose definitions may have 262,144 bytes, and which has a view with one of 150,000."""
    with DrivenServer(memory_bytes_max=10 * MEGABYTE) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        server.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": LONG}]})
        yield server


@pytest.mark.parametrize(
    "command",
    [
        {"create": "w", "viewOn": "c", "pipeline": [{"$match": LONG}]},
        {"create": "d", "validator": LONG},
        {"collMod": "c", "validator": LONG},
        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "partialFilterExpression": LONG}]},
    ],
)
def test_one_more_than_there_is_room_for_is_refused(server: DrivenServer, command: dict[str, Any]) -> None:
    refused = server.run("t", command)
    assert refused["code"] == 146 and "a fortieth" in refused["errmsg"]
    server.must("t", {"create": "short", "viewOn": "c", "pipeline": []})
    server.must("t", {"drop": "v"})
    server.must("t", command)


def test_a_copy_needs_room_too(server: DrivenServer) -> None:
    server.must("t", {"drop": "v"})
    server.must("t", {"collMod": "c", "validator": LONG, "validationAction": "warn"})
    clone = {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": MEGABYTE}
    assert server.run("t", clone)["code"] == 146
    shown = server.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
    assert [item["name"] for item in shown] == ["c", "system.views"]


def test_a_transaction_has_no_more_room(server: DrivenServer) -> None:
    server.must("t", {"drop": "v"})
    fields = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    server.must("t", {"create": "d", "validator": LONG, **fields, "startTransaction": True})
    assert server.run("t", {"create": "e", "validator": LONG, **fields})["code"] == 146  # type: ignore[index]
