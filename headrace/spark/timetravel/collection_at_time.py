"""A collection at one cluster time, in ranges of `_id`s that tasks read in parallel with read concern `snapshot`.

Rule: the ranges have each document of that time exactly once, wherever they begin. A range is a part of the index on
`_id`, from one key, inclusive, to another, exclusive; the first range has no lower bound and the last no upper bound.

The server must keep the time for as long as the tasks take: a Headrace for an hour, a MongoDB for
`minSnapshotHistoryWindowInSeconds`, five minutes by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bson import Timestamp
from pymongo.collection import Collection

from headrace import limits
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Snapshot, batches_at
from headrace.values.arrow.event_columns import EventRow
from headrace.values.bson import decode, encode


@dataclass(frozen=True, slots=True)
class DocumentRange(ReadPartition):
    """A partition: the documents with keys from `low` to before `high`. A bound is BSON of {"_id": key}, or empty."""

    token: Token
    time: Timestamp
    low: bytes = b""
    high: bytes = b""

    def rows(self, options: SourceOptions) -> Iterator[EventRow]:
        snapshot = Snapshot(options)
        bounds: dict[str, Any] = {name: decode(key) for name, key in (("min", self.low), ("max", self.high)) if key}
        hinted = {"hint": {"_id": 1}, **bounds} if bounds else {}
        for _, batch in batches_at(_collection(options), self.time, **hinted):
            for document in batch:
                yield snapshot.row(self.token, document)


def key_ranges(options: SourceOptions, count: int) -> list[DocumentRange]:
    """Return the collection at present, in up to `count` ranges of similar size; in more if it is large.

    Raise NoSnapshotRead.
    """
    collection = _collection(options)
    keys: dict[str, Any] = {"projection": {"_id": 1}, "limit": 1}
    time, _ = next(batches_at(collection, **keys))
    rows = collection.estimated_document_count()
    count = max(min(count, rows), min(rows // limits.SNAPSHOT_RANGE_ROW_COUNT, limits.SNAPSHOT_RANGE_COUNT_MAX))
    bounds = [b""]
    for number in range(1, count):
        start = {"min": decode(bounds[-1])} if bounds[-1] else {}
        skip = rows * number // count - rows * (number - 1) // count
        _, found = next(batches_at(collection, time, **keys, hint={"_id": 1}, sort={"_id": 1}, **start, skip=skip))
        if not found:
            break
        bounds.append(encode({"_id": found[0]["_id"]}))
    token = MongoDBStream(options).end_at(time)
    return [DocumentRange(token, time, low, high) for low, high in zip(bounds, [*bounds[1:], b""], strict=True)]


def _collection(options: SourceOptions) -> Collection[dict[str, Any]]:
    return client_of(options.uri)[options.database or ""][options.collection or ""]
