"""Finds whose index bounds express the whole filter: documents are not tested, unless arrays appear meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import limits
from headrace.execution import plan
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COUNT = 3 * limits.VIEW_CHUNK_COUNT


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as made:
        made.must("t", {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
        made.must("t", {"insert": "c", "documents": [{"_id": number, "n": number} for number in range(COUNT)]})
        yield made


def test_documents_in_exact_bounds_are_not_tested(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "decode", lambda raw: pytest.fail("a document was decoded"))
    reply = server.must("t", {"find": "c", "filter": {"n": {"$gte": 3, "$lt": 103}}, "batchSize": 1000})
    assert [document["_id"] for document in reply["cursor"]["firstBatch"]] == list(range(3, 103))


def test_documents_are_tested_once_there_are_arrays(server: DrivenServer) -> None:
    reply = server.must("t", {"find": "c", "filter": {"n": {"$ne": 2}}, "hint": "n", "batchSize": 10})
    first = [document["_id"] for document in reply["cursor"]["firstBatch"]]
    server.must("t", {"insert": "c", "documents": [{"_id": "array", "n": [2, COUNT]}]})
    rest: dict[str, Any] = {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 1000}
    found = first + [document["_id"] for document in server.must("t", rest)["cursor"]["nextBatch"]]
    assert found == [number for number in range(COUNT) if number != 2]


@pytest.mark.parametrize("size", [1, 10, limits.VIEW_CHUNK_COUNT, limits.VIEW_CHUNK_COUNT + 1, COUNT, COUNT + 1])
def test_batches_of_every_size_hold_all_documents_once(server: DrivenServer, size: int) -> None:
    cursor = server.must("t", {"find": "c", "filter": {"n": {"$gte": 0}}, "batchSize": size})["cursor"]
    found = [document["_id"] for document in cursor["firstBatch"]]
    while cursor["id"]:
        more = {"getMore": cursor["id"], "collection": "c", "batchSize": size}
        cursor = server.must("t", more)["cursor"]
        assert len(cursor["nextBatch"]) <= size
        found += [document["_id"] for document in cursor["nextBatch"]]
    assert found == list(range(COUNT))


def test_batches_of_large_documents_keep_the_limit_of_bytes(server: DrivenServer) -> None:
    big = "x" * (limits.BATCH_BYTES_MAX // 5)
    for number in range(12):
        server.must("t", {"insert": "c", "documents": [{"_id": f"big {number}", "n": -1, "big": big}]})
    cursor = server.must("t", {"find": "c", "filter": {"n": {"$lt": 3}}, "batchSize": 1000})["cursor"]
    batches = [cursor["firstBatch"]]
    while cursor["id"]:
        cursor = server.must("t", {"getMore": cursor["id"], "collection": "c"})["cursor"]
        batches.append(cursor["nextBatch"])
    assert [document["_id"] for batch in batches for document in batch] == [
        *(f"big {number}" for number in range(12)), 0, 1, 2,
    ]  # fmt: skip
    assert max(sum(len(document.get("big", "")) for document in batch) for batch in batches) <= limits.BATCH_BYTES_MAX
