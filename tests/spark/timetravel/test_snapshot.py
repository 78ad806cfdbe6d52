"""A collection in chunks: every key once, and every row true at its token while writers write."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from pymongo.database import Database

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, description_option
from headrace.spark.mongodb.source_options import BatchLimits, SourceOptions, StreamPosition
from headrace.spark.rows.events import SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.source.options import parse_options
from headrace.spark.stream.offsets import in_snapshot
from headrace.spark.stream.read_ahead import read_ahead
from headrace.spark.stream.server_stream import ServerStream
from headrace.spark.tables.fold import MirrorRow, MirrorState, fold, keys_to_read
from headrace.spark.timetravel.snapshot import Chunk, Snapshot
from tests.spark.support.event_rows import row_of, text_row

Db = Database[dict[str, Any]]
MIXED: list[Any] = [
    MinKey(), None, float("nan"), -5, 2.5, Int64(7), Decimal128("8"), "", "a", "b", {"x": 1}, {"x": 2}, Binary(b"1", 5),
    ObjectId("0" * 24), ObjectId("f" * 24), False, True, DatetimeMS(0), DatetimeMS(9), Timestamp(1, 1), MaxKey(),
]  # fmt: skip


def rows_of(snapshot: Snapshot, rows_max: int) -> list[Row]:
    return [text_row(row) for chunk in snapshot.chunks(rows_max) for row in snapshot.read(chunk)]


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_keys_of_every_type_come_once_each_in_order(uri: str, database: Db, rows_max: int) -> None:
    database.c.insert_many([{"_id": key, "n": number} for number, key in enumerate(MIXED)])
    rows = rows_of(Snapshot(SourceOptions(uri, database.name, "c")), rows_max)
    assert [row.documentKey for row in rows] == [dumps({"_id": key}) for key in MIXED]


def test_an_empty_collection_has_no_chunk(uri: str, database: Db) -> None:
    assert Snapshot(SourceOptions(uri, database.name, "c")).next_chunk("", 10) is None


def test_a_key_beyond_the_last_chunk_is_in_the_next(uri: str, database: Db) -> None:
    database.c.insert_many([{"_id": number} for number in range(3)])
    snapshot = Snapshot(SourceOptions(uri, database.name, "c"))
    database.c.insert_one({"_id": 9})
    chunk = snapshot.next_chunk(dumps({"_id": 1}), 100)
    assert chunk and chunk.upto == dumps({"_id": 9})


def test_a_snapshot_ends_although_documents_are_inserted_behind_each_chunk(uri: str, database: Db) -> None:
    database.c.insert_many([{"_id": number} for number in range(10)])
    read = []
    for number, chunk in enumerate(Snapshot(SourceOptions(uri, database.name, "c")).chunks(5)):
        database.c.insert_one({"_id": 100 * (number + 1)})
        read.append((loads(chunk.upto)["_id"], chunk.last))
    assert read == [(0, False), (5, False), (100, False), (300, True)]


def test_a_snapshot_under_writers_and_the_events_after_it_give_the_collection(
    uri: str, database: Db, transport: str
) -> None:
    """The claim of each row, its token, is put to the proof: every event after it is applied, none before."""
    database.c.insert_many([{"_id": number, "a": [0]} for number in range(40)])
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = {"_id": number % 40}
            database.c.update_one(key, {"$push": {"a": number}})
            if number % 7 == 0:
                database.c.update_one(key, {"$push": {"a": {"$each": [], "$slice": 1}}})
            if number % 11 == 0:
                database.c.delete_one({"_id": (number + 3) % 40})
                database.c.insert_one({"_id": (number + 3) % 40, "a": [number]})

    options = SourceOptions(uri, database.name, "c")
    snapshot = Snapshot(options)
    start = MongoDBStream(options).resolve(StreamPosition("latest"))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        rows = [text_row(snapshot.begin_row(start)), *rows_of(snapshot, 6), text_row(snapshot.end_row(start))]
    finally:
        stop.set()
        writer.join()
    assert {rows[0].operationType, rows[-1].operationType} == {SNAPSHOT_BEGIN, SNAPSHOT_END}
    stream = dict.fromkeys(description_option(uri, database.name, "c"), True)
    feed = MongoDBStream(SourceOptions(uri, database.name, "c", stream=stream, transport=transport))
    end = read_ahead(feed).advance(start, BatchLimits(), until=feed.now(), wait_ms=20).token
    mirror: dict[str, MirrorRow] = {}
    state = MirrorState()
    for batch in (rows, [row_of(event) for event in feed.read(start, end)]):
        changes = fold(batch, state, {key: mirror[key] for key in keys_to_read(batch) if key in mirror})
        state = changes.state
        for key in changes.deletes:
            del mirror[key]
        mirror |= changes.upserts
    assert {key: row.document for key, row in mirror.items()} == {
        dumps(document["_id"]): dumps(document) for document in database.c.find()
    }


def test_a_chunk_has_about_as_many_bytes_as_a_batch_may_have(uri: str, database: Db) -> None:
    """Documents of 16 MB, the largest that there are."""
    for number in range(7):
        database.c.insert_one({"_id": number, "text": "x" * (limits.DOCUMENT_BYTES_MAX - 64)})
    options = SourceOptions(uri, database.name, "c", bytes_max=3 * limits.DOCUMENT_BYTES_MAX)
    counts, after, snapshot = [], "", Snapshot(options)
    while chunk := snapshot.next_chunk(after, 1000):
        counts.append(sum(1 for _ in snapshot.read(chunk)))
        after = chunk.upto
    assert counts == [1, 3, 3]
    one = Snapshot(SourceOptions(uri, database.name, "c", bytes_max=1))
    first = one.next_chunk("", 1000)
    assert first and one.next_chunk(first.upto, 1000) == Chunk(dumps({"_id": 1}), first.upto)


def test_large_documents_of_several_collections_are_split_by_bytes(uri: str, database: Db) -> None:
    for name in ("a", "b"):
        database[name].insert_many([{"_id": number, "text": "x" * 100_000} for number in range(30)])
    database.c.insert_one({"_id": 1})
    given = {"uri": uri, "database": database.name, "startingPosition": "snapshot", "maxBytesPerTrigger": "1000000"}
    stream = ServerStream(parse_options(given))
    offset, count = stream.initial_offset(), 0
    while in_snapshot(offset):
        offset, before = stream.latest_offset(offset), offset
        parts = stream.partitions(before, offset)
        columns = [batch.column(0) for part in parts for batch in part.read(stream.options, ("fullDocument",))]
        documents = [data for column in columns for data in column.to_pylist() if data is not None]
        assert sum(map(len, documents)) < 1_200_000
        count += len(documents)
    assert count == 61
