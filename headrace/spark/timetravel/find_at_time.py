"""A `find` at one cluster time, with read concern `snapshot`: MongoDB from 5.0 on, and Headrace.

It is sent as a command, because pymongo's snapshot sessions do not report the time at which they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, OperationFailure

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import RAW
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.not_held import NotHeld
from headrace.values.bson import decode


class NoSnapshotRead(RuntimeError):
    """The server does not read a collection at one cluster time, or no longer at this one."""


class StoredDocument(dict[str, Any]):
    """A decoded document, with its bytes in `raw`, because decoding changes some values."""

    raw: bytes

    @classmethod
    def of(cls, raw: bytes) -> StoredDocument:
        """Return the document of these bytes."""
        stored = cls(decode(raw))
        stored.raw = raw
        return stored


def by_key(documents: Iterable[RawBSONDocument]) -> dict[str, StoredDocument]:
    """Return the documents by the text of their key. Raise NotHeld if two keys have the same text."""
    found: dict[str, StoredDocument] = {}
    for document in documents:
        stored = StoredDocument.of(bytes(document.raw))
        key = dumps(stored["_id"])
        if key in found:
            raise NotHeld(f"two documents of the collection have the _id {key} in Extended JSON, and differ as BSON")
        found[key] = stored
    return found


@dataclass(frozen=True, slots=True)
class TimedDocuments:
    """Documents by the text of their key, at one time: with every event up to that time, and no later one."""

    documents: dict[str, StoredDocument]
    time: Timestamp


def batches_at(
    collection: Collection[dict[str, Any]], time: Timestamp | None = None, **fields: Any
) -> Iterator[tuple[Timestamp, list[RawBSONDocument]]]:
    """Yield the batches of a `find` with these fields, at `time` or at a time that the server chooses, each with that
    time. Raise NoSnapshotRead."""
    concern: dict[str, Any] = {"level": "snapshot"} | ({"atClusterTime": time} if time else {})
    database, name = collection.database, collection.name
    with database.client.start_session(causal_consistency=False) as session:
        given: dict[str, Any] = {"codec_options": RAW, "session": session}
        try:
            cursor = database.command("find", name, **fields, readConcern=concern, **given)["cursor"]
            read_at: Timestamp | None = cursor.get("atClusterTime")
            if read_at is None:
                raise NoSnapshotRead("the server does not say at which cluster time it reads: it is no replica set")
            yield read_at, cursor["firstBatch"]
            while cursor["id"]:
                cursor = database.command("getMore", cursor["id"], collection=name, **given)["cursor"]
                yield read_at, cursor["nextBatch"]
        except OperationFailure as error:
            raise NoSnapshotRead(f"{collection.full_name} cannot be read at one cluster time: {error}") from error


def find_at(
    collection: Collection[dict[str, Any]], keys: list[Any], time: Timestamp | None = None
) -> TimedDocuments | None:
    """Return the documents with these `_id`s at `time`, or at a time that the server chooses; None if it cannot.

    The reason is not reported: a standalone or old server, a time that is too old, or an unreachable server. The caller
    then reads in another way, which reports errors.
    """
    documents: dict[str, StoredDocument] = {}
    batch_rows = limits.ROW_COUNT_UNBOUNDED - 1
    try:
        for read_at, batch in batches_at(collection, time, filter={"_id": {"$in": keys}}, batchSize=batch_rows):
            documents |= by_key(batch)
            time = read_at
    except (ConnectionFailure, NoSnapshotRead):
        return None
    assert time is not None
    return TimedDocuments(documents, time)
