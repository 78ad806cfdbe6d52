"""The driver's side without Spark: several servers merged, a server that is down, a position that is lost."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pyspark.sql.types import LongType, StringType, StructField, StructType

import headrace
from headrace import limits
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.source_options import server_name
from headrace.spark.rows.extjson import dumps
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import StreamReader
from headrace.spark.stream.offsets import Offset, in_snapshot
from headrace.spark.stream.partitions import EventRange, MergedRanges
from headrace.spark.stream.planner import StreamPlanner
from headrace.spark.stream.server_stream import ServerStream
from headrace.values.bson import decode
from tests.spark.support.pruning import prune_to

pytestmark = pytest.mark.long

_NAMES = ("token", "operationType", "server")
SCHEMA = StructType([StructField(name, StringType(), name != "token") for name in _NAMES])
SCHEMA.add("clusterTimeIncrement", LongType())

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def both_ways(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MongoDBStream, "arrow", transport == "arrow")


def reader_of(*servers: Any, **more: str) -> StreamReader:
    uris = "\n".join(server.uri for server in servers)
    options = {"uri": uris, "database": "d", "collection": "c", "awaitMs": "20"} | more
    return StreamReader(parse_options(options), SCHEMA)


def rows_of(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def insert(server: Any, *keys: int) -> None:
    with MongoClient[Row](server.uri) as client:
        for key in keys:
            client.d.c.insert_one({"_id": key})


def advance(reader: StreamReader, start: Offset) -> Offset:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_several_servers_are_one_stream_in_the_order_of_time() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        reader = reader_of(one, two)
        start = reader.initialOffset()
        for number in range(10):
            insert((one, two)[number % 2], number)
        rows: list[Row] = []
        reader.prepareForTriggerAvailableNow()
        end = advance(reader, start)
        while end != start:
            rows += rows_of(reader, start, end)
            start, end = end, advance(reader, end)
        assert [row["token"][2:18] for row in rows] == sorted(row["token"][2:18] for row in rows)
        by_server = {server_name(server.uri): [row["token"] for row in rows if row["server"] == server_name(server.uri)]
                     for server in (one, two)}  # fmt: skip
        assert [len(tokens) for tokens in by_server.values()] == [5, 5]
        assert all(tokens == sorted(tokens) for tokens in by_server.values())
        reader.stop()


def test_a_batch_reaches_to_the_frontier_of_the_slowest_server() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        reader = reader_of(one, two)
        start = reader.initialOffset()
        insert(one, 1)
        before = advance(reader, start)  # the second server's time has not come so far
        insert(two, 2)
        after = advance(reader, before)
        seen = [row["server"] for row in rows_of(reader, start, before) + rows_of(reader, before, after)]
        assert server_name(one.uri) in seen
        assert seen == sorted(seen, key=[server_name(one.uri), server_name(two.uri)].index)
        reader.stop()


def test_bounds_hold_and_no_event_is_missing_between_batches() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        reader = reader_of(one, two, maxRowsPerTrigger="8", partitions="2")
        start = reader.initialOffset()
        insert(one, *range(20))
        insert(two, *range(20))
        reader.prepareForTriggerAvailableNow()
        sizes, tokens = [], set()
        end = advance(reader, start)
        while end != start:
            rows = rows_of(reader, start, end)
            sizes.append(len(rows))
            tokens |= {(row["server"], row["token"]) for row in rows}
            start, end = end, advance(reader, end)
        assert len(tokens) == sum(sizes) == 40
        assert max(sizes) <= 8
        reader.stop()


def test_rows_of_several_batches_are_merged_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.mongodb.event_ranges.ARROW_ROWS", 3)
    with headrace.Server() as one, headrace.Server() as two:
        reader = reader_of(one, two)
        start = reader.initialOffset()
        for number in range(30):
            insert((one, two, two)[number % 3], number)
        reader.prepareForTriggerAvailableNow()
        end = advance(reader, start)
        rows = rows_of(reader, start, end)
        again = rows_of(reader, start, end)
        order = [server_name(one.uri), server_name(two.uri)]
        keys = [(row["token"][2:18], order.index(row["server"]), row["token"]) for row in rows]
        assert keys == sorted(keys) and rows == again and len(rows) >= 20
        reader.stop()


@pytest.mark.process
@pytest.mark.parametrize("policy", ["stall", "skip"])
def test_a_server_that_is_down_stalls_visibly_or_is_passed_over(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MERGED_PING_SECONDS_MAX", 1.0)
    with headrace.Server() as one:
        with headrace.Server(tmp_path) as two:
            port = int(two.address.rpartition(":")[2])
            reader = reader_of(one, two, onServerDown=policy)
            start = reader.initialOffset()
        insert(one, 1)
        with caplog.at_level(logging.WARNING):
            during = advance(reader, start)
        assert f"127.0.0.1:{port} cannot be reached" in caplog.text
        assert (during["servers"] == start["servers"]) == (policy == "stall")
        if policy == "skip":
            assert [row["server"] for row in rows_of(reader, start, during)] == [server_name(one.uri)]
        with headrace.Server(tmp_path, port=port) as back:
            insert(back, 2)
            insert(one, 3)
            reader.prepareForTriggerAvailableNow()
            end = advance(reader, during)
            rows = rows_of(reader, during, end)
            assert len(rows) == (3 if policy == "stall" else 2)
            reader.stop()


def test_a_server_added_to_a_running_job_begins_with_a_new_offset() -> None:
    with headrace.Server() as one, headrace.Server() as two, headrace.Server() as three:
        reader = reader_of(one, two)
        start = reader.initialOffset()
        larger = reader_of(one, two, three)
        end = advance(larger, start)
        assert end["servers"].keys() == {server_name(server.uri) for server in (one, two, three)}
        assert rows_of(larger, start, end) == []
        with pytest.raises(ValueError, match=server_name(three.uri)):
            reader.partitions(start, end)


def stream_of(server: Any, **more: str) -> ServerStream:
    options = {"uri": server.uri, "database": "d", "collection": "c", "awaitMs": "20"}
    return ServerStream(parse_options(options | more))


def test_an_idle_stream_waits_longer_each_time_until_an_event_comes() -> None:
    with headrace.Server() as server:
        stream = stream_of(server)
        assert waits(stream, 6) == [20, 40, 80, 160, 320, 320]
        stream.note_rows(1)
        assert stream.wait_ms == 20
        # Of several servers that are asked in turn the others' events wait; a client takes a silent server for dead.
        assert waits(ServerStream(stream.options, alone=False), 4) == [20, 40, 80, 80]
        uri = f"{server.uri}{'&' if '?' in server.uri else '/?'}socketTimeoutMS=200"
        assert waits(ServerStream(replace(stream.options, uri=uri)), 4) == [20, 40, 80, 100]


def waits(stream: ServerStream, count: int) -> list[int]:
    """How long the stream waits, each time without an event."""
    listed = []
    for _ in range(count):
        listed.append(stream.wait_ms)
        stream.note_rows(0)
    return listed


def kinds(stream: ServerStream, start: Offset, end: Offset) -> list[tuple[str, Any]]:
    pairs = []
    for partition in stream.partitions(start, end):
        for batch in partition.read(stream.options, ["operationType", "documentKey"]):
            pairs += [(row["operationType"], row["documentKey"]) for row in batch.to_pylist()]
    return [(kind, key and decode(key)["_id"]) for kind, key in pairs]


def test_a_pruned_position_fails_or_restarts_from_a_snapshot() -> None:
    with headrace.Server() as server:
        insert(server, *range(3))
        fails, begins = stream_of(server), stream_of(server, onPositionLost="resnapshot")
        start = fails.initial_offset()
        insert(server, *range(10, 30))
        prune_to(server, 5)
        with pytest.raises(PositionLost):
            fails.latest_offset(start)
        end = begins.latest_offset(start)
        events = kinds(begins, start, end)
        while in_snapshot(end):
            start, end = end, begins.latest_offset(end)
            events += kinds(begins, start, end)
        keys = [*range(3), *range(10, 30)]
        assert events == [("snapshotBegin", None), *(("snapshot", key) for key in keys), ("snapshotEnd", None)]


def test_a_range_pruned_after_it_was_planned_is_replaced_by_a_snapshot() -> None:
    with headrace.Server() as server:
        stream = stream_of(server, onPositionLost="resnapshot")
        start = stream.initial_offset()
        insert(server, *range(3))
        end = stream.latest_offset(start)
        insert(server, *range(10, 30))
        prune_to(server, 5)
        keys = [*range(3), *range(10, 30)]
        again = [("snapshotBegin", None), *(("snapshot", key) for key in keys), ("snapshotEnd", None)]
        assert kinds(stream, start, end) == again


def test_a_chunk_of_a_snapshot_is_read_in_partitions() -> None:
    with headrace.Server() as server:
        insert(server, *range(40))
        stream = stream_of(server, startingPosition="snapshot", partitions="3")
        start = stream.initial_offset()
        events, counts = [], []
        end = stream.latest_offset(start)
        while in_snapshot(start):
            counts.append(len(stream.partitions(start, end)))
            events += kinds(stream, start, end)
            start, end = end, stream.latest_offset(end)
        assert [key for kind, key in events if kind == "snapshot"] == list(range(40))
        assert (events[0][0], events[-1][0]) == ("snapshotBegin", "snapshotEnd")
        assert max(counts) <= 3


def test_a_snapshot_ends_while_documents_are_inserted_behind_it() -> None:
    with headrace.Server() as server:
        insert(server, *range(3))
        stream = stream_of(server, startingPosition="snapshot")
        start = stream.initial_offset()
        events = []
        for number in range(10, 20):
            end = stream.latest_offset(start)
            insert(server, number)
            events += kinds(stream, start, end)
            if not in_snapshot(end):
                break
            start = end
    assert events[-1] == ("snapshotEnd", None)
    # What comes behind the last chunk is an event.
    assert [key for kind, key in events if kind == "snapshot"] == [0, 1, 2, 10]


@pytest.mark.parametrize("more", [{}, {"maxRowsPerTrigger": "70"}])
@pytest.mark.parametrize("several", [False, True])
def test_partitions_by_time_have_each_event_once_in_order(
    more: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITION_ROW_COUNT_MIN", 20)
    monkeypatch.setattr("headrace.spark.stream.read_ahead._RUN_ROWS", 4)
    with headrace.Server() as server:
        names = {"collections": "c"} if several else {"collection": "c"}
        names |= {"startingPosition": "snapshot" if several else "latest"}
        options = {"uri": server.uri, "database": "d", "partitions": "3", "partitionBy": "time", "awaitMs": "20"}
        schema = StructType([field for field in SCHEMA if field.name != "server"])
        reader = StreamReader(parse_options(options | names | more), schema)
        start = reader.initialOffset()
        with MongoClient[Row](server.uri) as client, client.start_session() as session:
            for number in range(0, 500, 100):
                client.d.c.insert_many([{"_id": number + key} for key in range(30)])
                client.d.other.insert_many([{} for _ in range(10)])
                with session.start_transaction():
                    client.d.c.update_many({"_id": {"$gte": number}}, {"$set": {"n": 1}}, session=session)
        reader.prepareForTriggerAvailableNow()
        end, tokens, counts = advance(reader, start), [], []
        while end != start:
            again = reader.partitions(start, end)
            assert again == reader.partitions(start, end)
            counts.append(len(again))
            rows = rows_of(reader, start, end)
            tokens += [row["token"] for row in rows if row["operationType"] in {"insert", "update"}]
            start, end = end, advance(reader, end)
        assert tokens == sorted(set(tokens)) and len(tokens) == 300
        assert max(counts) == 3
        reader.stop()


def test_a_partition_of_several_servers_has_a_range_of_each() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        stream = StreamPlanner(reader_of(one, two, partitions="2").options)
        start = stream.initial_offset()
        insert(one, 1)
        insert(two, 1)
        stream.stop_at_now()
        partitions = stream.partitions(start, stream.latest_offset(start))
        assert all(isinstance(partition, MergedRanges) and len(partition.ranges) == 2 for partition in partitions)
        ranges = [
            each for partition in partitions if isinstance(partition, MergedRanges) for each in partition.ranges if each
        ]
        assert {(each.slice, each.slices) for each in ranges if isinstance(each, EventRange)} == {(0, 2), (1, 2)}


@pytest.mark.parametrize("several", [False, True])
def test_offsets_of_several_servers_of_earlier_releases_are_read(several: bool) -> None:
    with headrace.Server() as one, headrace.Server() as two:
        names = {"collections": "c"} if several else {"collection": "c"}
        options = {"uri": f"{one.uri}\n{two.uri}", "database": "d", "awaitMs": "20"} | names
        reader = StreamReader(
            parse_options(options | {"startingPosition": "snapshot" if several else "latest"}), SCHEMA
        )
        start = reader.initialOffset()
        if several:
            del start["initial"]
        else:
            start = {"servers": {name: {"token": each["token"]} for name, each in start["servers"].items()}}
            start["initial"] = True
        insert(one, 1)
        insert(two, 2)
        reader.prepareForTriggerAvailableNow()
        rows: list[Row] = []
        while (end := advance(reader, start)) != start:
            rows += rows_of(reader, start, end)
            start = end
        found = [row["server"] for row in rows if row["operationType"] in {"insert", "snapshot"}]
        assert sorted(found) == sorted([server_name(one.uri), server_name(two.uri)])
        reader.stop()


def test_snapshots_of_several_servers_share_the_bytes_of_a_batch() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        for server in (one, two):
            with MongoClient[Row](server.uri) as client:
                client.d.c.insert_many([{"_id": key, "text": "x" * 10_000} for key in range(30)])
        reader = reader_of(one, two, startingPosition="snapshot", maxBytesPerTrigger="100000")
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        counts = []
        while (end := advance(reader, start)) != start:
            counts.append(sum(row["operationType"] == "snapshot" for row in rows_of(reader, start, end)))
            start = end
        assert sum(counts) == 60
        assert max(counts) <= 10, "100,000 bytes are ten documents, of both servers"
        reader.stop()


def test_offsets_of_0_1_0_within_a_snapshot_are_read() -> None:
    with headrace.Server() as server:
        insert(server, *range(4))
        stream = stream_of(server, startingPosition="snapshot")
        end = {"token": stream.initial_offset()["token"]}
        begun, first = end | {"after": ""}, end | {"after": dumps({"_id": 0}), "single": True}
        last = end | {"after": dumps({"_id": 3}), "single": False, "last": True}
        events = kinds(stream, begun, first) + kinds(stream, first, last) + kinds(stream, last, end)
        assert events == [("snapshotBegin", None), *(("snapshot", key) for key in range(4)), ("snapshotEnd", None)]
        assert kinds(stream, begun, stream.latest_offset(begun)) == events[:2]
        assert kinds(stream, first, stream.latest_offset(first)) == events[2:5]
        assert kinds(stream, last, stream.latest_offset(last)) == events[5:]
