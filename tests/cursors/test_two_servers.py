"""Two servers in one process share nothing that can be counted."""

from __future__ import annotations

from typing import Any

from headrace.testing.driven import DrivenServer

MEGABYTE = 1024 * 1024


def large_events(server: DrivenServer) -> Any:
    return server.must("admin", {"serverStatus": 1})["metrics"]["changeStreams"]


def split_an_event(server: DrivenServer) -> None:
    server.must("a", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    server.must("a", {"insert": "c", "documents": [{"_id": 1, "text": "b" * (9 * MEGABYTE)}]})
    start = server.must("a", {"hello": 1})["operationTime"]
    server.must("a", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"_id": 1, "text": "a" * (8 * MEGABYTE)}}]})
    stream = {"fullDocumentBeforeChange": "required", "startAtOperationTime": start}
    pipeline = [{"$changeStream": stream}, {"$match": {"operationType": "replace"}}]
    split = [*pipeline, {"$changeStreamSplitLargeEvent": {}}]
    reply = server.must("a", {"aggregate": "c", "pipeline": split, "cursor": {}})
    assert reply["cursor"]["firstBatch"][0]["splitEvent"] == {"fragment": 1, "of": 2}
    failed = server.run("a", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
    assert isinstance(failed, dict) and failed["code"] == 10334


def test_large_events_are_counted_by_the_server_that_has_them() -> None:
    with DrivenServer() as first, DrivenServer() as second:
        split_an_event(first)
        assert large_events(first) == {"largeEventsFailed": 1, "largeEventsSplit": 1}
        assert large_events(second) == {"largeEventsFailed": 0, "largeEventsSplit": 0}
