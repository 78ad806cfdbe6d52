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
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.find_at_time import RAW
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow import EventRow
from headrace.values.bson import decode, encode


class NoSnapshotRead(RuntimeError):
    """The server does not read a collection at one cluster time, or no longer at this one."""


@dataclass(frozen=True, slots=True)
class DocumentRange:
    """The documents with keys from `low` to before `high`, each as BSON of {"_id": key}; an empty bound is open."""

    token: Token
    time: Timestamp
    low: bytes = b""
    high: bytes = b""


def key_ranges(options: SourceOptions, count: int) -> list[DocumentRange]:
    """Return the collection at present, in up to `count` ranges of similar size; in more if it is large.

    Raise NoSnapshotRead.
    """
    mongodb = MongoDBStream(options)
    collection = mongodb.client[options.database or ""][options.collection or ""]
    (_, time), _ = _first_reply(mongodb, options, {"limit": 1, "projection": {"_id": 1}})
    rows = collection.estimated_document_count()
    count = max(min(count, rows), min(rows // limits.SNAPSHOT_RANGE_ROW_COUNT, limits.SNAPSHOT_RANGE_COUNT_MAX))
    bounds = [b""]
    for number in range(1, count):
        filters = {"hint": {"_id": 1}, "sort": {"_id": 1}, "projection": {"_id": 1}, "limit": 1}
        start = {"min": decode(bounds[-1])} if bounds[-1] else {}
        skip = rows * number // count - rows * (number - 1) // count
        _, found = _first_reply(mongodb, options, filters | start | {"skip": skip}, time)
        if not found:
            break
        bounds.append(encode({"_id": found[0]["_id"]}))
    token = mongodb.end_at(time)
    return [DocumentRange(token, time, low, high) for low, high in zip(bounds, [*bounds[1:], b""], strict=True)]


def documents_in(options: SourceOptions, part: DocumentRange) -> Iterator[EventRow]:
    """Yield the rows of the range's documents. Raise NoSnapshotRead."""
    mongodb, snapshot = MongoDBStream(options), Snapshot(options)
    bounds = {name: decode(key) for name, key in (("min", part.low), ("max", part.high)) if key}
    filters = {"hint": {"_id": 1}, **bounds} if bounds else {}
    with mongodb.client.start_session(causal_consistency=False) as session:
        (number, _), batch = _first_reply(mongodb, options, filters, part.time, session=session)
        while True:
            for document in batch:
                yield snapshot.row(part.token, document)
            if not number:
                return
            more = {"getMore": number, "collection": options.collection}
            reply = _asked(mongodb, options, more, session=session)
            number, batch = reply["id"], reply["nextBatch"]


def _first_reply(
    mongodb: MongoDBStream, options: SourceOptions, more: dict[str, Any], time: Timestamp | None = None, **given: Any
) -> tuple[tuple[int, Timestamp], list[RawBSONDocument]]:
    """Return the cursor's id, the time at which it reads, and its first documents."""
    concern = {"level": "snapshot"} | ({"atClusterTime": time} if time else {})
    reply = _asked(mongodb, options, {"find": options.collection, **more, "readConcern": concern}, **given)
    read_at = reply.get("atClusterTime")
    if read_at is None:
        raise NoSnapshotRead("the server does not say at which cluster time it reads: it is no replica set")
    return (reply["id"], read_at), reply["firstBatch"]


def _asked(mongodb: MongoDBStream, options: SourceOptions, command: dict[str, Any], **given: Any) -> dict[str, Any]:
    try:
        reply = mongodb.client[options.database or ""].command(command, codec_options=RAW, **given)
    except OperationFailure as error:
        raise NoSnapshotRead(
            f"{options.database}.{options.collection} cannot be read at one cluster time: {error}"
        ) from error
    cursor: dict[str, Any] = reply["cursor"]
    return cursor
