"""TTL indexes delete what has expired, with events."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pymongo
import pytest

import headrace
from headrace.testing.clock import FakeClock

OLD = dt.datetime(2020, 1, 1)
NOW_MS = int(dt.datetime(2021, 1, 1, tzinfo=dt.UTC).timestamp() * 1000)


@pytest.fixture
def server() -> Any:
    with headrace.Server() as server:
        server._running.background.ttl._round_ms = float("inf")  # no rounds but those of the test
        yield server


def expire(server: headrace.Server, now_ms: int) -> int:
    """A round of the server's own, now."""
    core = server._running
    return asyncio.run_coroutine_threadsafe(core.background.ttl.round(now_ms), core.loop).result()


def test_expired_documents_are_deleted_and_have_delete_events(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        coll = client.t.c
        coll.create_index("at", expireAfterSeconds=3600)
        coll.insert_many([
            {"_id": 1, "at": OLD}, {"_id": 2, "at": [dt.datetime(2030, 1, 1), OLD]}, {"_id": 3, "at": "2020"},
            {"_id": 4}, {"_id": 5, "at": dt.datetime(2030, 1, 1)}, {"_id": 6, "at": []},
        ])  # fmt: skip
        with coll.watch() as stream:
            assert expire(server, NOW_MS) == 2
            assert [stream.next()["documentKey"]["_id"] for _ in range(2)] == [1, 2]
        assert [document["_id"] for document in coll.find()] == [3, 4, 5, 6]


def test_a_partial_ttl_index_expires_only_what_it_holds(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        coll = client.t.c
        coll.create_index("at", expireAfterSeconds=0, partialFilterExpression={"done": True})
        coll.insert_many([{"_id": 1, "at": OLD, "done": True}, {"_id": 2, "at": OLD}])
        assert expire(server, NOW_MS) == 1
        assert [document["_id"] for document in coll.find()] == [2]


def test_a_large_collection_is_walked_in_pieces(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        coll = client.t.c
        coll.create_index("at", expireAfterSeconds=0)
        coll.insert_many([{"_id": number, "at": OLD} for number in range(2500)])
        assert expire(server, NOW_MS) == 2500
        assert coll.count_documents({}) == 0


def test_the_parameter_says_how_often_there_is_a_round() -> None:
    clock = FakeClock()
    with headrace.Server(clock=clock) as server, pymongo.MongoClient(server.uri) as client:
        core = server._running
        core.loop.call_soon_threadsafe(core.background.stop)
        client.t.c.create_index("at", expireAfterSeconds=0)
        assert client.admin.command("getParameter", 1, ttlMonitorSleepSecs=1)["ttlMonitorSleepSecs"] == 60

        def left_after(seconds: float) -> int:
            client.t.c.insert_one({"at": OLD})
            clock.advance(seconds * 1000)
            asyncio.run_coroutine_threadsafe(core.background.ttl.tick(), core.loop).result()
            return client.t.c.count_documents({})

        assert [left_after(60), left_after(59), left_after(2)] == [0, 1, 0]
        assert client.admin.command("setParameter", 1, ttlMonitorSleepSecs=3)["was"] == 60
        assert [left_after(2), left_after(1)] == [1, 0]
        for wrong in (0, -1, 1.5, None, "1"):
            with pytest.raises(pymongo.errors.OperationFailure) as caught:
                client.admin.command("setParameter", 1, ttlMonitorSleepSecs=wrong)
            assert caught.value.code == 2


def test_a_clustered_collection_expires_dates_of_its_ids(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        client.t.create_collection("c", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=3600)
        coll = client.t.c
        coll.insert_many([{"_id": OLD}, {"_id": "2020"}, {"_id": dt.datetime(2030, 1, 1)}, {"at": OLD}])
        with coll.watch() as stream:
            assert expire(server, NOW_MS) == 1
            assert stream.next()["documentKey"] == {"_id": OLD}
        assert coll.count_documents({}) == 3
        client.t.command({"collMod": "c", "expireAfterSeconds": "off"})
        coll.insert_one({"_id": OLD})
        assert expire(server, NOW_MS) == 0


def test_buckets_of_a_time_series_expire_with_their_last_measurement(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        now = dt.datetime(2021, 1, 1)
        series = client.t.create_collection("s", timeseries={"timeField": "at"}, expireAfterSeconds=3600)
        hours = [now - dt.timedelta(hours=back) for back in (30, 5, 2.5, 1.5, 0.5, -1)]
        series.insert_many([{"_id": number, "at": at} for number, at in enumerate(hours)])
        assert expire(server, NOW_MS) == 3
        assert [document["_id"] for document in series.find()] == [3, 4, 5]
        client.t.command("collMod", "s", expireAfterSeconds="off")
        assert expire(server, NOW_MS + 10 * 3_600_000) == 0
