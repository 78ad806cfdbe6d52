"""Compares the collections that a job has read with those that exist now, by their UUIDs.

If a collection was replaced or dropped and events say so, the sinks' policies decide; if no event says so, the position
is lost. A collection that appears while the job runs is identified when its first rows are committed. If a job has one
collection, it is identified when the end of the previous one is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Final

import pymongo
from pymongo.errors import ConnectionFailure, OperationFailure

from headrace import limits
from headrace.spark.jobs.checkpoint import JobRecord, ServerPosition
from headrace.spark.jobs.job_file import Job, JobError
from headrace.spark.mongodb.collection_selection import Namespace, namespace_of, text_of
from headrace.spark.mongodb.listed_collections import (
    KINDS,
    CollectionIdentity,
    CollectionReplaced,
    collection_uuids,
    ended_collections,
    list_collections,
    listed,
    replaced_message,
)
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.tables.progress import TableOwner
from headrace.values.position import from_timestamp, to_timestamp
from headrace.values.token import decode_token

Known = dict[str, CollectionIdentity]


def with_collections(
    options: SourceOptions, record: JobRecord, owners: Iterable[TableOwner], *, planned: bool
) -> tuple[JobRecord, tuple[str, ...]]:
    """Return the record with the present collections, and a line for each collection that was replaced or dropped.

    If the job has not `planned` a batch yet, `owners` are the owners of its tables. Raise CollectionReplaced if no
    event that the job will read says what became of a collection.
    """
    now: Known = {}
    notices: list[str] = []
    tables = list(owners)
    for one in options.servers:
        since = from_timestamp(MongoDBStream(one).now())
        uuids = collection_uuids(one)
        if uuids is None:
            continue
        known = _known_of_checkpoint(options, one, record) if planned else _known_of_tables(one, record, tables)
        notices += _notices(one, known, uuids, planned=planned)
        names = uuids.keys() | known.keys() if one.several else [_namespace(one)]
        now |= {_key(options, one, name): CollectionIdentity(uuids.get(name, ""), since) for name in names if name}
    recorded = {**record.collections, **{name: asdict(identity) for name, identity in now.items()}}
    return replace(record, collections=recorded), tuple(notices)


def check_collection(job: Job, options: SourceOptions) -> None:
    """Raise JobError for a namespace that is not a collection, or whose changes are not all events."""
    if not options.collection:
        _check_named(options, folds=job.folds)
        return
    try:
        each = [one for _, one in listed(options)]
    except OperationFailure:
        return  # unknown without the privilege; the stream itself raises if it may not read
    if not each:
        return
    name = f"{options.database}.{options.collection}"
    if kind := KINDS.get(each[0].get("type", "")):
        raise JobError(f"{name} is {kind}, which has no change stream: read the collection that it is made of")
    if each[0].get("options", {}).get("capped") and job.folds:
        kinds = ", ".join(sink.kind for sink in job.sinks if sink.folds)
        raise JobError(
            f"{kinds}: {name} is a capped collection; what it pushes out is in no event, and would stay in the copy. "
            "Take the sink 'changes'"
        )


def _check_named(options: SourceOptions, *, folds: bool) -> None:
    """Raise JobError for a collection that cannot be read, if the job selects it by name and not by a pattern."""
    if not options.several:
        return
    try:
        refused = list_collections(replace(options, capped="skip" if folds else "read")).refused
    except OperationFailure:
        return  # unknown without the privilege; the stream itself raises if it may not read
    for name, reason in refused.items():
        if {name, name.partition(".")[2]} & set(options.collections):
            raise JobError(f"{name} is {reason}: leave it out")


class SeenCollections:
    """The collections that a running job has seen. `record` is the record at its start."""

    def __init__(self, options: SourceOptions, record: JobRecord) -> None:
        self._options = options
        self._known = {name for name, each in record.collections.items() if each["uuid"]}
        self._invalidated: set[Token] = set()

    def after(
        self, record: JobRecord, committed: Iterable[Mapping[Namespace, bool]], ends: Iterable[ServerPosition] = ()
    ) -> JobRecord:
        """Return the record after a batch. `committed` has each sink's collections, and whether they ended in the
        batch.

        The stream of a single collection ends with the collection, by an invalidate, and so does the batch: at `ends`.
        The server is asked for each new collection. If it does not answer, it is asked again after the next batch.
        """
        single = _namespace(self._options)
        self._known -= self._ended(ends) if single else set()
        names = {single: False} if single else dict[str, bool]()
        for each in committed:
            names |= {text_of(name): ended or names.get(text_of(name), False) for name, ended in each.items()}
        collections = dict(record.collections)
        for one in self._options.servers:
            keys = {_key(self._options, one, name): name for name in names}
            self._known -= {key for key, name in keys.items() if names[name]}
            new = keys.keys() - self._known
            try:
                with pymongo.timeout(limits.START_CHECK_SECONDS_MAX):
                    since = from_timestamp(MongoDBStream(one).now()) if new else 0
                    uuids = collection_uuids(one) if new else {}
            except ConnectionFailure:
                continue
            if uuids is None:
                self._known |= new  # they may stay unknown without the privilege
                continue
            collections |= {key: asdict(CollectionIdentity(uuids.get(keys[key], ""), since)) for key in sorted(new)}
            self._known |= {key for key in new if keys[key] in uuids}
        return replace(record, collections=collections)

    def _ended(self, ends: Iterable[ServerPosition]) -> set[str]:
        """Return the servers whose collection ended in this batch. An end token counts once: a snapshot keeps it."""
        invalidated = {end.token: end.server for end in ends if decode_token(end.token.document()).from_invalidate}
        new = invalidated.keys() - self._invalidated
        self._invalidated = set(invalidated)
        return {invalidated[token] or server_name(self._options.uri) for token in new}


def _notices(options: SourceOptions, known: Known, uuids: dict[str, str], *, planned: bool) -> list[str]:
    changed = {name: each for name, each in known.items() if each.uuid and each.uuid != uuids.get(name, "")}
    if not changed:
        return []
    since = to_timestamp(min(each.since for each in changed.values()))
    ended = ended_collections(options, StreamPosition("time", time=since) if planned else options.start)
    server = server_name(options.uri)
    for name, each in changed.items():
        if ended is not None and name not in ended:
            raise CollectionReplaced(replaced_message(name, server, each.uuid, uuids.get(name, "")))
    return [
        f"{name} on {server} was dropped or replaced since the last start: the events say so, and the policy of each "
        "sink what follows"
        for name in sorted(changed)
    ]


def _known_of_checkpoint(options: SourceOptions, one: SourceOptions, record: JobRecord) -> Known:
    """Return the collections of one server that were read according to the checkpoint, by namespace."""
    if one.several:
        start = _key(options, one, "")
        keys = {key.removeprefix(start): key for key in record.collections if key.startswith(start)}
        names = [name for name in keys if one.selection.matches(namespace_of(name))]
        return {name: CollectionIdentity(**record.collections[keys[name]]) for name in names}
    known = record.collections.get(server_name(one.uri))
    return {_namespace(one): CollectionIdentity(**known)} if known else {}


def _known_of_tables(options: SourceOptions, record: JobRecord, owners: list[TableOwner]) -> Known:
    """Return the collections that the tables' owners name, for a job that begins without a snapshot."""
    if record.snapshot or options.start.kind == "snapshot":
        return {}
    server = server_name(options.uri)
    uuids = [owner.collections[server] for owner in owners if server in owner.collections]
    return {_namespace(options): CollectionIdentity(uuids[0], 0)} if uuids else {}


