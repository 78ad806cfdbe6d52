"""Checks before a job starts: its file, its checkpoint, its tables and the server must belong together.

Each of them records its source, and each table also the job and the sink that fill it. A mismatch is refused here, by
name and in one line, before Spark is started. Each check has its message beside it; `CHECKS` has their order. Rules:

- The checkpoint, the tables and the file name the same collection.
- A table of a sink that has begun exists as long as the checkpoint does.
- The server has the history that was read, with its events, and the collection, or events that say what became of it
(`mongodb/listed_collections.py`). Otherwise `onPositionLost` decides: with `resnapshot` the checkpoint is removed, and
the job begins again with a snapshot, whose tokens are greater than all tokens in the tables.
- A table of state begins with a snapshot, or with its collection's creation (`collection_checks.py`).
- In the collection of a mirror or a history every change is an event, so it cannot be capped. No sink reads a view.
- A table in one of Spark's catalogs can be read only when Spark runs: then it is checked too, before the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pymongo.errors import OperationFailure

from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import (
    Checkpoint,
    JobRecord,
    ServerPosition,
    read_checkpoint,
    read_record,
    server_positions,
    write_record,
)
from headrace.spark.jobs.collection_checks import SeenCollections, check_beginning, check_collection, with_collections
from headrace.spark.jobs.job_file import Job, JobError
from headrace.spark.jobs.job_stages import document_maker, pipeline_text
from headrace.spark.jobs.job_tables import may_be_table_of, missing_tables, table_name
from headrace.spark.jobs.machine_checks import address_problems, check_stores, machine_problems
from headrace.spark.jobs.sink_states import SinkState, answering, sink_state, sink_states
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.connection_strings import resolved
from headrace.spark.mongodb.listed_collections import read_collections
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost, client_of
from headrace.spark.mongodb.server_history import (
    HistoryChanged,
    changed_message,
    check_event,
    check_position,
    server_history,
    wait_until_after,
)
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.mongodb_sink import PerCollectionSink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.mongodb.mongodb_mirror import only_reading
from headrace.spark.tables.progress import NotOurTable, Progress, TableOwner, TablePosition, check_owner, check_servers
from headrace.spark.tables.table_location import location_of


class StreamRefused(RuntimeError):
    """A server answers, but opens no change stream: it has no oplog, or the user lacks the privilege."""


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """The result of the checks. `record` is the record to store in the checkpoint."""

    job: Job
    record: JobRecord
    checkpoint: Checkpoint
    sinks: tuple[SinkState, ...]
    notices: tuple[str, ...] = ()
    """Lines for people about changes since the last run."""
    with_spark: bool = False
    """Whether Spark runs, so that tables in its catalogs can be read."""
    histories: Mapping[str, str] = field(default_factory=dict)
    """The present id of each server's replica set, by the server's name; an id that cannot be read is empty."""

    @property
    def planned(self) -> bool:
        """Whether the job has planned a batch."""
        return self.checkpoint.planned >= 0

    def recording(self, **values: Any) -> CheckedJob:
        """Return the job with these values in its record."""
        return replace(self, record=replace(self.record, **values))

    def owner_of(self, sink: SinkOptions, collection: str = "") -> TableOwner:
        """Return the owner of the table that the sink fills, or of its table of one `collection` among several."""
        job, record = self.job, self.record
        path = str(job.checkpoint.absolute())
        uuids = {name: each["uuid"] for name, each in record.collections.items() if each["uuid"]}
        if job.options.several:
            uuids = {}  # otherwise each table would name all collections
        return TableOwner(
            record.job, job.name, path, sink.kind, collection or record.namespace, record.histories, uuids
        )

    def source_options(self) -> dict[str, str]:
        """Return further options of the source: the history that each server must have, and where to begin."""
        ids = [self.record.histories.get(server_name(one.uri), "") or "-" for one in self.job.options.servers]
        options = {"replicasetid": " ".join(ids)} if set(ids) != {"-"} else {}
        if self.job.options.several:
            options |= {"snapshotalso": json.dumps(sorted({each.collection for each in self.sinks if each.collection}))}
        begins = self.record.snapshot and self.checkpoint.planned < 0
        return options | ({"startingposition": "snapshot"} if begins else {})


def check_job(job: Job, *, with_spark: bool = False) -> CheckedJob:
    """Check the job; change nothing. Raise the first error; `begin` handles HistoryChanged and PositionLost.

    Raise ServerUnreachable and StoreUnreachable after some seconds. `with_spark`: Spark runs, and tables in its
    catalogs are checked, too.
    """
    check_stores(job)
    checkpoint, record = read_checkpoint(job.checkpoint), read_record(job.checkpoint)
    sinks = sink_states(job, with_spark=with_spark)
    if record is None or (with_spark and checkpoint.planned < 0 and not record.begun):
        # Without Spark, the tables that name the job as their owner may not have been read.
        record = new_record(job, sinks, record)
    checked = CheckedJob(job, record, checkpoint, sinks, with_spark=with_spark)
    for check in CHECKS:
        checked = check(checked) or checked
    begun = {table_name(state.sink) for state in sinks if state.exists} | set(checked.record.begun)
    return checked.recording(begun=tuple(sorted(begun)))


def _check_same_job(checked: CheckedJob) -> CheckedJob:
    """Raise NotOurTable if the checkpoint's name is that of another job. Record the job's name.

    A renamed job is recognized by its tables: the same sinks, or tables that name the job as their owner.
    """
    job, record = checked.job, checked.record
    same = set(record.sinks) & set(map(table_name, job.sinks))
    owned = any(state.owner and state.owner.job == record.job for state in checked.sinks)
    same_tables = not record.sinks or same or owned
    if record.name not in {"", job.name} and not (same_tables and record.namespace == _namespace(job)):
        raise NotOurTable(
            f"the checkpoint {job.checkpoint} is another job's: it is of {record.name}, which reads "
            f"{record.namespace or 'the whole deployment'}; give {job.name} a checkpoint of its own"
        )
    return checked.recording(name=job.name)


def _check_same_namespace(checked: CheckedJob) -> None:
    """Raise NotOurTable if the checkpoint is of another collection."""
    job, before, now = checked.job, checked.record.namespace, _namespace(checked.job)
    if before != now:
        raise NotOurTable(
            f"the checkpoint {job.checkpoint} is of {before or 'the whole deployment'}, and the job's file "
            f"says {now or 'the whole deployment'}: give the job a checkpoint and tables of its own, or begin "
            "again with `headrace pipeline reset --data`"
        )


def _check_mask(checked: CheckedJob) -> CheckedJob:
    """Raise NotOurTable if tables of documents were masked in another way. Record the mask."""
    job, record = checked.job, checked.record
    mask = job.options.mask.fingerprint if job.options.mask else ""
    if record.begun and record.mask != mask and job.folds:
        raise NotOurTable(
            "the job's mask, or its key, is another one than that of its tables: begin again with "
            "`headrace pipeline reset --data`"
        )
    return checked.recording(mask=mask)


def _check_pipeline(checked: CheckedJob) -> CheckedJob:
    """Raise NotOurTable if another pipeline made the tables' rows. Record the pipeline."""
    record, pipeline = checked.record, pipeline_text(checked.job)
    if (record.begun or checked.planned) and record.pipeline not in {"", pipeline}:
        raise NotOurTable(
            "the job's pipeline is another one than that which made the rows of its tables: begin again with "
            "`headrace pipeline reset --data`, or give the job a checkpoint and tables of its own"
        )
    return checked.recording(pipeline=pipeline)


