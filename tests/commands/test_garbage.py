"""Nothing that a command held waits for Python's collector, which on a busy server looks at old ones once an hour."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.driven import DrivenServer
from tests.garbage import garbage


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("d", {"insert": "c", "documents": [{"_id": n, "n": n % 7, "s": "x" * 100} for n in range(500)]})
        yield server


def aggregate(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"aggregate": "c", "pipeline": list(stages), "cursor": {}, **more}


def test_a_cycle_of_the_package_is_seen(server: DrivenServer) -> None:
    def run() -> None:
        cycle = Cycle()
        cycle.itself = cycle

    class Cycle:
        itself: object

    Cycle.__module__ = "headrace.tests"
    assert len(garbage(run)) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"find": "c"},
        {"find": "c", "sort": {"n": 1}, "batchSize": 2},
        {"find": "c", "readConcern": {"level": "snapshot"}},
        {"find": "c", "filter": {"$expr": {"$divide": [1, "$n"]}}},
        aggregate({"$group": {"_id": "$_id", "all": {"$push": "$s"}}}),
        aggregate({"$group": {"_id": None, "sum": {"$sum": "$n"}}}),
        aggregate({"$lookup": {"from": "c", "localField": "n", "foreignField": "n", "as": "same"}}, {"$limit": 2}),
        aggregate({"$facet": {"a": [{"$sortByCount": "$n"}], "b": [{"$count": "n"}]}}),
        aggregate({"$setWindowFields": {"sortBy": {"n": 1}, "output": {"sum": {"$sum": "$n"}}}}),
        aggregate({"$project": {"x": {"$divide": [1, "$n"]}}}),
        aggregate({"$unknown": 1}),
        aggregate({"$changeStream": {}}),
        {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"m": 1}}, "multi": True}]},
        {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"m": {"$divide": [1, "$n"]}}}], "multi": True}]},
        {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}], "ordered": False},
        {"findAndModify": "c", "query": {"n": 3}, "update": {"$set": {"found": True}}},
        {"distinct": "c", "key": "n"},
        {"count": "c", "query": {"n": 3}},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_command_leaves_nothing_to_the_collector(server: DrivenServer, body: dict[str, Any]) -> None:
    def run() -> None:
        reply = server.run("d", body)
        assert isinstance(reply, dict)
        if cursor := reply.get("cursor", {}).get("id", 0):
            server.run("d", {"killCursors": "c", "cursors": [Int64(cursor)]})

    assert garbage(run) == []


def test_a_retryable_write_and_an_aborted_transaction_leave_nothing_to_the_collector(server: DrivenServer) -> None:
    numbers = count()

    def run() -> None:
        session = {"lsid": {"id": Binary(bytes(16), 4)}}
        server.must("d", {"insert": "c", "documents": [{}], **session, "txnNumber": Int64(next(numbers))})
        fields = {**session, "txnNumber": Int64(next(numbers)), "autocommit": False}
        server.must("d", {"insert": "c", "documents": [{"s": "x" * 1000}], **fields, "startTransaction": True})
        server.must("d", {"find": "c", **fields})
        server.must("admin", {"abortTransaction": 1, **fields})

    assert garbage(run) == []


@pytest.mark.parametrize(
    "stage",
    [{"$match": {"$expr": {"$divide": [1, "$fullDocument.zero"]}}}, {"$project": {"fullDocument": 1}}],
    ids=["fails", "projects"],
)
def test_a_stream_leaves_nothing_to_the_collector(server: DrivenServer, stage: dict[str, Any]) -> None:
    def run() -> None:
        cursor = server.must("d", aggregate({"$changeStream": {}}, stage))["cursor"]["id"]
        server.must("d", {"insert": "c", "documents": [{"zero": 0}]})
        server.run("d", {"getMore": Int64(cursor), "collection": "c"})
        server.run("d", {"killCursors": "c", "cursors": [Int64(cursor)]})

    assert garbage(run) == []