def _namespace(options: SourceOptions) -> str:
    """Return the namespace of a single collection; otherwise empty."""
    return text_of((options.database, options.collection)) if options.database and options.collection else ""


def _key(options: SourceOptions, one: SourceOptions, name: str) -> str:
    """Return the name of a collection in the record: the server's, its own, or both if there are several of both."""
    if not one.several:
        return server_name(one.uri)
    return f"{server_name(one.uri)} {name}" if options.others else name


_KIND: Final = ({"$project": {"operationType": 1}},)


def check_beginning(options: SourceOptions, reached: str, sink: SinkOptions) -> None:
    """Raise JobError if the sink's table, which has everything up to the token `reached`, would miss documents.

    An empty `reached` stands for a new table. `options` are of one server. Raise PositionLost.
    """
    start = MongoDBStream(options).resolve(options.start)
    if reached:
        if start > Token(reached):
            raise JobError(
                f"the sink {sink} has everything up to {reached}, and startingPosition is later: what lies between "
                "would be missing; set it to 'snapshot'"
            )
    elif not begins_with_creation(options, start):
        raise JobError(
            f"the sink {sink}: documents that {options.database}.{options.collection} had before startingPosition "
            f"'{options.start.kind}' would be missing, as its creation is not among the events from there: set "
            "startingPosition to 'snapshot'"
        )


def begins_with_creation(options: SourceOptions, start: Token) -> bool:
    """Whether the collection's first event from `start` on is its creation, or the collection has no document yet.

    Look at one event of one server. Raise PositionLost, and pymongo's errors.
    """
    assert options.database
    assert options.collection
    # The stream has only the event's kind, and ignores the options that leave out events.
    mongodb = MongoDBStream(replace(options, pipeline=(), reader=(), stream={"showExpandedEvents": True}))
    empty = client_of(options.uri)[options.database][options.collection].find_one(projection={"_id": 1}) is None
    now = mongodb.now()
    with mongodb.open(StreamPosition("token", token=start), stages=_KIND, batch_rows=1) as cursor:
        while not cursor.covers(now) and not cursor.closed:
            for event in cursor.next_batch(wait_ms=20):
                return bool(event["operationType"] == "create")
    return empty