def _check_tables(checked: CheckedJob) -> None:
    """Raise NotOurTable or TableGone if a table is not the one that the job fills."""
    for state in checked.sinks:
        owner = checked.owner_of(state.sink, state.collection)
        check_owner(getattr(state.position, "owner", ""), owner, state.sink)
        check_there(checked, state)
        if not state.collection:
            _check_servers(checked, state)
            _check_stream(state, checked.job.options)
    if checked.checkpoint.committed >= 0:
        for name in missing_tables(checked.job, checked.record.begun, with_spark=checked.with_spark):
            raise TableGone(gone_message(name, checked.job.checkpoint))


def _check_sinks(checked: CheckedJob) -> CheckedJob:
    """Raise NotOurTable for a sink whose table no longer fits it. Record the job's sinks.

    This is a sink that omits other fields than before. It is also a sink that was not in the job at the last start and
    so lacks the rows read until then, unless its table of events begins now or its table was moved.
    """
    job, before, with_spark = checked.job, checked.record.sinks, checked.with_spark
    if not (before or with_spark) and any(sink.in_catalog for sink in job.sinks):
        return checked  # the first record must have all sinks
    sinks: dict[str, str] = {}
    gone = {name.partition(" ")[0] for name in before.keys() - set(map(table_name, job.sinks))}
    for sink in job.sinks:
        name, omits = table_name(sink), json.dumps(sink.options.get("omit", []))
        if sink.kind == "own" or (sink.in_catalog and not with_spark):
            sinks |= {name: before[name]} if name in before else {}
            continue
        sinks[name] = omits
        there = any(state.exists and may_be_table_of(sink, table_name(state.sink)) for state in checked.sinks)
        new = bool(before) and name not in before and checked.checkpoint.committed >= 0
        if new and ((there and sink.kind not in gone) or (sink.folds and not there)):
            raise NotOurTable(
                f"the sink {sink} was not in the job at its last start, and lacks what was read until then: give it a "
                "job of its own, or begin again with `headrace pipeline reset`"
            )
        if sink.folds and checked.record.begun and before.get(name, omits) != omits:
            raise NotOurTable(
                f"the sink {sink} omits other fields than before, and its table would have both: begin again with "
                "`headrace pipeline reset --data`"
            )
    return checked.recording(sinks=sinks)


