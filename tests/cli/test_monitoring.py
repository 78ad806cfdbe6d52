"""`headrace oplog`, `status` and `top`: true figures, and which stream is slow and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pytest

import headrace
from headrace.cli.main import main
from headrace.cli.monitoring.oplog import OplogReport
from headrace.cli.monitoring.status import ServerSample, Status, open_streams
from headrace.cli.terminal import Painter
from headrace.testing.clock import FakeClock
from tests.server.raw import RawClient
from tests.waiting import until

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Iterator[headrace.Server]:
    """Nothing of which happens by itself: a second after the start it would begin to forget events."""
    with headrace.Server(clock=clock) as running:
        running._running.loop.call_soon_threadsafe(running._running.background.stop)
        yield running


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Any]:
    with pymongo.MongoClient[dict[str, Any]](server.uri, appname="shop's web") as opened:
        yield opened


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_of_200_streams_status_shows_which_are_slow_and_why(
    server: headrace.Server, client: Any, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as streams:
        begin = client.admin.command("hello")["operationTime"]
        client.shop.orders.insert_many([{"_id": number} for number in range(20)])
        live = [streams.enter_context(client.shop.other.watch(max_await_time_ms=1)) for _ in range(198)]
        streams.enter_context(client.shop.orders.watch([{"$match": {"operationType": "insert"}}], max_await_time_ms=1))
        behind = streams.enter_context(client.shop.watch(start_at_operation_time=begin, batch_size=1))
        behind.next()
        client.shop.orders.insert_one({"_id": "unread"})
        clock.advance(90_000)
        for stream in live[:5]:
            stream.try_next()
        (status,) = asked(capsys, "status", server.uri, "--interval", "0.1")
        assert len(status["streams"]) == 200
        slow = {stream["scope"]: stream for stream in status["streams"] if stream["slow"]}
        assert set(slow) == {"shop", "shop.orders"} and all(stream["slow"] for stream in status["streams"][:2])
        assert (slow["shop.orders"]["reads"], slow["shop"]["reads"]) == ("memory", "oplog")
        assert slow["shop.orders"]["reason"] == "its client has not asked for 1 min 30 s"
        assert slow["shop.orders"]["lagSecs"] >= 89 and slow["shop.orders"]["client"] == "shop's web"
        assert slow["shop.orders"]["pipeline"] == [{"$match": {"operationType": "insert"}}]
        assert slow["shop"]["events"] == 1
        assert main(["status", server.uri, "--interval", "0.1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "streams      200 open, 2 slow" in lines and "and 180 more" in lines
        (first,) = [line for line in lines if line.startswith("shop.orders")]
        assert first.split("  ")[1:4] == ["from memory", "1 min 30 s", "its client has not asked for 1 min 30 s"]


def test_status_counts_commits_and_names_who_holds_memory(
    server: headrace.Server, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client.shop.orders.insert_many([{"_id": number} for number in range(300)])
    cursor = client.shop.orders.find(batch_size=2)
    next(cursor)
    (status,) = asked(capsys, "status", server.uri, "--interval", "0.1")
    assert status["process"] == "headrace" and status["commitsPerSec"] == 0 and status["streams"] == []
    assert status["memory"]["largest"][0]["holder"].startswith("open cursors of 127.0.0.1:")
    cursor.close()


def test_status_counts_neither_its_own_connections_nor_its_commands(
    server: headrace.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["status"], ["top", "--count", "2"]):
        until(lambda: not server._running.engine.connections_open)
        for status in asked(capsys, *words, server.uri, "--interval", "0.1"):
            assert status["connections"] == 0
            assert set(status["operationsPerSec"].values()) == {0}
    with RawClient(server.address) as raw:
        raw.ask({"ping": 1})
        until(lambda: server._running.engine.connections_open == 1)
        (status,) = asked(capsys, "status", server.uri, "--interval", "0.1")
        assert status["connections"] == 1


def test_top_repeats_it(server: headrace.Server, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(asked(capsys, "top", server.uri, "--interval", "0.1", "--count", "2")) == 2
    assert main(["top", server.uri, "--interval", "0.1", "--count", "2"]) == 0
    assert capsys.readouterr().out.count("streams      0 open\n") == 2


@pytest.mark.parametrize("words", [["--interval", "abc"], ["--interval", "0"], ["--count", "0"]])
def test_a_number_that_is_none_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", *words])
    assert ended.value.code == 2 and f"{words[1]!r} is not a " in capsys.readouterr().err


def test_rates_are_what_counters_grew_by_in_a_second() -> None:
    def sample(at: float, insert: int, commits: int, writes: int) -> ServerSample:
        counters = {"opcounters": {"insert": insert}, "metrics": {"commits": {"total": commits, "writes": writes}}}
        return ServerSample(at, counters, [])

    status = Status(sample(10.0, 100, 10, 100), sample(12.0, 300, 20, 150)).document()
    assert status["operationsPerSec"]["insert"] == 100 and status["operationsPerSec"]["update"] is None
    assert (status["commitsPerSec"], status["writesPerCommit"]) == (5, 5)


class ListOfOperations:
    """A client of a server whose `$currentOp` is this list."""

    def __init__(self, *operations: dict[str, Any]) -> None:
        self._operations = operations

    @property
    def admin(self) -> ListOfOperations:
        return self

    def aggregate(self, _: object) -> Iterator[dict[str, Any]]:
        return iter(self._operations)


def test_of_mongodb_it_shows_what_is_known() -> None:
    def cursor(pipeline: list[Any], ago_secs: int) -> dict[str, Any]:
        read = NOW - timedelta(seconds=ago_secs)
        return {"lastAccessDate": read, "nDocsReturned": 3, "originatingCommand": {"pipeline": pipeline}}

    waits = {"type": "op", "ns": "shop.orders", "cursor": cursor([{"$changeStream": {}}], 50)}
    idle = {
        "type": "idleCursor", "ns": "admin.$cmd.aggregate", "clientMetadata": {"driver": {"name": "nodejs"}},
        "cursor": cursor([{"$changeStream": {"allChangesForCluster": True}}, {"$match": {"a": 1}}], 61),
    }  # fmt: skip
    other = {"type": "idleCursor", "ns": "shop.orders", "cursor": cursor([{"$match": {}}], 5)}
    slow, live = open_streams(ListOfOperations(waits, idle, other), NOW)  # type: ignore[arg-type]
    assert (slow.scope, slow.reason) == ("all databases", "its client has not asked for 1 min 1 s")
    assert (slow.client, slow.pipeline, slow.event_count) == ("nodejs", [{"$match": {"a": 1}}], 3)
    assert (live.scope, live.is_slow, live.reason) == ("shop.orders", False, "")


def test_slow_stages_are_a_reason() -> None:
    progress = {"reads": "memory", "caughtUp": False, "lagSecs": 7, "slowStages": True}
    (stream,) = open_streams(ListOfOperations({"type": "op", "ns": "a.b", "changeStream": progress}), NOW)  # type: ignore[arg-type]
    assert stream.reason == "its stages take long"


def test_the_oplog_has_a_window_a_rate_and_busy_namespaces(
    server: headrace.Server, client: Any, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    client.shop.orders.insert_one({"_id": 0, "text": "x" * 1000})
    clock.advance(3600_000)
    client.shop.orders.insert_many([{"_id": number, "text": "x" * 1000} for number in range(1, 10)])
    client.shop.log.insert_one({"_id": 1})
    (report,) = asked(capsys, "oplog", server.uri)
    assert 3590 <= report["windowSecs"] <= 3610 and report["retentionHours"] == 24.0
    assert report["entries"] >= 11 and report["sample"]["entries"] >= 11
    first, *_ = report["sample"]["busiest"]
    assert (first["ns"], first["entries"]) == ("shop.orders", 10) and first["bytes"] > 10_000
    assert 0 < report["lastsSecs"] <= 86400 and report["bytesPerHour"] > 0
    assert main(["oplog", server.uri]) == 0
    assert "shop.orders" in capsys.readouterr().out


def test_history_lasts_as_long_as_the_nearest_bound() -> None:
    report = OplogReport(0, 7200, 2000, 2_000_000, 10_000_000, 48.0, None, 1000, 3600, [("a.b", 1000, 1)])
    assert report.bytes_per_hour == 1_000_000 and report.lasts_secs == 36_000
    report.entries_max = 500
    assert report.lasts_secs == 1800
    report.sample_secs = 0
    assert report.lasts_secs == 48 * 3600
    report.hours_max = None
    assert report.lasts_secs is None
    assert [line.split()[0] for line in report.lines(Painter(enabled=False)) if line][:4] == [
        "window", "size", "growth", "lasts",
    ]  # fmt: skip


def test_a_standalone_has_no_oplog(capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.Server(oplog=False) as server:
        assert main(["oplog", server.uri]) == 1
    assert capsys.readouterr().err == "headrace: the server has no oplog: it is not a replica set\n"
