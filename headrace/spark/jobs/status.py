"""The status of a job: whether it runs, its position, its lag, and its tables; as text, as JSON, or as an exit status.

It is read from the checkpoint, the tables and the servers, so the job need not run. Only the job itself knows its
rates, its snapshot's progress and the error that stopped it; it stores them (`run_reports.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pymongo
from pymongo.errors import PyMongoError

from headrace import limits
from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import (
    Checkpoint,
    ServerPosition,
    collections_offsets,
    read_checkpoint,
    server_positions,
    snapshot_states,
)
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_tables import TableFiles, table_files, tables_of
from headrace.spark.jobs.metrics import CollectionFigures, Lag, lag_of, snapshot_text
from headrace.spark.jobs.run_reports import ENDED, RunState, read_state
from headrace.spark.jobs.runner import running_process, start_for_catalogs
from headrace.spark.mongodb.mongodb_stream import PositionLost
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.source.options import parse_options
from headrace.spark.tables.mongodb.mongodb_mirror import only_reading

_STREAMING: Final = "streaming"
FINE: Final = 0
FAILED: Final = 1
LATE: Final = 4


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of a sink's table: its last batch (-1: none) and the token it has reached, or the error."""

    sink: str
    batch: int = -1
    token: str = ""
    table: TableFiles | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job. `process` runs the job (None: none does); `run` is the state that the last run stored."""

    job: str
    process: int | None
    committed: int
    planned: int
    positions: tuple[ServerPosition, ...]
    lag: Lag | None
    lag_problem: str
    late: bool
    run: RunState | None
    sinks: tuple[SinkStatus, ...]
    collections: Mapping[str, str] = field(default_factory=dict)
    """The state of each collection's snapshot, by name, if the job has several."""

    @property
    def failure(self) -> str:
        """The reason why the last run stopped, if it did not end normally; empty while the job runs."""
        if self.process is not None or self.run is None:
            return ""
        if self.run.phase not in ENDED:
            return "it ended without a word: it was killed, or the machine went down"
        return self.run.error

    @property
    def exit_status(self) -> int:
        """FAILED if the last run failed, or if the lag or a table is unknown; LATE if the lag is above its bound; else
        FINE."""
        if self.failure or self.lag_problem or any(sink.error for sink in self.sinks):
            return FAILED
        return LATE if self.late else FINE

    def document(self) -> dict[str, Any]:
        """Return the status for programs."""
        figures = (self.run.figures if self.run else None) or {}
        return {
            "job": self.job,
            "running": self.process is not None,
            "process": self.process,
            "status": {FINE: "fine", FAILED: "failed", LATE: "late"}[self.exit_status],
            "failure": self.failure or None,
            "batch": {"committed": self.committed, "planned": self.planned},
            "positions": [
                {
                    "server": position.server or None, "token": position.token.text,
                    "time": moment(position.token), "inSnapshot": position.in_snapshot,
                }
                for position in self.positions
            ],
            "lag": {"events": self.lag.event_count, "seconds": self.lag.seconds} if self.lag else None,
            "lagProblem": self.lag_problem or None,
            "lastRun": {"phase": self.run.phase, "startedMs": self.run.started_ms, "updatedMs": self.run.updated_ms}
            | {_camel(name): value for name, value in figures.items()}
            if self.run
            else None,
            "collections": {name: self._collection(name) for name in self.collections},
            "sinks": [
                {_camel(name): value for name, value in asdict(sink).items() if name != "table"}
                | {"table": {_camel(name): value for name, value in asdict(sink.table).items()} if sink.table else None}
                for sink in self.sinks
            ],
        }  # fmt: skip

    def collection_figures(self, name: str) -> CollectionFigures | None:
        """Return the figures of the last run for one of several collections; None if there are none."""
        given = (self.run.collections or {}).get(name) if self.run else None
        return None if given is None else CollectionFigures(**given)

    def collection_lag(self, name: str) -> Lag | None:
        """Return the lag of one of several collections; None if it is unknown."""
        return None if self.lag is None else self.lag.collections.get(name, Lag(0, 0))

    def _collection(self, name: str) -> dict[str, Any]:
        lag, figures = self.collection_lag(name), self.collection_figures(name)
        return {
            "state": self.collections[name],
            "lag": {"events": lag.event_count, "seconds": lag.seconds} if lag else None,
            "lastRun": {_camel(field): value for field, value in asdict(figures).items()} if figures else None,
        }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def job_status(job: Job, *, lag_seconds_max: float | None = None) -> JobStatus:
    """Read checkpoint, tables and servers. The lag's bound is the argument, or the one in the file's `[on_lag]`."""
    process = running_process(job)
    checkpoint = read_checkpoint(job.checkpoint)
    positions = tuple(server_positions(checkpoint.offset))
    lag, problem = _lag(job, positions) if positions else (None, "")
    if lag is not None and lag_seconds_max is not None:
        late = lag.seconds > lag_seconds_max
    else:
        late = bool(lag and job.on_lag and job.on_lag.is_late(lag.seconds, lag.event_count))
    start_for_catalogs(job)
    sinks = tuple(_sink_status(table.sink) for table in tables_of(job))
    if mask := job.options.mask:
        shown = (Token(mask.token(position.token.text)) for position in positions)
        positions = tuple(replace(position, token=token) for position, token in zip(positions, shown, strict=True))
    return JobStatus(
        job.name, process, checkpoint.committed, checkpoint.planned, positions, lag, problem, late,
        read_state(job.checkpoint), sinks, _collection_states(job, checkpoint),
    )  # fmt: skip


