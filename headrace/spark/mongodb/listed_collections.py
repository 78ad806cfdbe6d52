"""The collections that exist: those that a stream follows, why some cannot be read, and which events have ended.

A collection that is dropped and created again, or replaced by a rename, has another UUID. If events say so, they are
read like any other, and the sinks' policies decide. If no event says so, the rows read so far are of another collection
than the next ones. This happens after maintenance without an oplog, or if a job without a checkpoint begins after the
drop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.collection_selection import DATABASES, Namespace, namespace_of, text_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost, client_of
from headrace.spark.mongodb.server_history import HistoryChanged
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token

KINDS: Final = {"timeseries": "a time-series collection", "view": "a view"}
"""Kinds of collections without a change stream, by the type that `listCollections` reports."""


@dataclass(frozen=True, slots=True)
class ListedCollections:
    """The selected collections, sorted, and those that cannot be read, with the reason."""

    names: tuple[str, ...]
    refused: dict[str, str]


def list_collections(options: SourceOptions) -> ListedCollections:
    """Return the collections that the options select. Raise pymongo's errors."""
    reasons = {text_of(name): refusal(one, options) for name, one in listed(options)}
    refused = {name: reason for name, reason in reasons.items() if reason}
    return ListedCollections(tuple(sorted(reasons.keys() - refused.keys())), refused)


def listed(options: SourceOptions) -> Iterator[tuple[Namespace, Mapping[str, Any]]]:
    """Yield the collections of one server that the options select or name, as `listCollections` reports them.

    Raise pymongo's errors.
    """
    client, named = client_of(options.uri), {} if options.collection is None else {"name": options.collection}
    for database in client.list_database_names() if options.database is None else [options.database]:
        if options.database is None and database in DATABASES:
            continue
        for one in client[database].list_collections(filter=named):
            if options.collection is not None or options.selection.matches((database, one["name"])):
                yield (database, one["name"]), one


def read_collections(options: SourceOptions) -> Iterator[Namespace]:
    """Yield the one collection that the options name, otherwise the collections that the user may list on each server.

    Raise pymongo's errors for servers that do not answer.
    """
    if options.database and options.collection:
        yield options.database, options.collection
        return
    for one in options.servers:
        with suppress(OperationFailure):
            yield from map(namespace_of, list_collections(one).names)


def refusal(listed: Mapping[str, Any], options: SourceOptions) -> str:
    """Return why a collection, as `listCollections` reports it, cannot be read; empty if it can."""
    kind = str(listed.get("type", ""))
    if kind in KINDS:
        return f"{KINDS[kind]}, which has no change stream"
    capped = listed.get("options", {}).get("capped") and options.capped == "skip"
    return "a capped collection: what it pushes out is in no event" if capped else ""


_ENDING: Final = ({"$match": {"operationType": {"$in": ["drop", "rename"]}}},)


class CollectionReplaced(HistoryChanged):
    """The collection was replaced since it was read, and no event that will be read says so."""


@dataclass(frozen=True, slots=True)
class CollectionIdentity:
    """The collection's UUID (empty: it did not exist). From the position `since` on it may have been replaced."""

    uuid: str
    since: int


def collection_uuids(options: SourceOptions) -> dict[str, str] | None:
    """Return the UUID of each collection of one server that is read, by namespace.

    Return None if the user lacks the privilege, and for the events of a database or a deployment without a selection.
    """
    if not options.several and not (options.database and options.collection):
        return None
    try:
        uuids = {text_of(name): one.get("info", {}).get("uuid") for name, one in listed(options)}
    except OperationFailure:
        return None
    return {name: bytes(uuid).hex() for name, uuid in uuids.items() if uuid is not None}


def ended_collections(options: SourceOptions, start: StreamPosition) -> set[str] | None:
    """Return the namespaces of one server that events from `start` on end or replace; None if that cannot be known.

    It cannot be known if the oplog does not reach back to `start` (a lost position is reported elsewhere), or if the
    stream ends, for example with its database.
    """
    # The stream finds events by their kind alone, and ignores the options that leave out events.
    stream = replace(options, pipeline=(), reader=(), stream={})
    mongodb = MongoDBStream(stream)
    try:
        names, closed = left_names(mongodb, mongodb.resolve(start))
    except PositionLost as error:
        if error.pruned:
            return None
        raise
    return None if closed else set(map(text_of, names))


def left_names(mongodb: MongoDBStream, after: Token) -> tuple[list[Namespace], bool]:
    """Return the old and new names in drops and renames since the token, and whether the stream has ended."""
    now, names = mongodb.now(), list[Namespace]()
    with mongodb.open(StreamPosition("token", token=after), stages=_ENDING, batch_rows=100) as cursor:
        while not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=20):
                names += [(name["db"], name["coll"]) for name in (event["ns"], event.get("to")) if name]
        return names, cursor.closed


def replaced_message(name: str, server: str, before: str, now: str) -> str:
    """Return the message of CollectionReplaced; `now` is empty for a collection that is gone."""
    became = f"is another collection (UUID {now}) than the one that was read ({before})" if now else "is gone"
    return (
        f"{name} on {server} {became}, and no event says that it was {'replaced' if now else 'dropped'}. Begin again "
        "from a snapshot, with onPositionLost = 'resnapshot' or after `headrace pipeline reset`"
    )
