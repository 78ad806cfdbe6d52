"""Groups that exceed their memory in the middle of the documents that a scan has read at once."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COUNT = 300
GROUPS: list[list[dict[str, Any]]] = [
    [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    [{"$group": {"_id": "$k", "n": {"$push": "$_id"}}}],
    [{"$unwind": "$l"}, {"$group": {"_id": "$k", "n": {"$sum": "$l"}}}],
]


@pytest.mark.parametrize("pipeline", GROUPS)
def test_no_document_is_left_out_of_a_group_that_goes_to_disk(pipeline: list[dict[str, Any]]) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        documents = [{"_id": number, "k": number % 250, "l": [1, 2], "pad": "x" * 4000} for number in range(COUNT)]
        at.must("t", {"insert": "c", "documents": documents})
        command = {"aggregate": "c", "pipeline": [*pipeline, {"$sort": {"_id": 1}}], "cursor": {"batchSize": 1000}}
        expected = at.must("t", command)["cursor"]["firstBatch"]
        assert len(expected) == 250
        for bytes_max in (10_000, 30_000, 60_000):
            at.must("admin", {"setParameter": 1, "internalDocumentSourceGroupMaxMemoryBytes": bytes_max})
            assert at.must("t", command)["cursor"]["firstBatch"] == expected
