"""A stream that lags has the events of `EventBuilder`, byte for byte and in the same batches, by the quick way, too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import limits
from headrace.changes import plain_events
from headrace.changes.builder import EventBuilder
from headrace.testing.driven import DrivenServer
from tests.changes.test_rows import OPTIONS, PIPELINES, SCOPES, write


@pytest.fixture(name="server")
def _server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenServer]:
    monkeypatch.setattr(limits, "SCAN_MS_MAX", 60_000.0)
    monkeypatch.setattr(plain_events, "LONG_BYTES", 900)  # so that some of the documents are long
    with DrivenServer() as driven:
        yield driven


def batches(server: DrivenServer, opening: dict[str, Any], size: int, *, plain: bool) -> list[Any]:
    """(events, token) of each batch, up to the first that is empty; or the error that ends the stream."""
    reply: Any = server.run("d", opening)
    if "cursor" not in reply:
        return [reply["code"]]
    cursor = server.engine.cursors.peek(reply["cursor"]["id"])
    if not plain:
        cursor._plain = None
    found = [(reply["cursor"]["firstBatch"], reply["cursor"]["postBatchResumeToken"])]
    while True:
        namespace = cursor.namespace.partition(".")[2]
        more = {"getMore": cursor.id, "collection": namespace, "batchSize": size}
        reply = server.run("d", more, time_is_up=True)
        if "cursor" not in reply:
            return [*found, reply["code"]]
        batch, token = reply["cursor"]["nextBatch"], reply["cursor"]["postBatchResumeToken"]
        found.append((batch, token))
        if not batch or not reply["cursor"]["id"]:
            server.run("d", {"killCursors": namespace, "cursors": [cursor.id]})
            return found


@pytest.mark.parametrize("seed", range(6))
def test_the_quick_way_has_the_same_events_in_the_same_batches(
    server: DrivenServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    server.run("d", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    start = server.engine.last_write()[0]
    write(server, choose, 60)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", choose.choice([limits.BATCH_BYTES_MAX, 5000]))
    middle = None
    for _ in range(30):
        options = choose.choice(OPTIONS)
        position = {"startAtOperationTime": start} if middle is None else {"resumeAfter": middle}
        stages = [{"$changeStream": options | position}, *choose.choice(PIPELINES)]
        size = choose.choice([1, 2, 7, 1000])
        first = {"batchSize": choose.choice([0, 3])}
        opening = {"aggregate": choose.choice(SCOPES), "pipeline": stages, "cursor": first}
        expected = batches(server, opening, size, plain=False)
        assert batches(server, opening, size, plain=True) == expected
        tokens = [each[1] for each in expected if type(each) is tuple]
        middle = choose.choice([None, *tokens])


def test_the_events_of_a_backlog_are_made_without_a_builder(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run("d", {"create": "c"})
    start = server.engine.last_write()[0]
    for _ in range(3):
        server.run("d", {"insert": "c", "documents": [{"n": number} for number in range(300)]})
    built: list[Any] = []
    build = EventBuilder.build
    monkeypatch.setattr(EventBuilder, "build", lambda *arguments: built.append(1) or build(*arguments))
    opening = {"aggregate": "c", "pipeline": [{"$changeStream": {"startAtOperationTime": start}}], "cursor": {}}
    found = batches(server, opening, 10_000, plain=True)
    assert [event["fullDocument"]["n"] for events, _ in found for event in events] == [*range(300)] * 3
    assert len(built) <= 1
