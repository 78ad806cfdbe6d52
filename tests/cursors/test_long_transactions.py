"""The events of a large transaction are built piece by piece: the same ones, in the same order, each built once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.entry import PIECE_COUNT
from headrace.dispatch.wait import Wait
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COUNT = 1000  # four entries of the oplog


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("d", {"create": "c"})
        server.must("d", {"create": "other"})
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is left behind each piece."""
    monkeypatch.setattr(limits, "FEED_MS_MAX", -1.0)
    monkeypatch.setattr(limits, "SCAN_MS_MAX", -1.0)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations were built at once, each time."""
    counts: list[int] = []
    build = EventBuilder._build

    def counted(self: EventBuilder, operations: Any, guard: Any) -> Any:
        counts.append(len(operations))
        return build(self, operations, guard)

    monkeypatch.setattr(EventBuilder, "_build", counted)
    return counts


def commit(server: DrivenServer, first: int = 0) -> None:
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(first + 1), "autocommit": False}
    for start in range(0, COUNT, 100):
        documents = [{"_id": first + start + number} for number in range(100)]
        begin = {"startTransaction": True} if not start else {}
        for name in ("c", "other"):
            part = documents[:50] if name == "c" else documents[50:]
            server.must("d", {"insert": name, "documents": part, **session, **(begin if name == "c" else {})})
    server.must("admin", {"commitTransaction": 1, **session})


def opened(server: DrivenServer, *stages: dict[str, Any], **options: Any) -> Any:
    body = {"aggregate": 1, "pipeline": [{"$changeStream": options}, *stages], "cursor": {"batchSize": 0}}
    return server.must("d", body)["cursor"]


def read_all(server: DrivenServer, cursor_id: int, batch_size: int) -> tuple[list[Any], list[int]]:
    """The events until it would wait, and how many came in each batch."""
    events: list[Any] = []
    counts: list[int] = []
    body = {"getMore": Int64(cursor_id), "collection": "$cmd.aggregate", "batchSize": batch_size}
    while not isinstance(reply := server.run("d", body), Wait):
        assert reply["ok"] == 1.0, reply
        events += reply["cursor"]["nextBatch"]
        counts.append(len(reply["cursor"]["nextBatch"]))
    return events, counts


IDS = list(range(COUNT))


def ids(events: list[Any]) -> list[int]:
    return [event["documentKey"]["_id"] for event in events]


def in_turns(numbers: list[int]) -> bool:
    """Each once, in the order of the statements."""
    return sorted(numbers) == IDS and numbers == IDS


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("batch_size", [7, 5000])
@pytest.mark.parametrize("stages", [[], [{"$project": {"documentKey": 1, "ns": 1}}]])
def test_who_is_caught_up_gets_each_event_once(
    server: DrivenServer, built: list[int], batch_size: int, stages: list[Any]
) -> None:
    cursor = opened(server, *stages)["id"]
    commit(server)
    events, _ = read_all(server, cursor, batch_size)
    assert in_turns(ids(events)) and sum(built) == COUNT and max(built) == PIECE_COUNT


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("batch_size", [7, 5000])
def test_who_is_behind_goes_on_where_the_last_batch_ended(
    server: DrivenServer, built: list[int], batch_size: int
) -> None:
    token = opened(server)["postBatchResumeToken"]
    commit(server)
    commit(server, COUNT)
    events, counts = read_all(server, opened(server, resumeAfter=token)["id"], batch_size)
    assert ids(events) == list(range(2 * COUNT))
    assert sum(built) <= 2 * COUNT + PIECE_COUNT  # one for the feed that is joined in the end
    assert max(counts) <= min(batch_size, PIECE_COUNT)


@pytest.mark.usefixtures("impatient")
def test_a_stream_resumes_in_the_middle(server: DrivenServer) -> None:
    first = opened(server)
    commit(server)
    events, _ = read_all(server, first["id"], 5000)
    for index in (0, 63, 64, 500, COUNT - 2):
        later, _ = read_all(server, opened(server, resumeAfter=events[index]["_id"])["id"], 100)
        assert ids(later) == IDS[index + 1 :]


@pytest.mark.usefixtures("impatient")
def test_what_matches_nothing_takes_turns_too(
    server: DrivenServer, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = opened(server)["postBatchResumeToken"]
    commit(server)
    cursor = opened(server, {"$match": {"documentKey._id": COUNT - 51}}, resumeAfter=token)["id"]
    runs: list[Any] = []
    run_read = server.engine.run_read
    monkeypatch.setattr(server.engine, "run_read", lambda *args: runs.append(args) or run_read(*args))
    events, counts = read_all(server, cursor, 100)
    assert ids(events) == [COUNT - 51] and counts == [1] and len(runs) > COUNT / PIECE_COUNT and sum(built) == COUNT


@pytest.mark.usefixtures("impatient")
def test_an_event_that_cannot_be_built_comes_behind_those_before_it(server: DrivenServer) -> None:
    cursor = opened(
        server, {"$project": {"documentKey": 1, "x": {"$divide": [1, {"$subtract": ["$documentKey._id", 300]}]}}}
    )
    commit(server)
    body = {"getMore": Int64(cursor["id"]), "collection": "$cmd.aggregate"}
    seen: list[int] = []
    while (reply := server.run("d", body))["ok"]:
        seen += ids(reply["cursor"]["nextBatch"])
    assert reply["code"] == 16608 and seen == IDS[:300]


def test_two_streams_at_different_speeds(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_MS_MAX", -1.0)
    quick, slow = opened(server)["id"], opened(server)["id"]
    commit(server)
    body = {"collection": "$cmd.aggregate"}
    seen = ids(server.must("d", {"getMore": Int64(quick), **body})["cursor"]["nextBatch"])
    behind = ids(server.must("d", {"getMore": Int64(slow), "batchSize": 3, **body})["cursor"]["nextBatch"])
    seen += ids(read_all(server, quick, 1000)[0])
    behind += ids(read_all(server, slow, 50)[0])
    assert in_turns(seen) and in_turns(behind)
