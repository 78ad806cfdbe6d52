"""Both ways of reading a range, Arrow from a Headrace and BSON through pymongo, give the same rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64, ObjectId
from pymongo.database import Database

import headrace.spark.stream.read_ahead
from headrace import limits
from headrace.spark.mongodb.event_ranges import ARROW_ROWS, joined, read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader
from headrace.spark.stream.read_ahead import read_ahead
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import decode, encode
from headrace.values.keystring.encoding import encode_value
from tests.spark.support.event_rows import row_of, text_row

Db = Database[dict[str, Any]]
KEYS: list[Any] = [1, 2.5, Int64(3), Decimal128("4.0"), "five", ObjectId("6" * 24), {"seven": 7}, True, None]


def way(uri: str, database: Db, transport: str, **more: Any) -> MongoDBStream:
    return MongoDBStream(SourceOptions(uri, database.name, "c", transport=transport, **more))


def table(feed: MongoDBStream, start: Token, end: Token, **slices: int) -> pa.Table:
    batches = list(read_range(feed, start, end, COLUMNS, **slices))
    return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in COLUMNS})


def history(database: Db) -> None:
    """All operations, on keys of many types, with transactions, reshaped by nobody."""
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_many([{"_id": key, "n": number} for number, key in enumerate(KEYS)])
    with database.client.start_session() as session, session.start_transaction():
        for key in KEYS:
            database.c.update_one({"_id": key}, {"$set": {"m": [1, {"x": key}]}}, session=session)
    database.c.replace_one({"_id": 1}, {"other": "document"})
    for key in KEYS:
        database.c.delete_one({"_id": key})
    database.c.create_index("m")


def test_both_ways_give_the_same_rows_and_they_are_the_events(uri: str, database: Db) -> None:
    more: dict[str, Any] = {"stream": {"fullDocumentBeforeChange": "whenAvailable", "showExpandedEvents": True}}
    feeds = [way(uri, database, transport, **more) for transport in ("arrow", "bson")]
    start = feeds[0].resolve(StreamPosition("latest"))
    history(database)
    end = read_ahead(feeds[1]).advance(start, BatchLimits(), until=feeds[1].now(), wait_ms=20).token
    assert read_ahead(feeds[0]).advance(start, BatchLimits(), until=feeds[0].now(), wait_ms=20).token.time >= end.time
    first, second = (table(feed, start, end) for feed in feeds)
    assert first.equals(second)
    raw = [row for batch in feeds[0].read_raw(start, end) for row in map(row_of, map(decode, batch))]
    micro = [[*row.values()] for row in first.cast(pa.schema([plain(field) for field in first.schema])).to_pylist()]
    assert [text_row(row) for row in micro] == raw
    assert len(raw) == 3 * len(KEYS) + 3  # and create, replace, createIndexes


def test_replies_of_few_rows_become_batches_of_many() -> None:
    rows = [pa.record_batch({"n": list(range(start, start + 1500))}) for start in range(0, 45_000, 1500)]
    batches = list(joined(rows))
    assert [batch.num_rows for batch in batches] == [9000] * 5
    assert pa.Table.from_batches(batches) == pa.Table.from_batches(rows)
    assert max(batch.num_rows for batch in batches) <= ARROW_ROWS
    large = [pa.record_batch({"n": [b"x" * (limits.ROW_BATCH_BYTES_MAX // 2)]}) for _ in range(3)]
    assert [batch.num_rows for batch in joined(large)] == [1, 1, 1]
    assert not list(joined([]))


def plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.int64()) if pa.types.is_timestamp(field.type) else field


def test_reshaped_events_lose_nothing_either_way(uri: str, database: Db) -> None:
    pipeline = ({"$set": {"wallTime": "noon", "fullDocument": {"$size": "$fullDocument.list"}, "more": 1}},)
    feeds = [way(uri, database, transport, pipeline=pipeline) for transport in ("arrow", "bson")]
    start = feeds[0].resolve(StreamPosition("latest"))
    database.c.insert_one({"_id": 1, "list": [1, 2]})
    end = read_ahead(feeds[1]).advance(start, BatchLimits(), until=feeds[1].now(), wait_ms=20).token
    first, second = (table(feed, start, end) for feed in feeds)
    assert first.equals(second)
    row = first.to_pylist()[0]
    assert decode(row["other"]) == {"wallTime": "noon", "fullDocument": 2, "more": 1}
    assert row["wallTime"] is None and row["fullDocument"] is None


@pytest.mark.parametrize("slices", [2, 3])
def test_slices_divide_a_range_by_key_and_preserve_each_documents_order(
    uri: str, database: Db, transport: str, slices: int
) -> None:
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    history(database)
    database.c.insert_one({"_id": 1.0})  # the key 1 was deleted, and is back as another type
    database.c.drop()
    end = read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20).token
    all_rows = table(feed, start, end).to_pylist()
    slice_rows = [table(feed, start, end, slice_=number, slices=slices).to_pylist() for number in range(slices)]
    assert sorted(row["token"] for rows_of_slice in slice_rows for row in rows_of_slice) == [
        row["token"] for row in all_rows
    ]
    slice_of_key: dict[bytes, int] = {}
    for number, rows_of_slice in enumerate(slice_rows):
        assert [row["token"] for row in rows_of_slice] == sorted(row["token"] for row in rows_of_slice)
        for row in rows_of_slice:
            key = row["documentKey"] and encode_value(decode(row["documentKey"])["_id"])
            assert slice_of_key.setdefault(key, number) == number
    assert len(set(slice_of_key.values())) > 1


def test_columns_that_nobody_wants_do_not_come(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    database.c.insert_one({"_id": 1})
    end = read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20).token
    (batch,) = read_range(feed, start, end, ["fullDocument", "token"])
    assert batch.schema.names == ["fullDocument", "token"]
    assert batch.column(0).to_pylist() == [encode({"_id": 1})]


def test_a_bound_of_bytes_cuts_where_the_events_sizes_say(uri: str, database: Db, transport: str) -> None:
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    for number in range(6):
        database.c.insert_one({"_id": number, "text": "x" * 10_000})
    ahead = read_ahead(feed, sizes=True)
    first = ahead.advance(start, BatchLimits(bytes=25_000), until=feed.now(), wait_ms=20)
    assert first.rows == 2
    assert table(feed, start, first.token).num_rows == 2
    assert ahead.advance(first.token, BatchLimits(bytes=1), until=feed.now(), wait_ms=20).rows == 1


def test_a_range_continues_after_a_key_whose_type_is_not_in_its_token(uri: str, database: Db) -> None:
    """Text alone is kept of a token that comes as Arrow; its type bits are not needed to go on."""
    feed = way(uri, database, "arrow")
    last = feed.resolve(StreamPosition("latest"))
    database.c.insert_many([{"_id": key} for key in KEYS])
    ahead, row_count = read_ahead(feed), 0
    for _ in KEYS:
        end = ahead.advance(last, BatchLimits(1), until=None, wait_ms=20).token
        row_count += table(feed, last, end).num_rows
        last = end
    assert row_count == len(KEYS)


def test_a_batch_by_time_has_ranges_of_like_size_and_each_event_once(
    uri: str, database: Db, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTITION_ROW_COUNT_MIN", 10)
    monkeypatch.setattr(headrace.spark.stream.read_ahead, "_RUN_ROWS", 10)
    feed = way(uri, database, transport)
    start = feed.resolve(StreamPosition("latest"))
    for number in range(200):
        database.c.insert_one({"_id": number})
    given = {"uri": uri, "database": database.name, "collection": "c", "partitions": "4", "transport": transport}
    parsed = parse_options(given | {"startingposition": start.text, "partitionby": "time"})
    parts = BatchReader(parsed, None).partitions()  # type: ignore[arg-type]
    assert len(parts) == 4
    each = [list(part.read(parsed, ["documentKey"])) for part in parts]
    counts = [sum(batch.num_rows for batch in batches) for batches in each]
    assert sum(counts) == 200 and min(counts) >= 30
    keys = [decode(key)["_id"] for batches in each for batch in batches for key in batch.column(0).to_pylist()]
    assert keys == list(range(200))