def _collection_states(job: Job, checkpoint: Checkpoint) -> dict[str, str]:
    """Return the state of each collection that has a table, whose snapshot is not complete, or that is skipped."""
    offsets = collections_offsets(checkpoint.offset)
    if not offsets:
        return {}
    there = {table.collection for table in tables_of(job) if table.collection}
    states = dict.fromkeys(there, _STREAMING) | snapshot_states(offsets, job.options.mask)
    return dict(sorted(states.items()))


def lines_of(status: JobStatus) -> Iterator[str]:
    """Yield the lines of a status, for people."""
    running = "not running" if status.process is None else f"running in process {status.process}"
    yield f"job {status.job}: {running}{_run_text(status)}"
    if status.failure:
        yield f"failed: {status.failure}"
    if status.committed < 0:
        yield "position: nothing committed yet"
    else:
        yield f"position: batch {status.committed} committed, batch {status.planned} planned"
    for position in status.positions:
        server = f"{position.server}: " if position.server else ""
        snapshot = "in its snapshot, " if position.in_snapshot else ""
        yield f"  {server}{snapshot}{moment(position.token)}, {position.token.text}"
    if status.lag_problem:
        yield f"lag: unknown: {status.lag_problem}"
    elif status.lag is not None:
        more = " or more" if status.lag.event_count >= limits.LAG_EVENT_COUNT_MAX else ""
        yield f"lag: {status.lag.event_count}{more} events, {status.lag.seconds} s" + (" (late)" if status.late else "")
    if status.collections:
        streaming = sum(state == _STREAMING for state in status.collections.values())
        yield f"collections: {len(status.collections)}, {streaming} of them with a complete snapshot"
        yield from (f"  {name}: {state}{_collection_text(status, name)}" for name, state in status.collections.items())
    for sink in status.sinks:
        yield f"sink {sink.sink}: {_sink_text(sink)}"


def _collection_text(status: JobStatus, name: str) -> str:
    """Return the lag of one of several collections and its figures in the last run, as text."""
    lag, figures = status.collection_lag(name), status.collection_figures(name)
    words = []
    if lag and lag.event_count:
        words.append(f"{lag.event_count} events ({lag.seconds} s) behind")
    if figures:
        words.append(f"{figures.rows_total} rows")
        words += [f"{figures.rest_values_total} values in _rest"] if figures.rest_values_total else []
        words += [f"{figures.dead_letters_total} dead letters"] if figures.dead_letters_total else []
        words.append(f"last batch {figures.batch_seconds:.2f} s")
    return "".join(f", {word}" for word in words)


def _run_text(status: JobStatus) -> str:
    """Return the text about a running job that follows its process."""
    run = status.run
    if status.process is None or run is None or not run.figures:
        return ""
    figures = run.figures
    if run.phase == "snapshot":
        return ", " + snapshot_text(
            figures.get("snapshot_documents") or 0, figures.get("snapshot_documents_total"),
            figures.get("snapshot_seconds_left"),
        )  # fmt: skip
    if figures.get("batch_seconds") is None:
        return f", {run.phase}"
    rate = figures.get("rows_per_second") or 0
    return (
        f", {run.phase}, {figures['rows_total']} rows, {rate:.0f} rows/s, last batch {figures['batch_seconds']:.2f} s"
    )


def _sink_text(sink: SinkStatus) -> str:
    if sink.error:
        return f"unknown: {sink.error}"
    if sink.batch < 0:
        return "nothing yet"
    words = [f"batch {sink.batch}", *([sink.token] if sink.token else [])]
    if sink.table:
        rows = "" if sink.table.row_count is None else f"{sink.table.row_count} rows in "
        words.append(f"{rows}{sink.table.file_count} files, {_size(sink.table.byte_count)}")
    return ", ".join(words)


def _size(count: float) -> str:
    unit = min(int(math.log(max(count, 1), 1024)), 4)
    return f"{count / 1024**unit:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}" if unit else f"{count:.0f} B"


def moment(token: Token) -> str:
    """Return the time of a token, as ISO 8601."""
    return datetime.fromtimestamp(token.time.time, UTC).isoformat()


def _lag(job: Job, positions: tuple[ServerPosition, ...]) -> tuple[Lag | None, str]:
    try:
        return lag_of(parse_options(job.source), list(positions)), ""
    except (PositionLost, PyMongoError) as error:
        return None, error_line(error)


def _sink_status(sink: SinkOptions) -> SinkStatus:
    try:
        with only_reading(), pymongo.timeout(limits.START_CHECK_SECONDS_MAX):
            reached = sink.open().position()
        table = table_files(sink) if reached.batch >= 0 or reached.token else None
    except Exception as error:
        # An error of one table must not hide the others.
        return SinkStatus(str(sink), error=error_line(error))
    return SinkStatus(str(sink), reached.batch, reached.token, table)
