"""The dead letters of a job: its sinks with the table for what they refuse, and the replay of what is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from headrace.clock import SystemClock
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_tables import JobTable, tables_of
from headrace.spark.mongodb.collection_selection import Namespace
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import SNAPSHOT
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import MicroBatch, Sink
from headrace.spark.sinks.dead_letter_sink import DeadLetterSink
from headrace.spark.sinks.log_sink import LogSink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.source.options import parse_options
from headrace.spark.tables.dead_letters import REFUSED, REPLAYED, RESOLVED, DeadLetter, DeadLetters
from headrace.spark.tables.refused_rows import RowRefused
from headrace.spark.tables.table_location import TableLocation, location_of
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

_MOMENTS: Final = ("clusterTime", "wallTime")


def with_dead_letters(job: Job, sinks: list[Sink]) -> list[Sink]:
    """The sinks, those that may refuse a row with the dead letters behind them, if the job has any."""
    if not job.deadletter:
        return sinks
    letters, clock = DeadLetters(job.deadletter, job.deadletter_max), SystemClock()

    def guarded(options: SinkOptions, sink: Sink) -> Sink:
        return sink if isinstance(sink, LogSink) else DeadLetterSink(sink, letters, str(options), clock.now_ms)

    for options, sink in zip(job.sinks, sinks, strict=True):
        if isinstance(sink, CollectionsSink):
            sink.guard = partial(_guarded_collection, guarded, options)
    return [
        sink if isinstance(sink, CollectionsSink) else guarded(options, sink)
        for options, sink in zip(job.sinks, sinks, strict=True)
    ]


def _guarded_collection(
    guarded: Callable[[SinkOptions, Sink], Sink], options: SinkOptions, name: Namespace, sink: Sink
) -> Sink:
    """The sink of one of several collections, whose name in the dead letters has the path of its own table."""
    return guarded(options.of_collection(name), sink)


def dead_letter_locations(job: Job) -> list[TableLocation]:
    """Where the dead letters are, if the job has any."""
    return [location_of(job.deadletter)] if job.deadletter else []


def replay(job: Job) -> Iterator[str]:
    """Gives the sinks what they have refused, a line for each; the job must not run meanwhile.

    A sink that follows a collection gets the documents that wait, as the server has them now; any other the rows.
    """
    if not job.deadletter:
        yield "the job has no dead letters: errors = 'deadletter' is not set"
        return
    letters = DeadLetters(job.deadletter, job.deadletter_max)
    for table in tables_of(job):
        sink = table.sink
        lines = _documents(job, table, letters) if sink.folds else _rows(sink, letters)
        yield from (f"{sink}: {line}" for line in lines)


def _documents(job: Job, table: JobTable, letters: DeadLetters) -> Iterator[str]:
    sink, options = table.sink, parse_options(job.source)
    if table.collection:
        database, collection = table.namespace
        options = replace(options, database=database, collection=collection, collections=())
    for letter in letters.waiting(str(sink)).values():
        row = json.loads(letter.row)
        now = _document_now(options, row["documentKey"])
        if now is None:
            yield f"{row['documentKey']} is not in the collection; its delete takes it away"
            continue
        token, document = now
        values = {"database": options.database, "collection": options.collection, "documentKey": row["documentKey"]}
        values |= {"token": token, "operationType": SNAPSHOT, "fullDocument": document}
        yield _given(sink, letters, letter, values, token)


def _rows(sink: SinkOptions, letters: DeadLetters) -> Iterator[str]:
    done = {letter.token for letter in letters.letters() if letter.sink == str(sink) and letter.state == RESOLVED}
    for letter in letters.letters():
        if letter.sink == str(sink) and letter.state == REFUSED and letter.token not in done:
            yield _given(sink, letters, letter, json.loads(letter.row), letter.token)


def _given(sink: SinkOptions, letters: DeadLetters, letter: DeadLetter, row: dict[str, Any], token: str) -> str:
    for name in _MOMENTS:
        if row.get(name):
            row[name] = datetime.fromisoformat(row[name])
    try:
        sink.open().apply(MicroBatch(f"replay {token}", 0, pa.Table.from_pylist([row])))
    except RowRefused as error:
        return f"refused again: {error}"
    resolved = DeadLetter(letter.sink, token, letter.key, RESOLVED, None, REPLAYED, "")
    letters.add([resolved], SystemClock().now_ms())
    return f"replayed {row.get('documentKey') or token}"


def _document_now(options: SourceOptions, key: str) -> tuple[str, str] | None:
    """The token and the text of the document with that key, masked as the job's rows are; None if there is none."""
    documents, token = Snapshot(options).consistent_read(Chunk(key))
    document = next(iter(documents), None)
    if document is None:
        return None
    return token.text, dumps(options.mask.document(document) if options.mask else document)