def problems(job: Job) -> list[str]:
    """Return what is wrong with the job, a line each; an empty list if it can run. Change nothing."""
    lines = [*machine_problems(job), *address_problems(job)]
    try:
        with only_reading():
            check_job(job)
    except Exception as error:
        # Every error becomes a line: the job would end with it.
        lines.append(error_line(error))
    return lines


def _check_streams(checked: CheckedJob) -> None:
    """Open each change stream at the job's position. Raise StreamRefused, or PositionLost if the file says `fail`."""
    options = checked.job.options
    positions = {position.server: position for position in server_positions(checked.checkpoint.offset)}
    for one in options.servers:
        position = positions.get(server_name(one.uri) if options.others else "")
        start = StreamPosition("token", position.token) if position else StreamPosition("latest")
        try:
            MongoDBStream(one).try_open(start)
        except PositionLost:
            # An archive may have events that have left the oplog; a new snapshot is begun by the stream.
            if options.on_position_lost == "fail" and not options.archive:
                raise
        except OperationFailure as error:
            reason = (error.details or {}).get("errmsg") or "it does not say why"
            refusal = _REFUSALS.get(error.code or 0) or f"refuses the change stream: {reason}"
            raise StreamRefused(f"{server_name(one.uri)} {refusal}") from error


_REFUSALS: Final = {
    13: "gives the user no right to this change stream: it needs the role 'read' on what it watches",
    18: "does not know the user, or has another password",
    40573: "has no oplog, and so no change streams: they need a replica set (of Headrace: no --no-oplog)",
}
"""Messages by MongoDB's error code."""


def begin(job: Job, *, with_spark: bool = False) -> CheckedJob:
    """Check the job and write the checkpoint's record. Begin again with a snapshot if the job requests that."""
    try:
        checked = check_job(job, with_spark=with_spark)
    except (HistoryChanged, PositionLost) as error:
        if job.options.on_position_lost != "resnapshot" or document_maker(job):
            raise
        checked = _begin_again(job, error, with_spark=with_spark)
    write_record(job.checkpoint, checked.record)
    return checked


def _begin_again(job: Job, error: Exception, *, with_spark: bool) -> CheckedJob:
    """Remove the checkpoint, whose position is lost, but keep the job's record. Check the job again."""
    record = read_record(job.checkpoint)
    location_of(job.checkpoint).remove()
    job_id = record.job if record else new_record(job, sink_states(job, with_spark=with_spark)).job
    begin_anew = JobRecord(job_id, _namespace(job), snapshot=True)
    if record:
        begin_anew = replace(begin_anew, begun=record.begun, mask=record.mask, pipeline=record.pipeline)
    write_record(job.checkpoint, begin_anew)
    return check_job(job, with_spark=with_spark)


