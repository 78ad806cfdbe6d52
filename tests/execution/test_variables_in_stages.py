"""MongoDB's own variables, such as `$$NOW`, in stages that have variables of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

IN_TIME = {"$lt": ["$d", "$$NOW"]}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        indexes = [{"key": {"at": "2dsphere"}, "name": "at"}, {"key": {"s": "text"}, "name": "s"}]
        server.must("t", {"createIndexes": "c", "indexes": indexes})
        documents = [{"_id": 1, "d": DatetimeMS(0), "at": [1, 1], "s": "word"},
                     {"_id": 2, "d": DatetimeMS(10**14), "at": [1, 1], "s": "word"}]  # fmt: skip
        server.must("t", {"insert": "c", "documents": documents})
        yield server


@pytest.mark.parametrize(
    "stages",
    [
        [{"$redact": {"$cond": [IN_TIME, "$$KEEP", "$$PRUNE"]}}],
        [{"$limit": 1}, {"$lookup": {"from": "c", "as": "found", "pipeline": [
            {"$geoNear": {"near": {"type": "Point", "coordinates": [1, 1]}, "query": {"$expr": IN_TIME}}}]}},
         {"$unwind": "$found"}, {"$replaceRoot": {"newRoot": "$found"}}],
        [{"$limit": 1}, {"$lookup": {"from": "c", "as": "found", "pipeline": [
            {"$match": {"$text": {"$search": "word"}, "$expr": IN_TIME}}]}},
         {"$unwind": "$found"}, {"$replaceRoot": {"newRoot": "$found"}}],
    ],
    ids=["redact", "near", "text"],
)  # fmt: skip
def test_now_is_there(at: DrivenServer, stages: list[dict[str, Any]]) -> None:
    pipeline = [*stages, {"$project": {"_id": 1}}]
    answer = at.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
    assert answer["cursor"]["firstBatch"] == [{"_id": 1}]
