"""Which collection of a name was read: its UUID, and whether another one of the name took its place by events.

A collection that is dropped and created anew, or replaced by a rename, has another UUID. Where events say so, they are
read like any other, and the sinks' policies decide. Where none does (a server was maintained without its oplog, or a
job without a checkpoint begins after the drop), what was read is of another collection than what is to come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost, client_of
from headrace.spark.mongodb.server_history import HistoryChanged
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.values.position import from_timestamp, to_timestamp

_INVALIDATING = ("drop", "dropDatabase", "invalidate", "rename")


class CollectionReplaced(HistoryChanged):
    """The collection is another one than that which was read, and no event that is to be read says so."""


@dataclass(frozen=True, slots=True)
class CollectionIdentity:
    """The collection's UUID as hexadecimal digits; `since` is a position from which on it may have been replaced."""

    uuid: str
    since: int


def collection_identity(options: SourceOptions) -> CollectionIdentity | None:
    """The identity of the collection of one server; None if there is none, or the user may not know.

    A source of several collections has none.
    """
    if not (options.database and options.collection):
        return None
    since = from_timestamp(MongoDBStream(options).now())
    try:
        listed = list(client_of(options.uri)[options.database].list_collections(filter={"name": options.collection}))
    except OperationFailure:
        return None
    uuid: Any = listed[0].get("info", {}).get("uuid") if listed else None
    return None if uuid is None else CollectionIdentity(bytes(uuid).hex(), since)


def is_explained_by_events(options: SourceOptions, start: StreamPosition) -> bool:
    """Whether an event from `start` on ends the collection of one server; True if the oplog does not reach so far back.

    Then nobody can know, and a position that the oplog has lost is reported as such.
    """
    # An event is looked for by its kind alone, whatever the job leaves out.
    stream = replace(options, pipeline=(), reader=(), stream={})
    mongodb = MongoDBStream(stream)
    now = mongodb.now()
    kinds = ({"$match": {"operationType": {"$in": list(_INVALIDATING)}}},)
    try:
        begin = StreamPosition("token", token=mongodb.resolve(start))
        with mongodb.open(begin, stages=kinds, batch_rows=1) as cursor:
            while not cursor.covers(now) and not cursor.closed:
                for _ in cursor.next_batch(wait_ms=20):
                    return True
            return cursor.closed
    except PositionLost as error:
        if error.pruned:
            return True
        raise


def position_at(since: int) -> StreamPosition:
    """Where a stream begins that is to have every event from this position on."""
    return StreamPosition("time", time=to_timestamp(since))


def replaced_message(options: SourceOptions, before: str, now: str) -> str:
    """The message of CollectionReplaced."""
    return (
        f"{options.database}.{options.collection} on {server_name(options.uri)} is another collection (UUID {now}) "
        f"than the one that was read ({before}), and no event says that it was replaced. Begin again from a snapshot, "
        "with onPositionLost = 'resnapshot' or after `headrace pipeline reset`"
    )