def noted(
    job: Job, record: JobRecord, seen: SeenCollections,
    sinks: Iterable[tuple[SinkOptions, CollectionsSink | PerCollectionSink]], ends: Iterable[ServerPosition],
) -> JobRecord:  # fmt: skip
    """Store and return the record after a batch that ends at `ends`, with its new tables and new collections."""
    taken = [(options, sink.take_committed()) for options, sink in sinks]
    tables = [options.of_collection(name) for options, names in taken if options.per_collection for name in names]
    with_seen = seen.after(record, (names for _, names in taken), ends)
    if with_seen != record:
        write_record(job.checkpoint, with_seen)
    return note_begun(job, with_seen, tables)


def note_begun(job: Job, record: JobRecord, committed: Iterable[SinkOptions] = ()) -> JobRecord:
    """Record, after a batch, the sinks that now have a table; `committed` has the tables of several collections."""
    sinks = [sink for sink in job.sinks if sink.kind != "own" and not sink.per_collection]
    missing = [sink for sink in sinks if table_name(sink) not in record.begun]
    new = {table_name(sink) for sink in missing if sink_state(sink).exists}
    new |= {table_name(sink) for sink in committed} - set(record.begun)
    if new or record.snapshot:
        record = replace(record, begun=tuple(sorted({*record.begun, *new})), snapshot=False)
        write_record(job.checkpoint, record)
    return record


def _check_targets(checked: CheckedJob) -> None:
    """Raise MayNotWrite if the user of a sink `mongodb` may not write the copies of the source's collections.

    Raise ServerUnreachable if the target does not answer, and TableGone if a copy, or all that was begun, is missing.
    """
    job = checked.job
    recorded = [namespace_of(name) for name, each in checked.record.collections.items() if each["uuid"]]
    begun = recorded if checked.checkpoint.committed >= 0 and not job.options.others else []
    for sink in job.sinks:
        opened = sink.open() if sink.kind == "mongodb" else None
        if isinstance(opened, PerCollectionSink):
            with answering(f"at {job.options.addresses}"):
                names = list(read_collections(job.options))
            with answering(f"for the sink {sink}"), only_reading():
                opened.check_rights(names)
                reached = [opened.reached(name) for name in begun]
                if reached and not any(reached):
                    raise TableGone(gone_message(str(sink), job.checkpoint))


def new_record(job: Job, sinks: Iterable[SinkState], record: JobRecord | None = None) -> JobRecord:
    """Return the record of a job that has not begun, with the id in its tables if they name its checkpoint."""
    path = str(job.checkpoint.absolute())
    ids = [state.owner.job for state in sinks if state.owner and state.owner.checkpoint == path]
    job_id = ids[0] if ids else record.job if record else uuid4().hex
    return replace(record or JobRecord("", _namespace(job)), job=job_id)


def _namespace(job: Job) -> str:
    return ".".join(name for name in (job.options.database, job.options.collection) if name)


def check_there(checked: CheckedJob, state: SinkState) -> None:
    """Raise TableGone if a table that a sink needs is missing."""
    if state.exists or checked.checkpoint.committed < 0:
        return
    if state.sink.kind == "mongodb" and not state.sink.options.get("collection"):
        return  # each collection has its own table, if it has rows
    begun = table_name(state.sink) in checked.record.begun
    job = checked.job
    if begun:
        raise TableGone(gone_message(str(state.sink), job.checkpoint))
    if state.sink.folds and job.options.start.kind == "snapshot" and not state.collection:
        raise TableGone(
            f"the sink {state.sink} has no table, and the checkpoint {job.checkpoint} is past the snapshot that it "
            "would begin with: put the table back, or begin again with `headrace pipeline reset`"
        )


def _check_servers(checked: CheckedJob, state: SinkState) -> None:
    """Raise NotOurTable if a mirror or a history is of one server and the job reads several, or the reverse."""
    position = state.position
    if state.sink.folds and isinstance(position, TablePosition):
        check_servers(
            has_several=bool(position.servers), has_rows=bool(position.token),
            reads_several=bool(checked.job.options.others), table=state.sink,
        )  # fmt: skip


