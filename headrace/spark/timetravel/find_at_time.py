"""A `find` at one cluster time, with read concern `snapshot`: MongoDB from 5.0 on, and Headrace.

Sent as commands: pymongo's snapshot sessions do not say at which time they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bson import Timestamp
from pymongo.collection import Collection
from pymongo.errors import ConnectionFailure, OperationFailure

from headrace import limits
from headrace.spark.rows.extjson import dumps
from headrace.values.bson import OPTIONS


@dataclass(frozen=True, slots=True)
class TimedDocuments:
    """Documents by their key's text, as they were at the time: with every event up to it, and no later one."""

    documents: dict[str, dict[str, Any]]
    time: Timestamp


def find_at(
    collection: Collection[dict[str, Any]], keys: list[Any], time: Timestamp | None = None
) -> TimedDocuments | None:
    """The documents with these `_id`s at `time`, or at one that the server chooses; None if it does not read so.

    Whether it never does (a standalone server, an old one), or no longer at that time, or is not reachable, is not
    said: who reads in another way is told.
    """
    concern: dict[str, Any] = {"level": "snapshot"} | ({"atClusterTime": time} if time else {})
    database, name = collection.database, collection.name
    documents: dict[str, dict[str, Any]] = {}
    with database.client.start_session(causal_consistency=False) as session:
        try:
            cursor = database.command(
                "find", name, filter={"_id": {"$in": keys}}, readConcern=concern, codec_options=OPTIONS,
                batchSize=limits.ROW_COUNT_UNBOUNDED - 1, session=session,
            )["cursor"]  # fmt: skip
            read_at: Timestamp | None = cursor.get("atClusterTime")
            batch = cursor["firstBatch"]
            while True:
                documents |= {dumps(document["_id"]): document for document in batch}
                if not cursor["id"]:
                    break
                cursor = database.command(
                    "getMore", cursor["id"], collection=name, codec_options=OPTIONS, session=session
                )["cursor"]
                batch = cursor["nextBatch"]
        except (ConnectionFailure, OperationFailure):
            return None
    return TimedDocuments(documents, read_at) if read_at is not None else None
