"""A server whose oplog is pruned, and a job that archives its collection."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from bson import Int64
from pymongo import MongoClient
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import headrace
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import stream_fingerprint
from headrace.spark.rows import events
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.log_sink import LogSink, changes_sink
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader, StreamReader
from headrace.spark.stream.offsets import Offset
from headrace.spark.tables.fold import MirrorRow, MirrorState, fold, keys_to_read
from headrace.values.arrow.event_columns import COLUMNS
from tests.spark.support.pruning import prune_to

_TYPES = dict.fromkeys(("clusterTime", "wallTime"), TimestampType()) | dict.fromkeys(
    ("clusterTimeIncrement", "txnNumber"), LongType()
)
SCHEMA = StructType([StructField(name, _TYPES.get(name, StringType()), name != "token") for name in COLUMNS])
KEYS: list[Any] = [*range(6), 2.5, Int64(7), "a", {"x": 1.0}, None]

Row = dict[str, Any]


class ArchivedServer:
    """A server, a job that archives its collection, and readers of both."""

    has_fingerprint = True
    """Whether the table names its stream; tables of older versions do not."""

    def __init__(self, server: headrace.Server, path: Path) -> None:
        self.server = server
        self.path = path
        self.client: MongoClient[Row] = MongoClient(server.uri)
        self.collection = self.client.d.c
        self._job = self.stream(archive="")
        self._at: Offset | None = None
        self._number = 0

    def options(self, **more: str) -> dict[str, str]:
        given = {"uri": self.server.uri, "database": "d", "collection": "c", "awaitMs": "20",
                 "archive": str(self.path)} | more  # fmt: skip
        return {name: value for name, value in given.items() if value}

    def stream(self, **more: str) -> StreamReader:
        return StreamReader(parse_options(self.options(**more)), SCHEMA)

    def read(self, **more: str) -> list[Row]:
        reader = BatchReader(parse_options(self.options(**more)), SCHEMA)
        return [
            row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()
        ]

    def begin(self, **more: str) -> None:
        """The job's first run; with its checkpoint lost, another one's."""
        self._job = self.stream(archive="", **more)
        self._at, self._query = self._job.initialOffset(), f"q{self._number}"
        self.archive()

    def archive(self) -> None:
        """Everything up to now goes to the table."""
        assert self._at is not None
        self._job.prepareForTriggerAvailableNow()
        while (end := advance(self._job, self._at)) != self._at:
            self.apply(self._query, self._number, self._job, self._at, end)
            self._at, self._number = end, self._number + 1

    def apply(self, query: str, number: int, job: StreamReader, start: Offset, end: Offset) -> None:
        """Gives the sink a batch."""
        rows = batches(job, start, end)
        table = pa.Table.from_batches(rows) if rows else pa.table({})
        self.sink(job).apply(MicroBatch(query, number, table))

    def sink(self, job: StreamReader) -> LogSink:
        """As a job opens it."""
        sink = changes_sink(self.path)
        sink.source = stream_fingerprint(job.options) if self.has_fingerprint else ""
        return sink

    def note(self) -> Token:
        """An empty batch, which ends at this token."""
        feed = MongoDBStream(self._job.options)
        token = feed.end_at(feed.now())
        self.sink(self._job).note(self._query, self._number, token.text)
        self._number += 1
        return token

    def write(self, random_: random.Random, count: int) -> None:
        for _ in range(count):
            key = {"_id": random_.choice(KEYS)}
            if random_.random() < 0.3:
                self.collection.delete_one(key)
            else:
                self.collection.update_one(key, {"$push": {"n": random_.random()}}, upsert=True)

    def everything(self) -> list[Row]:
        """All events, as they were before the oplog was pruned; the first two thirds are in the table."""
        random_ = random.Random(5)
        self.begin()
        assert self._at
        start = self._at["token"]
        self.write(random_, 20)
        with self.client.start_session() as session, session.start_transaction():
            for number in range(4):
                self.collection.insert_one({"_id": 100 + number}, session=session)
        self.archive()
        self.write(random_, 3)
        all_of_them = self.read(archive="", startingPosition=start)
        assert len(all_of_them) > 20
        self.prune()
        return all_of_them

    def prune(self) -> None:
        """The server's oplog keeps eight entries."""
        prune_to(self.server, 8)


def batches(reader: StreamReader, start: Offset, end: Offset) -> list[pa.RecordBatch]:
    return [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]


def advance(reader: StreamReader, start: Offset) -> Offset:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def run(reader: StreamReader, start: Offset) -> list[list[Row]]:
    """The batches of a run over what is available."""
    row_batches = []
    reader.prepareForTriggerAvailableNow()
    while (end := advance(reader, start)) != start:
        row_batches.append([row for batch in batches(reader, start, end) for row in batch.to_pylist()])
        start = end
    reader.stop()
    return row_batches


def tokens(rows: list[Row]) -> list[str]:
    return [row["token"] for row in rows]


class MirroredCollection:
    """What a mirror makes of batches of rows."""

    def __init__(self) -> None:
        self.documents: dict[str, MirrorRow] = {}
        self._state = MirrorState()

    def take(self, given: list[Row]) -> None:
        rows = [events.Row(**{name: row[name] for name in events.Row._fields if name in row}) for row in given]
        changes = fold(
            rows, self._state, {key: self.documents[key] for key in keys_to_read(rows) if key in self.documents}
        )
        self._state = changes.state
        if changes.clear:
            self.documents.clear()
        for key in changes.deletes:
            del self.documents[key]
        self.documents |= changes.upserts
        self.documents = {key: row for key, row in self.documents.items() if row.token >= changes.stale_before}

    def contents(self) -> list[str]:
        return sorted(stored.document for stored in self.documents.values())
