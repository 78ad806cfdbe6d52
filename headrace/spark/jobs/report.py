"""Reports on a job without running it: its position, what it would do, and whether its sinks are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import collections_offsets, read_checkpoint, read_record, snapshot_states
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_stages import explained, spark_stages
from headrace.spark.jobs.job_tables import JobTable, missing_tables, tables_of
from headrace.spark.jobs.runner import JobRunning, job_lock, source_options, start_for_catalogs
from headrace.spark.jobs.sink_states import answering, sink_state, sink_states
from headrace.spark.jobs.start_checks import CheckedJob, check_there, gone_message, new_record
from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.mongodb_stream import client_of
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.sinks.folding_sink import HistorySink, MirrorSink
from headrace.spark.sinks.log_sink import LogSink
from headrace.spark.sinks.mongodb_sink import PerCollectionSink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.source.options import parse_options
from headrace.spark.tables.mirror_table import ReadMirror, TableGone
from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror, only_reading
from headrace.spark.tables.progress import NotOurTable, TablePosition, check_owner
from headrace.spark.verify.comparison import (
    Counted,
    at_position,
    compare_log,
    compare_table,
    complete_copy,
    current_versions,
    ignored,
    rows_of_server,
    snapshot_of,
)

_POLICIES: Final = {
    "fail": "a drop or a rename stops the job",
    "follow": "a drop or a rename is followed",
    "keep": "a drop or a rename is ignored",
}


def explain_lines(job: Job) -> Iterator[str]:
    """Yield lines that say what the job does, and where each stage runs. Connect to no server."""
    options = job.options
    namespace = ".".join(name for name in (options.database, options.collection) if name) or "the whole deployment"
    namespace += f" ({', '.join(options.collections)})" if options.collections else ""
    yield f"source: {namespace}, from {options.start.kind}"
    if job.stages or "pipeline" in job.source:
        yield "pipeline:"
        yield from (f"  {line}" for line in str(explained(job)).splitlines())
    often = "as events arrive" if job.every == "0 seconds" else f"every {job.every}"
    trigger = "once, up to now" if job.every is None else f"{often}, until stopped"
    rows = f"at most {options.rows_max} rows per batch" if options.rows_max else "batches of any size"
    yield f"trigger: {trigger}; {rows}"
    yield f"checkpoint: {job.checkpoint}"
    for sink in job.sinks:
        policy = sink.options.get("policy", "follow")
        description = f"; {_POLICIES[policy]}" if sink.has_policy else ""
        yield f"sink: {sink}{description}"


@dataclass(frozen=True, slots=True)
class SinkVerification:
    """The result for one sink. `equal` is None if nothing was compared; `description` says why, or what differs."""

    sink: str
    equal: bool | None
    description: str


def verify_job(job: Job, counted: Counted = ignored) -> Iterator[SinkVerification]:
    """Compare each sink with its source, each at one token; call `counted` as documents are read.

    Raise pymongo's errors for requests that the server refuses, and ServerUnreachable after some seconds.
    """
    with answering(f"at {job.options.addresses}"):
        for one in job.options.servers:
            client_of(one.uri).admin.command("ping")
    options = parse_options(source_options(job))
    start_for_catalogs(job)
    checkpoint, record = read_checkpoint(job.checkpoint), read_record(job.checkpoint)
    checked = CheckedJob(job, record or new_record(job, sink_states(job, with_spark=True)), checkpoint, ())
    offsets = collections_offsets(checkpoint.offset)
    states = snapshot_states(offsets, options.mask)
    reached = {server: offset.token.text for server, offset in offsets.items()}
    for name in missing_tables(job, record.begun, with_spark=True) if record and checkpoint.committed >= 0 else ():
        yield SinkVerification(name, False, gone_message(name, job.checkpoint))
    for table in tables_of(job):
        if problem := _problem(checked, table):
            yield SinkVerification(str(table.sink), False, problem)
        elif table.collection in states:
            yield SinkVerification(str(table.sink), None, f"cannot be compared: {states[table.collection]}")
        elif isinstance(copies := table.sink.open() if table.sink.kind == "mongodb" else None, PerCollectionSink):
            names = sorted(record.collections) if record and not options.others else ()
            yield from _verified_copies(table.sink, copies, options, names, states, reached.get("", ""), counted)
        elif table.collection:
            yield _verified(job, table.sink, options, reached, counted, table.collection)
        else:
            yield _verified(job, table.sink, options, reached, counted)


def _problem(checked: CheckedJob, table: JobTable) -> str:
    """Return the error, in a line, if the table is not the one that the job fills; empty if it is or has no owner."""
    if table.sink.kind == "own":
        return ""
    try:
        with only_reading():
            state = sink_state(table.sink, table.collection)
            check_owner(
                getattr(state.position, "owner", ""), checked.owner_of(table.sink, table.collection), table.sink
            )
            check_there(checked, state)
    except (NotOurTable, TableGone) as error:
        return error_line(error)
    return ""


def _verified(
    job: Job, sink: SinkOptions, options: SourceOptions, reached: Mapping[str, str], counted: Counted, name: str = ""
) -> SinkVerification:
    """Compare one table. A table of the collection `name`, among several, has every event up to `reached`."""
    opened: Any = sink.open()
    table = getattr(opened, "table", None)
    if isinstance(table, MongoMirror) and not table.is_complete():
        # Complete a commit that was interrupted, as the job's next run would, unless the job runs and may be doing it.
        with suppress(JobRunning), job_lock(job):
            opened.position()
    with only_reading():
        return _compared(job, sink, opened, options, reached, counted, name)


def _compared(
    job: Job,
    sink: SinkOptions,
    opened: Any,
    options: SourceOptions,
    reached: Mapping[str, str],
    counted: Counted,
    name: str,
) -> SinkVerification:
    database, collection = namespace_of(name) if name else (options.database, options.collection)
    if _is_empty(opened):
        return SinkVerification(str(sink), None, "nothing yet: the job has committed nothing to it")
    servers = {server_name(one.uri) if options.others else "": one.uri for one in options.servers}
    tables: list[ReadMirror | None] = []
    if isinstance(opened, LogSink):
        if spark_stages(job) or options.reader:
            return SinkVerification(
                str(sink), None, "cannot be compared: Spark runs stages of the pipeline, so the server cannot repeat it"
            )
        patterns = (collection if options.database else name,) if name and collection else options.collections
        log = compare_log(opened.table, replace(options, collections=patterns), counted)
        whole = opened.table.position().ended and options.documents == "extjson" and not options.columns
        if log.compared or not (database and collection) or options.others or not whole:
            return SinkVerification(str(sink), log.equal if log.compared else None, str(log))
        tables = [snapshot_of(opened.table)]
    else:
        tables = [_mirror_of(opened, server) for server in servers]
    equal, texts, masks = True, [], _masks(options, opened)
    for (server, uri), table in zip(servers.items(), tables, strict=True):
        if table is None or not (database and collection):
            return SinkVerification(str(sink), None, "cannot be compared")
        if server and not table.position().token:
            # The table of one of several collections may have no row of a server.
            if name and client_of(uri)[database][collection].find_one() is None:
                continue
            return SinkVerification(str(sink), None, f"nothing yet of {server}")
        # A table of one of several collections has every event up to `reached`.
        table = at_position(table, reached.get(server, "")) if name else table
        comparison = compare_table(uri, database, collection, table, masks, counted)
        equal &= comparison.equal
        texts.append(f"{server}: {comparison}" if server else str(comparison))
    return SinkVerification(str(sink), equal, "; ".join(texts))


def _verified_copies(
    sink: SinkOptions, copies: PerCollectionSink, options: SourceOptions, names: Sequence[str],
    states: Mapping[str, str], reached: str, counted: Counted,
) -> Iterator[SinkVerification]:  # fmt: skip
    """Compare the copy of each collection, for a sink `mongodb` of several collections."""
    if not names:
        yield SinkVerification(str(sink), None, "cannot be compared")
    for name in names:
        database, collection = namespace_of(name)
        title = f"{sink} {name}"
        with only_reading():
            copy = copies.copy_of((database, collection))
            try:
                token = copy.position().token
            except TableGone as error:
                yield SinkVerification(title, False, error_line(error))
                continue
            if name in states:
                yield SinkVerification(title, None, f"cannot be compared: {states[name]}")
            elif token:
                table = at_position(complete_copy(copy), reached)
                masks = _masks(options, copies)
                comparison = compare_table(options.uri, database, collection, table, masks, counted)
                yield SinkVerification(title, comparison.equal, str(comparison))
            elif client_of(options.uri)[database][collection].find_one() is not None:
                yield SinkVerification(title, None, "nothing yet: the job has committed nothing to it")


def _masks(options: SourceOptions, opened: Any) -> list[Mask]:
    return [mask for mask in (options.mask, getattr(opened, "omit", None)) if mask]


def _is_empty(sink: Any) -> bool:
    position = sink.position()
    return isinstance(position, TablePosition) and position.batch < 0 and not position.token


def _mirror_of(sink: Any, server: str = "") -> ReadMirror | None:
    """Return the sink's table to compare; with several servers, only the rows of this server."""
    if isinstance(sink, MirrorSink) and isinstance(sink.table, MongoMirror):
        return complete_copy(sink.table)
    if isinstance(sink, MirrorSink):
        return rows_of_server(sink.table, server) if server else sink.table
    return current_versions(sink.table, server) if isinstance(sink, HistorySink) else None
