"""Holds the collections that a job has read against those that are there now, by their UUIDs.

One that is another now, or gone, is a matter of the sinks' policies if events say so, and a lost position if none does.
One that appears while the job runs is identified when the first of it is committed; where a job has one collection,
when the end of the one before is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

import pymongo
from pymongo.errors import ConnectionFailure, OperationFailure

from headrace import limits
from headrace.spark.jobs.checkpoint import ServerPosition
from headrace.spark.jobs.job_file import Job, JobError
from headrace.spark.jobs.job_record import JobRecord
from headrace.spark.mongodb.collection_identity import (
    CollectionIdentity,
    CollectionReplaced,
    collection_uuids,
    ended_collections,
    position_at,
    replaced_message,
)
from headrace.spark.mongodb.collection_selection import Namespace, namespace_of, text_of
from headrace.spark.mongodb.listed_collections import KINDS, list_collections
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.tokens import Token
from headrace.spark.tables.table_owner import TableOwner
from headrace.values.position import from_timestamp
from headrace.values.token import decode_token

Known = dict[str, CollectionIdentity]


def with_collections(
    options: SourceOptions, record: JobRecord, owners: Iterable[TableOwner], *, planned: bool
) -> tuple[JobRecord, tuple[str, ...]]:
    """The record with the collections that are there, and a line for each that is another one than before.

    `owners` are those of the tables of a job that has `planned` nothing yet. Raises CollectionReplaced if no event that
    the job will read says what became of a collection.
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
    """Raises JobError for what is no collection, or one whose changes are not all events."""
    if not options.collection:
        _check_named(options, folds=job.folds)
        return
    assert options.database
    database = client_of(options.uri)[options.database]
    try:
        listed = list(database.list_collections(filter={"name": options.collection}))
    except OperationFailure:
        return  # without the privilege nobody knows; the stream itself is refused, if it is
    if not listed:
        return
    name = f"{options.database}.{options.collection}"
    if listed[0].get("type") in KINDS:
        kind = KINDS[listed[0]["type"]]
        raise JobError(f"{name} is {kind}, which has no change stream: read the collection that it is made of")
    if listed[0].get("options", {}).get("capped") and job.folds:
        kinds = ", ".join(sink.kind for sink in job.sinks if sink.folds)
        raise JobError(
            f"{kinds}: {name} is a capped collection; what it pushes out is in no event, and would stay in the copy. "
            "Take the sink 'changes'"
        )


def _check_named(options: SourceOptions, *, folds: bool) -> None:
    """Raises JobError for one of several collections that cannot be read, if the job names it and not a pattern."""
    if not options.several:
        return
    try:
        refused = list_collections(replace(options, capped="skip" if folds else "read")).refused
    except OperationFailure:
        return  # without the privilege nobody knows; the stream itself is refused, if it is
    for name, reason in refused.items():
        if {name, name.partition(".")[2]} & set(options.collections):
            raise JobError(f"{name} is {reason}: leave it out")


class SeenCollections:
    """The collections that a running job has seen; `record` is that of its start."""

    def __init__(self, options: SourceOptions, record: JobRecord) -> None:
        self._options = options
        self._known = {name for name, each in record.collections.items() if each["uuid"]}
        self._invalidated: set[Token] = set()

    def after(
        self, record: JobRecord, committed: Iterable[Mapping[Namespace, bool]], ends: Iterable[ServerPosition] = ()
    ) -> JobRecord:
        """The record after a batch, of whose collections each sink says which there are, and which ended in it.

        The stream of a single collection ends with it, by an invalidate, and so does the batch: at `ends`. Asks the
        server for each that is new. One that does not answer now is asked again after the next batch.
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
                self._known |= new  # nobody may know
                continue
            collections |= {key: asdict(CollectionIdentity(uuids.get(keys[key], ""), since)) for key in sorted(new)}
            self._known |= {key for key in new if keys[key] in uuids}
        return replace(record, collections=collections)

    def _ended(self, ends: Iterable[ServerPosition]) -> set[str]:
        """The servers whose collection ended in this batch. (Those of a snapshot that follows end at one token.)"""
        invalidated = {end.token: end.server for end in ends if decode_token(end.token.document()).from_invalidate}
        new = invalidated.keys() - self._invalidated
        self._invalidated = set(invalidated)
        return {invalidated[token] or server_name(self._options.uri) for token in new}


def _notices(options: SourceOptions, known: Known, uuids: dict[str, str], *, planned: bool) -> list[str]:
    changed = {name: each for name, each in known.items() if each.uuid and each.uuid != uuids.get(name, "")}
    if not changed:
        return []
    start = position_at(min(each.since for each in changed.values())) if planned else options.start
    ended = ended_collections(options, start)
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
    """The collections that were read of one of the servers, as the checkpoint says, by namespace."""
    if one.several:
        start = _key(options, one, "")
        keys = {key.removeprefix(start): key for key in record.collections if key.startswith(start)}
        names = [name for name in keys if one.selection.matches(namespace_of(name))]
        return {name: CollectionIdentity(**record.collections[keys[name]]) for name in names}
    known = record.collections.get(server_name(one.uri))
    return {_namespace(one): CollectionIdentity(**known)} if known else {}


def _known_of_tables(options: SourceOptions, record: JobRecord, owners: list[TableOwner]) -> Known:
    """The collections that the tables name, for a job that begins without a snapshot."""
    if record.snapshot or options.start.kind == "snapshot":
        return {}
    server = server_name(options.uri)
    uuids = [owner.collections[server] for owner in owners if server in owner.collections]
    return {_namespace(options): CollectionIdentity(uuids[0], 0)} if uuids else {}


def _namespace(options: SourceOptions) -> str:
    """The collection, if it is one; else empty."""
    return text_of((options.database, options.collection)) if options.database and options.collection else ""


def _key(options: SourceOptions, one: SourceOptions, name: str) -> str:
    """The name of a collection in the record: its server's, its own, or both where there are several of both."""
    if not one.several:
        return server_name(one.uri)
    return f"{server_name(one.uri)} {name}" if options.others else name
