"""Several collections as one stream, without Spark: random writes, drops and renames give each its documents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pyspark.sql.types import StringType, StructField, StructType

import headrace
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, description_option
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.collections_sink import rows_by_collection
from headrace.spark.sinks.contract import FOLDED_COLUMNS, MicroBatch
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import StreamReader
from headrace.spark.stream.offsets import Offset, ServerOffset
from tests.spark.tables.test_interleaved_snapshot import History, Mirror

pytestmark = pytest.mark.long

COLUMNS = [name for name in FOLDED_COLUMNS if name not in {"server", "wallTime"}]
SCHEMA = StructType([StructField(name, StringType(), name != "token") for name in COLUMNS])
NAMES = ("a", "b", "c", "log_1", "log_2", "not")


@pytest.fixture(autouse=True)
def both_ways(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MongoDBStream, "arrow", transport == "arrow")


@pytest.fixture
def server() -> Iterator[Any]:
    with headrace.Server() as server:
        yield server


def reader_of(server: Any, **more: str) -> StreamReader:
    options = {"uri": server.uri, "startingPosition": "snapshot", "awaitMs": "20"} | more
    described = description_option(server.uri, options.get("database"), None)
    return StreamReader(parse_options(options | described), SCHEMA)


class Tables:
    """A mirror and a history in memory for each collection; a batch is given to some twice."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.mirrors: dict[str, Mirror] = {}
        self.histories: dict[str, History] = {}

    def apply(self, reader: StreamReader, start: Offset, end: Offset, number: int, query: str = "q") -> None:
        for again in (False, True) if self.choose.random() < 0.3 else (False,):
            import pyarrow as pa

            batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
            if not batches:
                return
            table = pa.Table.from_batches(batches)
            for (_, name), rows in rows_by_collection(table, reader.options.selection):
                some: list[Row] = MicroBatch(query, number, rows).rows()
                # A crash between two tables: the first time only some have the batch.
                if again or self.choose.random() < 0.7:
                    self.mirrors.setdefault(name, Mirror()).apply(some, query, number)
                if again or self.choose.random() < 0.7:
                    self.histories.setdefault(name, History()).apply(some, query, number)
            if not again:
                self.apply_rest(table, reader, query, number)

    def apply_rest(self, table: Any, reader: StreamReader, query: str, number: int) -> None:
        for (_, name), rows in rows_by_collection(table, reader.options.selection):
            some: list[Row] = MicroBatch(query, number, rows).rows()
            self.mirrors.setdefault(name, Mirror()).apply(some, query, number)
            self.histories.setdefault(name, History()).apply(some, query, number)


def change(database: Any, choose: random.Random, number: int) -> None:
    """One write or, now and then, a drop or a rename."""
    collection, other = (database[choose.choice(NAMES)] for _ in range(2))
    match choose.randrange(24):
        case 0:
            collection.drop()
        case 1:
            # It is not there, or the other one is.
            with suppress(OperationFailure):
                collection.rename(other.name, dropTarget=choose.random() < 0.7)
        case 2:
            collection.aggregate([{"$match": {}}, {"$out": other.name}])
        case 3 | 4 | 5:
            collection.delete_one({"_id": choose.randrange(12)})
        case 6 | 7:
            collection.replace_one({"_id": choose.randrange(12)}, {"list": [number]}, upsert=True)
        case _:
            update = {"$push": {"list": number}, "$inc": {"n": 1}}
            collection.update_one({"_id": choose.randrange(12)}, update, upsert=True)


@pytest.mark.parametrize("seed", range(4))
def test_every_selected_collection_is_what_the_server_has(server: Any, seed: int) -> None:
    choose = random.Random(seed)
    more = {"database": "d", "collections": "a, b, c, log_*", "partitions": str(choose.choice([1, 2]))}
    tables = Tables(choose)
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in NAMES[:5]:
            client.d[name].insert_many([{"_id": key, "list": []} for key in range(choose.randrange(1, 12))])
        reader = reader_of(server, maxRowsPerTrigger=str(choose.choice([3, 8, 20])), **more)
        start = reader.initialOffset()
        for number in range(60):
            for _ in range(choose.randrange(6)):
                change(client.d, choose, number)
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            for _ in range(choose.randrange(4)):
                change(client.d, choose, number)
            if end != start:
                tables.apply(reader, start, end, number)
            start = end
            if choose.random() < 0.1:
                # The job is started again.
                reader.stop()
                reader = reader_of(server, maxRowsPerTrigger="8", **more)
        reader.prepareForTriggerAvailableNow()
        number = 100
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            tables.apply(reader, start, end, number)
            start, number = end, number + 1
        reader.stop()
        assert not ServerOffset.of(start).in_snapshot
        expected = {
            name: {dumps(each["_id"]): dumps(each) for each in client.d[name].find()}
            for name in client.d.list_collection_names()
            if name in NAMES[:5] and client.d[name].find_one()
        }
    for each in (tables.mirrors, tables.histories):
        assert {name: table.documents() for name, table in each.items() if table.documents()} == expected


def caught_up(reader: StreamReader, start: Offset) -> Offset:
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        start = end
    return start


def test_a_rename_ends_the_batch_and_the_next_one_reads_the_collection(server: Any) -> None:
    more = {"database": "d", "collections": "a, b, c, log_*", "maxRowsPerTrigger": "20"}
    with MongoClient[dict[str, Any]](server.uri) as client:
        for name in ("a", "b", "c"):
            client.d[name].insert_many([{"_id": key} for key in range(3)])
        reader = reader_of(server, **more)
        start = caught_up(reader, reader.initialOffset())
        for old, new in (("a", "log_1"), ("b", "log_2")):
            client.d[old].rename(new)
            client.d[new].update_one({"_id": 1}, {"$set": {"n": 1}})
        client.d.c.rename("log_1", dropTarget=True)
        tables, waited = Tables(random.Random(1)), list[str]()
        for number in range(1, 9):
            if (end := reader.latestOffset(start, reader.getDefaultReadLimit())) == start:
                break
            offset = ServerOffset.of(end)
            assert [piece.name for piece in offset.snapshots] == waited
            waited = list(offset.waiting)
            tables.apply(reader, start, end, number)
            start = end
        assert number == 5 and not waited, "three renames, and the last snapshot"
        reader.stop()
        expected = {
            name: {dumps(each["_id"]): dumps(each) for each in client.d[name].find()} for name in ("log_1", "log_2")
        }
    for each in (tables.mirrors, tables.histories):
        assert {name: table.documents() for name, table in each.items() if table.documents()} == expected
