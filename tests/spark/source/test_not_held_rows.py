"""The source ends with collection, `_id` and reason where a table would change BSON; `bson` has the bytes."""

from __future__ import annotations

from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pyspark.sql.types import StructType

from headrace.spark.masks.mask import parse_mask
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.not_held import NotHeld
from headrace.spark.source.readers import BatchReader
from headrace.spark.stream.offsets import SnapshotPiece
from headrace.spark.stream.partitions import EventRange, PastPartition, SnapshotPieces
from headrace.spark.timetravel.snapshot import Snapshot
from tests.spark.rows.test_not_held import CASES, DUPLICATE, element, inside

Db = Database[dict[str, Any]]
KINDS = list(CASES)
TEXTS = StructType().add("documentKey", "string").add("fullDocument", "string")
BYTES = StructType().add("token", "string").add("fullDocument", "binary")


def read(options: SourceOptions, schema: StructType, partition: Any) -> list[Any]:
    return [
        value
        for batch in BatchReader(options, schema)._batches(partition)
        for value in batch.column("fullDocument").to_pylist()
        if value is not None
    ]


def partition_of(options: SourceOptions, kind: str, data: bytes, database: Db) -> Any:
    """The document as an event, in a snapshot, or as it was before it was replaced."""
    stream = MongoDBStream(options)
    start = stream.resolve(StreamPosition("latest"))
    raw: Any = RawBSONDocument(data)
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_one(raw)
    end = stream.end_at(stream.now())
    if kind == "event":
        return EventRange(start, end)
    if kind == "past":
        database.c.replace_one({"_id": 1}, {"x": 1})
        return PastPartition(end)
    (chunk,) = Snapshot(options).chunks(10)
    piece = SnapshotPiece(f"{database.name}.c", end, first=False, chunks=(chunk,), last=False)
    return SnapshotPieces((piece,))


@pytest.mark.parametrize("way", ["event", "snapshot", "past"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_held_ends_the_query_with_its_name(uri: str, database: Db, way: str, kind: str) -> None:
    data, reason = CASES[kind]
    options = SourceOptions(uri, database.name, "c")
    partition = partition_of(options, way, data, database)
    assert read(options, BYTES, partition) == [data]
    with pytest.raises(NotHeld) as raised:
        read(options, TEXTS, partition)
    message = str(raised.value)
    assert message.startswith(f'{database.name}.c: the document {{"_id":{{"$numberInt":"1"}}}} has BSON')
    assert reason in message and "\n" not in message


@pytest.mark.parametrize("schema", [TEXTS, BYTES])
def test_a_masked_row_that_is_not_held_ends_the_query_as_well(uri: str, database: Db, schema: StructType) -> None:
    mask = parse_mask('{"omit": ["secret"], "key": "env:HEADRACE_NO_KEY"}', lambda _: "key")
    options = SourceOptions(uri, database.name, "c", mask=mask)
    partition = partition_of(options, "event", CASES["duplicate"][0], database)
    with pytest.raises(NotHeld, match="the field x is there twice"):
        read(options, schema, partition)


def test_a_row_that_stages_of_the_reader_would_change_ends_the_query(uri: str, database: Db) -> None:
    options = SourceOptions(uri, database.name, "c", reader=({"$match": {}},))
    partition = partition_of(options, "event", CASES["symbol"][0], database)
    with pytest.raises(NotHeld, match="x is a symbol"):
        read(options, BYTES, partition)


@pytest.mark.parametrize("way", ["event", "snapshot"])
def test_a_job_with_dead_letters_gets_marks(uri: str, database: Db, way: str) -> None:
    options = SourceOptions(uri, database.name, "c", not_held="mark")
    partition = partition_of(options, way, CASES["undefined"][0], database)
    assert read(options, TEXTS, partition) == ['{"$notHeld":"x is undefined"}']


def test_a_key_that_is_not_held_ends_the_query_in_any_case(uri: str, database: Db) -> None:
    data = inside(element(3, DUPLICATE, b"_id"))
    options = SourceOptions(uri, database.name, "c", not_held="mark")
    partition = partition_of(options, "event", data, database)
    with pytest.raises(NotHeld, match=r"documentKey: the field _id\.a is there twice"):
        read(options, TEXTS, partition)