def gone_message(sink: str, checkpoint: Path) -> str:
    """Return the message of TableGone for a table that had begun."""
    return (
        f"the table of the sink {sink} is gone, while the checkpoint {checkpoint} says how far it was: put it back, or "
        "begin again with `headrace pipeline reset`"
    )


def _check_stream(state: SinkState, options: SourceOptions) -> None:
    """Raise NotOurTable if a log of an earlier version, which has no owner, names another collection as its source."""
    if state.owner or not isinstance(state.position, Progress) or not state.position.source:
        return
    recorded = json.loads(state.position.source)
    before = [recorded.get(name) for name in ("database", "collection")]
    if before != [options.database, options.collection]:
        shown = ".".join(name for name in before if name) or "the whole deployment"
        raise NotOurTable(
            f"{state.sink} has the events of {shown}: give the job a checkpoint and tables of its own, or begin again "
            "with `headrace pipeline reset --data`"
        )


def _check_same_servers(checked: CheckedJob) -> None:
    """Raise JobError if the checkpoint has a server that the job does not read: servers cannot be removed."""
    job, checkpoint, options = checked.job, checked.checkpoint, checked.job.options
    read = {server_name(one.uri) for one in options.servers} if options.others else {""}
    missing = sorted({position.server for position in server_positions(checkpoint.offset)} - read)
    if missing:
        of = f"of the server {missing[0]}, among several" if missing[0] else "of one server"
        now = f"reads {', '.join(sorted(read))}" if options.others else "reads one"
        raise JobError(
            f"the checkpoint {job.checkpoint} is {of}, and the job {now}: a server cannot be removed, and one does not "
            "become several; give the job a checkpoint and tables of its own"
        )


def _check_collections(checked: CheckedJob) -> None:
    """Raise JobError for a namespace that is not a collection, or whose changes are not all events."""
    for one in checked.job.options.servers:
        check_collection(checked.job, one)


def _check_distinct(checked: CheckedJob) -> CheckedJob:
    """Raise JobError if two servers have the same history, and so the same documents, or a copy is its own source.

    Note the histories.
    """
    job = checked.job
    histories = {server_name(one.uri): server_history(client_of(one.uri)) for one in job.options.servers}
    by_history: dict[str, str] = {}
    for name, history in histories.items():
        if history and history in by_history:
            raise JobError(f"{by_history[history]} and {name} are one server, or one replica set: name it once")
        by_history[history] = name
    for sink in job.sinks:
        if sink.kind == "mongodb" and _may_follow_itself(job.options, sink):
            history = server_history(client_of(resolved(str(sink.options["uri"]))))
            if history and history in by_history:
                raise JobError(f"the sink {sink} would write into the source itself, {by_history[history]}")
    return replace(checked, histories=histories)


def _may_follow_itself(options: SourceOptions, sink: SinkOptions) -> bool:
    """Whether a copy on the source's own server has the name of a collection that is read."""
    database, collection = (sink.options.get(name) for name in ("database", "collection"))
    if options.collection is not None:
        name = database or options.database, collection or options.collection
        return name == (options.database, options.collection)
    every = f"{options.database or '*'}.*"
    names = [f"{options.database}.{name}" if options.database else name for name in options.collections] or [every]
    # A pattern matches its own text.
    samples = [namespace_of(name) for name in names]
    return any(options.selection.matches((database or one, collection or other)) for one, other in samples)


def _check_history(checked: CheckedJob) -> CheckedJob:
    """Raise HistoryChanged if a server's history differs from the one in the checkpoint or a table. Record it."""
    before, now = checked.record.histories, checked.histories
    recorded = [before, *(state.owner.histories for state in checked.sinks if state.owner)]
    for name, history in now.items() if checked.planned else ():
        for each in recorded:
            if history and each.get(name) and each[name] != history:
                raise HistoryChanged(changed_message(name, each[name], history))
    return checked.recording(histories={name: now[name] or before.get(name, "") for name in now})


