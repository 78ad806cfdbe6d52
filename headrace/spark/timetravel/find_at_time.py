"""A `find` at one cluster time, with read concern `snapshot`: MongoDB from 5.0 on, and Headrace.

It is sent as a command, because pymongo's snapshot sessions do not report the time at which they read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, OperationFailure

from headrace import limits
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.not_held import NotHeld
from headrace.values.bson import OPTIONS, decode

RAW: Final = OPTIONS.with_options(document_class=RawBSONDocument)


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


def find_at(
    collection: Collection[dict[str, Any]], keys: list[Any], time: Timestamp | None = None
) -> TimedDocuments | None:
    """Return the documents with these `_id`s at `time`, or at a time that the server chooses; None if it cannot.

    The reason is not reported: a standalone or old server, a time that is too old, or an unreachable server. The caller
    then reads in another way, which reports errors.
    """
    concern: dict[str, Any] = {"level": "snapshot"} | ({"atClusterTime": time} if time else {})
    database, name = collection.database, collection.name
    documents: dict[str, StoredDocument] = {}
    with database.client.start_session(causal_consistency=False) as session:
        try:
            cursor = database.command(
                "find", name, filter={"_id": {"$in": keys}}, readConcern=concern, codec_options=RAW,
                batchSize=limits.ROW_COUNT_UNBOUNDED - 1, session=session,
            )["cursor"]  # fmt: skip
            read_at: Timestamp | None = cursor.get("atClusterTime")
            batch = cursor["firstBatch"]
            while True:
                documents |= by_key(batch)
                if not cursor["id"]:
                    break
                cursor = database.command("getMore", cursor["id"], collection=name, codec_options=RAW, session=session)[
                    "cursor"
                ]
                batch = cursor["nextBatch"]
        except (ConnectionFailure, OperationFailure):
            return None
    return TimedDocuments(documents, read_at) if read_at is not None else None
