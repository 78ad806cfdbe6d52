"""A wall clock that jumps: history ages at its own pace, and what was written in a wrong future goes in time."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymongo
import pytest

import headrace
from headrace import limits
from headrace.server.background import retention_of
from headrace.server.clocks import ExpiryClock, RetentionClock, RunningClock
from headrace.store.retention import HOUR_MS
from headrace.testing.clock import FakeClock


def tick(server: headrace.Server) -> None:
    core = server._running
    asyncio.run_coroutine_threadsafe(core.background.tick(), core.loop).result()


def entry_count(client: pymongo.MongoClient[Any]) -> int:
    return client.local["oplog.rs"].count_documents({})


def test_history_survives_a_clock_that_is_ahead_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with headrace.Server(clock=clock) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_one({"_id": 1})
        before = entry_count(client)
        right = clock.now_ms()
        clock.set_wall(right + 25 * HOUR_MS)
        for _ in range(3):
            clock.advance(1000)
            tick(server)
        ahead = client.t.c.insert_one({"_id": 2})
        clock.set_wall(right + 3000)
        clock.advance(1000)
        tick(server)
        assert ahead.acknowledged and entry_count(client) >= before + 1
        jumps = [record.message for record in caplog.records if "the wall clock went" in record.message]
        assert [text.split(";")[0] for text in jumps] == [
            "the wall clock went forward by 90000 s at once", "the wall clock went back by 90000 s at once",
        ]  # fmt: skip


def test_cluster_times_never_go_back_and_entries_of_a_wrong_future_go_by_their_wall_clock() -> None:
    clock = FakeClock()
    with headrace.Server(clock=clock) as server, pymongo.MongoClient(server.uri) as client:
        right = clock.now_ms()
        clock.set_wall(right + 10_000 * HOUR_MS)
        client.t.c.insert_one({"_id": 1})
        clock.set_wall(right)
        client.t.c.insert_many([{"_id": number} for number in range(2, 20)])
        stamps = [entry["ts"] for entry in client.local["oplog.rs"].find()]
        assert stamps == sorted(stamps)
        clock.advance(30 * HOUR_MS)
        client.t.c.insert_one({"_id": 20})
        tick(server)
        assert [entry["o"]["_id"] for entry in client.local["oplog.rs"].find({"op": "i"})] == [20]


def test_age_catches_up_at_twice_the_pace_and_never_goes_back() -> None:
    clock = FakeClock(1_000_000_000)
    retention = RetentionClock(clock, 1_000_000_000 - 10 * HOUR_MS)
    assert retention.now_ms() == 1_000_000_000 - 10 * HOUR_MS
    clock.advance(4 * HOUR_MS)
    assert retention.now_ms() == 1_000_000_000 - 2 * HOUR_MS
    clock.advance(4 * HOUR_MS)
    assert retention.now_ms() == 1_000_000_000 + 6 * HOUR_MS
    clock.advance(4 * HOUR_MS)
    assert retention.now_ms() == clock.now_ms()
    clock.set_wall(5)
    assert retention.now_ms() == 1_000_000_000 + 12 * HOUR_MS


def test_a_cluster_time_that_is_ahead_of_the_clock_is_a_warning_at_the_start(tmp_path: Path) -> None:
    clock = FakeClock()
    right = clock.now_ms()
    clock.set_wall(right + 10_000 * HOUR_MS)
    with headrace.Server(tmp_path, clock=clock) as server:
        assert server._running.startup_warnings == []
    clock.set_wall(right)
    with headrace.Server(tmp_path, clock=clock) as server, pymongo.MongoClient(server.uri) as client:
        (warning,) = server._running.startup_warnings
        assert warning.startswith("The cluster time is 36000000 s ahead of the clock")
        client.t.c.insert_one({"_id": 1})
        assert client.t.c.count_documents({}) == 1


def test_documents_expire_by_a_jump_that_lasts_and_by_no_other() -> None:
    clock = FakeClock(1_000_000_000)
    expiry = ExpiryClock(clock)
    clock.set_wall(clock.now_ms() + 25 * HOUR_MS)
    assert expiry.now_ms() == 1_000_000_000
    clock.advance(60_000)
    assert expiry.now_ms() == 1_000_060_000
    clock.set_wall(1_000_060_000)
    assert expiry.now_ms() == 1_000_060_000
    clock.set_wall(1_000_060_000 - 25 * HOUR_MS)
    assert expiry.now_ms() == 1_000_060_000 - 25 * HOUR_MS
    clock.set_wall(1_000_060_000)
    for second in range(limits.JUMP_SECONDS):
        assert expiry.now_ms() == 1_000_060_000 - 25 * HOUR_MS + 1000 * second
        clock.advance(1000)
    assert expiry.now_ms() == clock.now_ms()


def test_a_clock_that_is_wrong_for_a_minute_deletes_no_document() -> None:
    clock = FakeClock()
    with headrace.Server(clock=clock) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.create_index("at", expireAfterSeconds=3600)
        client.t.c.insert_one({"_id": 1, "at": datetime.fromtimestamp(clock.now_ms() / 1000, UTC)})
        right = clock.now_ms()
        clock.set_wall(right + 25 * HOUR_MS)
        for _ in range(61):
            clock.advance(1000)
            tick(server)
        assert client.t.c.count_documents({}) == 1
        clock.advance(limits.JUMP_SECONDS * 1000)
        tick(server)
        assert client.t.c.count_documents({}) == 0


@pytest.mark.parametrize(
    ("free", "expected"), [(100 * 1024**3, 5 * 1024**3), (8 * 1024**3, 1024**3), (1024**3, 1024**3 // 4)]
)
def test_the_oplog_takes_at_most_a_quarter_of_a_small_disk(
    monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    with headrace.Server() as server:
        usage = shutil.disk_usage("/")._replace(free=free - 4096)
        monkeypatch.setattr("headrace.server.background.shutil.disk_usage", lambda path: usage)
        assert retention_of(server._running, 4096).bytes_max == expected
        assert limits.OPLOG_BYTES_MIN == 1024**3


def test_time_in_which_the_process_was_stopped_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeClock()
    clock = RunningClock(fake)
    for _ in range(20):
        fake.advance(1000)
        assert clock.monotonic_ms() == fake.monotonic_ms()
    fake.advance(60_000)
    assert clock.monotonic_ms() == 20_000
    fake.advance(9000)
    assert (clock.monotonic_ms(), clock.now_ms()) == (29_000, fake.now_ms())
    assert [record.message for record in caplog.records] == [
        "the process was stopped, or had no time, for 60 s; nothing expires for that"
    ]


def test_a_server_that_was_stopped_for_hours_goes_on_with_its_cursors_transactions_and_history() -> None:
    fake = FakeClock()
    with headrace.Server(clock=RunningClock(fake)) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number} for number in range(10)])
        client.t.c.create_index("at", expireAfterSeconds=7200)
        client.t.c.insert_one({"_id": "dated", "at": datetime.fromtimestamp(fake.now_ms() / 1000, UTC)})
        entries = entry_count(client)
        cursor = client.t.c.find(batch_size=2)
        next(cursor)
        with client.start_session() as session, session.start_transaction():
            client.t.c.insert_one({"_id": "within"}, session=session)
            fake.advance(30 * HOUR_MS)
            tick(server)
            assert len(list(cursor)) == 10
            client.t.c.insert_one({"_id": "behind"}, session=session)
        tick(server)
        assert client.t.c.count_documents({}) == 13
        assert entry_count(client) >= entries


def test_what_is_idle_expires_while_the_process_runs() -> None:
    fake = FakeClock()
    with headrace.Server(clock=RunningClock(fake)) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number} for number in range(10)])
        cursor = client.t.c.find(batch_size=2)
        next(cursor)
        with client.start_session() as session:
            session.start_transaction()
            client.t.c.insert_one({"_id": "within"}, session=session)
            for _ in range(limits.TRANSACTION_SECONDS_MAX // 5 + 1):
                fake.advance(5000)
                tick(server)
            with pytest.raises(pymongo.errors.OperationFailure, match="has been aborted") as aborted:
                client.t.c.insert_one({"_id": "behind"}, session=session)
            assert aborted.value.code == 251
        for _ in range(limits.CURSOR_IDLE_MS_MAX // 5000):
            fake.advance(5000)
            tick(server)
        with pytest.raises(pymongo.errors.CursorNotFound):
            list(cursor)