def _check_positions(checked: CheckedJob) -> None:
    """Raise PositionLost if the checkpoint's position, or a table's last event, is not in the server's history."""
    options = checked.job.options
    if not checked.planned:
        return
    positions = {position.server: position.token for position in server_positions(checked.checkpoint.offset)}
    for one in options.servers:
        name = server_name(one.uri) if options.others else ""
        if name in positions:
            check_position(MongoDBStream(one), positions[name])
        tokens = {_token_of(state, name) for state in checked.sinks}
        # With several collections, their last event is enough to tell histories apart.
        known = sorted(token for token in tokens if token)
        for token in known[-1:] if options.several else known:
            check_event(one, Token(token))


def _check_order(checked: CheckedJob) -> None:
    """Check that a job that begins reads rows newer than its tables' rows, if these are of another history.

    Raise HistoryChanged if only a snapshot could show what still exists, and PositionLost as `wait_until_after` does.
    """
    options, now = checked.job.options, checked.histories
    for state in checked.sinks if not checked.planned else ():
        other = [
            name for name, history in now.items()
            if state.owner and history and state.owner.histories.get(name, history) != history
        ]  # fmt: skip
        if not other:
            if options.start.kind == "snapshot":
                for one, token in _tokens_of(options, state):
                    _wait_if_behind(MongoDBStream(one), token)
            continue
        assert state.owner is not None
        if options.start.kind != "snapshot" and not checked.record.snapshot:
            raise HistoryChanged(
                f"{state.sink} has what another history had: " + changed_message(
                    other[0], state.owner.histories[other[0]], now[other[0]]
                )
            )  # fmt: skip
        for one, token in _tokens_of(options, state):
            wait_until_after(MongoDBStream(one), token)


def _check_identities(checked: CheckedJob) -> CheckedJob:
    """Raise CollectionReplaced if no event says what became of a collection. Record the present collections."""
    owners = [state.owner for state in checked.sinks if state.owner and state.sink.folds and state.exists]
    record, notices = with_collections(checked.job.options, checked.record, owners, planned=checked.planned)
    return replace(checked, record=record, notices=notices)


def _check_beginnings(checked: CheckedJob) -> None:
    """Check each table of state of a job that begins, as `check_beginning` does."""
    options = checked.job.options
    if checked.planned or options.start.kind == "snapshot" or checked.record.snapshot:
        return
    for state in checked.sinks:
        if state.sink.folds:
            for one in options.servers:
                token = _token_of(state, server_name(one.uri) if options.others else "")
                check_beginning(one, token, state.sink)


def _tokens_of(options: SourceOptions, state: SinkState) -> Iterator[tuple[SourceOptions, Token]]:
    """Yield the servers that have rows in the table, each with its last token."""
    for one in options.servers:
        if token := _token_of(state, server_name(one.uri) if options.others else ""):
            yield one, Token(token)


def _wait_if_behind(mongodb: MongoDBStream, token: Token) -> None:
    try:
        check_position(mongodb, token)
    except PositionLost:
        wait_until_after(mongodb, token)


def _token_of(state: SinkState, server: str) -> str:
    position = state.position
    if server and isinstance(position, TablePosition):
        return position.of_server(server).token
    return "" if server else str(position.token)


Check = Callable[[CheckedJob], CheckedJob | None]
"""Raises the error, with its message; returns the job with what the check has found out, if that is recorded."""


def _answered(*checks: Check) -> Check:
    """Return a check that does these checks, and raises ServerUnreachable if a server does not answer."""

    def check(checked: CheckedJob) -> CheckedJob:
        with answering(f"at {checked.job.options.addresses}"):
            for each in checks:
                checked = each(checked) or checked
        return checked

    return check


CHECKS: Final[tuple[Check, ...]] = (
    _check_same_job,
    _check_same_namespace,
    _check_same_servers,
    _check_mask,
    _check_pipeline,
    _check_tables,
    _check_sinks,
    _answered(_check_collections, _check_distinct, _check_history, _check_positions, _check_order, _check_streams),
    _check_targets,
    # Not under a timeout: pymongo would send it to the server as the time to wait for an event.
    _check_identities,
    _check_beginnings,
)
"""The checks of a job, in order. Each may use what those before it have found out."""
