"""Counts and covered finds through a wildcard index: a condition on a path that the keys do not bound still counts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

EVERY: dict[str, Any] = {"$**": 1}
BELOW_S: dict[str, Any] = {"s.$**": 1}
COMPOUND: dict[str, Any] = {"s": 1, "a.$**": 1}


@pytest.mark.parametrize(
    ("key", "spec", "expected"),
    [
        (EVERY, {"s": 1, "a": {"$gte": 2, "$lt": 6}}, 160),
        (EVERY, {"s": 1, "a": None}, 0),
        (EVERY, {"s": 1, "a": {"$ne": 3}}, 360),
        (EVERY, {"s": 1, "a": {"$exists": False}}, 0),
        (EVERY, {"s": 1, "b": None}, 400),
        (BELOW_S, {"s": 1, "a": 3}, 40),
        (COMPOUND, {"s": 1, "a": 3, "b": 5}, 0),
        (COMPOUND, {"s": 1, "a": 3}, 40),
        (COMPOUND, {"s": 1, "b": 5}, 0),
    ],
)
def test_every_condition_of_the_filter_counts(key: dict[str, Any], spec: dict[str, Any], expected: int) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": i, "s": 1, "a": i % 10} for i in range(400)]})
        at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "w"}]})
        assert at.must("t", {"count": "c", "query": spec})["n"] == expected
        pipeline = [{"$match": spec}, {"$count": "n"}]
        counted = at.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"]
        assert counted == ([{"n": expected}] if expected else [])
        covered = {"find": "c", "filter": spec, "projection": {"_id": 0, "s": 1}, "hint": "w", "batchSize": 1000}
        assert len(at.must("t", covered)["cursor"]["firstBatch"]) == expected
