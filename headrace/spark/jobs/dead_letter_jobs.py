"""The dead letters of a job: wrapping its sinks, and replaying refused rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from headrace.clock import SystemClock
from headrace.errors import CommandError
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_stages import reports_failures, stages_again
from headrace.spark.jobs.job_tables import JobTable, tables_of
from headrace.spark.mongodb.collection_selection import namespace_of
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.pipelines.evaluate import FAILED
from headrace.spark.pipelines.refusals import StageRefused
from headrace.spark.rows.events import SNAPSHOT
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.not_held import NOT_HELD, NotHeld, held_or_marked
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import MicroBatch, Sink
from headrace.spark.sinks.dead_letter_sink import DeadLetterSink, StageFailuresSink
from headrace.spark.sinks.log_sink import DocumentsSink, LogSink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.source.options import parse_options
from headrace.spark.tables.dead_letters import REFUSED, REPLAYED, RESOLVED, DeadLetter, DeadLetters
from headrace.spark.tables.refused_rows import RowRefused
from headrace.spark.tables.table_location import TableLocation, location_of
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

_MOMENTS: Final = ("clusterTime", "wallTime")


def with_dead_letters(job: Job, sinks: list[Sink]) -> list[Sink]:
    """Return the sinks, wrapped if the job has dead letters: refused rows and failures of stages go there."""
    if not job.deadletter:
        return sinks
    letters, clock = DeadLetters(job.deadletter, job.deadletter_max), SystemClock()

    def guarded(options: SinkOptions, sink: Sink) -> Sink:
        # A table of events or of documents refuses no row.
        if not isinstance(sink, DocumentsSink | LogSink):
            sink = DeadLetterSink(sink, letters, str(options), clock.now_ms)
        return StageFailuresSink(sink, letters, str(options), clock.now_ms) if reports_failures(job) else sink

    def with_letters(options: SinkOptions, sink: Sink) -> Sink:
        if not isinstance(sink, CollectionsSink):
            return guarded(options, sink)
        # The name of a collection's sink in the dead letters has the path of its own table.
        sink.guard = lambda name, one: guarded(options.of_collection(name), one)
        return sink

    return list(map(with_letters, job.sinks, sinks))


def dead_letter_locations(job: Job) -> list[TableLocation]:
    """Return the location of the dead letters, if the job has any."""
    return [location_of(job.deadletter)] if job.deadletter else []


def replay(job: Job) -> Iterator[str]:
    """Give the sinks the rows that they refused; yield a line for each. The job must not run meanwhile.

    A sink that follows a collection gets the waiting documents as the server has them now. A sink `own` gets the rows,
    or the result of applying the stages again. A table of events takes no row before its position.
    """
    if not job.deadletter:
        yield "the job has no dead letters: errors = 'deadletter' is not set"
        return
    from headrace.spark.jobs.runner import start_for_catalogs

    start_for_catalogs(job)
    letters = DeadLetters(job.deadletter, job.deadletter_max)
    for table in tables_of(job):
        sink = table.sink
        lines = _documents(job, table, letters) if sink.folds else _rows(job, sink, letters)
        yield from (f"{sink}: {line}" for line in lines)


def _documents(job: Job, table: JobTable, letters: DeadLetters) -> Iterator[str]:
    sink, options = table.sink, parse_options(job.source)
    if table.collection:
        database, collection = namespace_of(table.collection)
        options = replace(options, database=database, collection=collection, collections=())
    for letter in letters.waiting(str(sink)).values():
        row = json.loads(letter.row)
        if options.mask and options.mask.hashes_keys:
            yield f"{row['documentKey']} is a hash, by which the server finds no document: begin again (pipeline reset)"
            continue
        try:
            now = _document_now(options, row["documentKey"])
        except NotHeld as reason:
            yield f"{row['documentKey']} has BSON that a table would change: {reason}"
            continue
        if now is None:
            yield f"{row['documentKey']} is not in the collection; its delete takes it away"
            continue
        token, document = now
        values = {"database": options.database, "collection": options.collection, "documentKey": row["documentKey"]}
        values |= {"token": token, "operationType": SNAPSHOT, "fullDocument": document}
        yield _given(sink, letters, letter, values, token)


def _rows(job: Job, sink: SinkOptions, letters: DeadLetters) -> Iterator[str]:
    done = {letter.token for letter in letters.letters() if letter.sink == str(sink) and letter.state == RESOLVED}
    for letter in letters.letters():
        if letter.sink != str(sink) or letter.state != REFUSED or letter.token in done:
            continue
        if sink.kind != "own":
            yield f"the table is past {letter.token}, and takes no earlier row: begin it again (pipeline reset --data)"
            continue
        row = json.loads(letter.row)
        try:
            made = stages_again(job, _with_moments(row)) if FAILED in row else None
        except CommandError as error:
            yield f"the stages fail again: {error.message} ({error.code})"
            continue
        except StageRefused as error:
            yield f"{letter.token} cannot be replayed: {error}"
            continue
        yield _given(sink, letters, letter, row, letter.token, made)


def _with_moments(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a dead letter with its times parsed."""
    return {name: datetime.fromisoformat(value) if name in _MOMENTS and value else value for name, value in row.items()}


def _given(
    sink: SinkOptions, letters: DeadLetters, letter: DeadLetter, row: dict[str, Any], token: str,
    made: pa.Table | None = None,
) -> str:  # fmt: skip
    """Give the sink the row, or `made`, the result of the stages. Return what happened."""
    table = pa.Table.from_pylist([_with_moments(row)]) if made is None else made
    try:
        sink.open().apply(MicroBatch(f"replay {token}", 0, table))
    except RowRefused as error:
        return f"refused again: {error}"
    resolved = DeadLetter(letter.sink, token, letter.key, RESOLVED, None, REPLAYED, "")
    letters.add([resolved], SystemClock().now_ms())
    return f"replayed {row.get('documentKey') or token}"


def _document_now(options: SourceOptions, key: str) -> tuple[str, str] | None:
    """Return the token and the text of the document with this key, masked like the job's rows; None if it is gone.

    Raise NotHeld if a table would change the document.
    """
    documents, token = Snapshot(options).consistent_read(Chunk(key))
    stored = next(iter(documents), None)
    if stored is None:
        return None
    document = held_or_marked(stored.raw)
    if NOT_HELD in document:
        raise NotHeld(document[NOT_HELD])
    mask = options.mask
    return (mask.token(token.text), dumps(mask.document(document))) if mask else (token.text, dumps(document))
