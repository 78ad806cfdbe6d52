"""Ranges of events from a real server: complete, in order, the same at every reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

import headrace
from headrace.spark.mongodb.event_ranges import read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.read_ahead import read_ahead
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode
from tests.spark.support.pruning import prune_to

pytestmark = pytest.mark.long

Db = Database[dict[str, Any]]


@pytest.fixture(autouse=True)
def both_ways(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MongoDBStream, "arrow", transport == "arrow")


def feed_of(uri: str, database: Db, **more: Any) -> MongoDBStream:
    return MongoDBStream(SourceOptions(uri, database.name, "c", **more))


def reach(feed: MongoDBStream, start: Token) -> Token:
    return read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20).token


def events_between(feed: MongoDBStream, start: Token, end: Token) -> list[tuple[str, Any]]:
    rows = [row for batch in read_range(feed, start, end, COLUMNS) for row in batch.to_pylist()]
    keys = [decode(row["documentKey"])["_id"] if row["documentKey"] else None for row in rows]
    return list(zip((row["operationType"] for row in rows), keys, strict=True))


def test_a_range_holds_what_happened_in_it_and_gives_the_same_again(uri: str, database: Db) -> None:
    feed = feed_of(uri, database)
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_many([{"_id": number} for number in range(250)])
    database.c.update_one({"_id": 3}, {"$set": {"a": 1}})
    database.c.delete_one({"_id": 4})
    end = reach(feed, start)
    expected = [("insert", number) for number in range(250)] + [("update", 3), ("delete", 4)]
    assert events_between(feed, start, end) == expected
    database.c.insert_one({"_id": "later"})
    assert events_between(feed, start, end) == expected


def test_ranges_follow_one_another_without_gap_or_overlap(uri: str, database: Db) -> None:
    feed = feed_of(uri, database, batch_rows=7)
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_many([{"_id": number} for number in range(50)])
    ahead, events, last = read_ahead(feed), [], start
    while len(events) < 50:
        end = ahead.advance(last, BatchLimits(11), until=None, wait_ms=20).token
        events += events_between(feed, last, end)
        last = end
    assert events == [("insert", number) for number in range(50)]


def test_what_happens_elsewhere_moves_a_quiet_stream_on(uri: str, database: Db) -> None:
    feed = feed_of(uri, database)
    start = feed.resolve(StreamPosition("latest"))
    for number in range(3):
        database.other.insert_one({"_id": number})
    end = reach(feed, start)
    assert end > start
    assert events_between(feed, start, end) == []
    database.c.insert_one({"_id": 1})
    assert events_between(feed, end, reach(feed, end)) == [("insert", 1)]


def test_a_range_goes_on_behind_an_invalidate(uri: str, database: Db) -> None:
    feed = feed_of(uri, database)
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_one({"_id": 1})
    database.c.drop()
    database.c.insert_one({"_id": 2})
    middle = read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20)
    assert middle.closed
    end = reach(feed, middle.token)
    assert events_between(feed, start, end) == [("insert", 1), ("drop", None), ("invalidate", None), ("insert", 2)]
    assert events_between(feed, middle.token, end) == [("insert", 2)]


def test_the_servers_pipeline_decides_what_is_in_a_range(uri: str, database: Db) -> None:
    feed = feed_of(uri, database, pipeline=({"$match": {"operationType": "delete"}},))
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_many([{"_id": number} for number in range(20)])
    database.c.delete_one({"_id": 4})
    assert events_between(feed, start, reach(feed, start)) == [("delete", 4)]


def test_a_database_and_a_deployment_are_streams_too(uri: str, database: Db) -> None:
    for options in (SourceOptions(uri, database.name), SourceOptions(uri)):
        feed = MongoDBStream(options)
        start = feed.resolve(StreamPosition("latest"))
        database.one.insert_one({"_id": 1})
        database.two.insert_one({"_id": 2})
        assert events_between(feed, start, reach(feed, start)) == [("insert", 1), ("insert", 2)]
        database.one.drop()
        database.two.drop()


def test_the_earliest_position_is_before_every_retained_event(uri: str, database: Db) -> None:
    feed = feed_of(uri, database)
    database.c.insert_one({"_id": 1})
    start = feed.resolve(StreamPosition("earliest"))
    assert events_between(feed, start, reach(feed, start)) == [("insert", 1)]


def test_an_error_of_the_server_is_raised_with_its_message(uri: str, database: Db) -> None:
    feed = feed_of(uri, database, pipeline=({"$group": {"_id": None}},))
    with pytest.raises(OperationFailure):
        feed.resolve(StreamPosition("latest"))


def test_a_position_that_the_oplog_has_left_is_an_error_that_says_so() -> None:
    with headrace.Server() as server:
        feed = MongoDBStream(SourceOptions(server.uri, "d", "c"))
        start = feed.resolve(StreamPosition("latest"))
        for number in range(20):
            feed.client.d.c.insert_one({"_id": number})
        end = reach(feed, start)
        prune_to(server, 5)
        with pytest.raises(PositionLost, match=start.text):
            list(read_range(feed, start, end, COLUMNS))


def test_a_cursor_continues_after_the_server_killed_it(uri: str, database: Db) -> None:
    feed = feed_of(uri, database, batch_rows=3)
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_many([{"_id": number} for number in range(10)])
    events = []
    with feed.open(StreamPosition("token", token=start)) as cursor:
        while len(events) < 10:
            events += [event["documentKey"]["_id"] for event in cursor.next_batch(wait_ms=20)]
            cursor_id = cursor.cursor_id
            if cursor_id:
                database.command("killCursors", "c", cursors=[cursor_id])
    assert events == list(range(10))


def test_a_cursor_goes_on_after_the_server_was_started_again(tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server:
        port = server.options.port or int(server.address.rpartition(":")[2])
        feed = MongoDBStream(SourceOptions(server.uri, "d", "c"))
        cursor = feed.open(StreamPosition("latest"))
        feed.client.d.c.insert_one({"_id": 1})
        assert [event["documentKey"] for event in cursor.next_batch(wait_ms=1000)] == [{"_id": 1}]
    with headrace.Server(tmp_path, port=port):
        feed.client.d.c.insert_one({"_id": 2})
        assert [event["documentKey"] for event in cursor.next_batch(wait_ms=1000)] == [{"_id": 2}]
        cursor.close()


def test_a_range_that_ends_at_a_time_has_nothing_later(uri: str, database: Db) -> None:
    feed = feed_of(uri, database)
    start = feed.resolve(StreamPosition("latest"))
    for number in range(6):
        database.c.insert_one({"_id": number})
    moments = [event["clusterTime"] for event in feed.read(start, feed.end_at(feed.now()))]
    for number, moment in enumerate(moments):
        assert [key for _, key in events_between(feed, start, feed.end_at(moment))] == list(range(number + 1))
