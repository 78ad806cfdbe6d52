"""The present state of the tables of a job's sinks, and a time limit for servers that do not answer.

A job's checkpoint or one of its tables may be removed while the job runs. Spark would create the checkpoint's folder
again, and a Parquet table would begin again with the rows of one batch: nothing fails, but the table is incomplete. So
a job checks before each batch, and again after any failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import ConnectionFailure

from headrace import limits
from headrace.spark.errors import error_line
from headrace.spark.jobs.checkpoint import NAME, JobRecord
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_tables import check_format, has_table, may_be_table_of, table_name, tables_of
from headrace.spark.sinks.folding_sink import MirrorSink
from headrace.spark.sinks.kafka_sink import kafka_options, unreachable
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.mongodb.mongodb_mirror import CommitRefused, MongoMirror
from headrace.spark.tables.progress import TableOwner
from headrace.spark.tables.table_location import location_of


class ServerUnreachable(RuntimeError):
    """No server answers at the connection string."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """The state of a sink's table. `position` is what `Sink.position` returns; `owner` is stored with it, or None."""

    sink: SinkOptions
    position: Any
    owner: TableOwner | None
    collection: str = ""
    """The collection of the table, if the job has several."""

    @property
    def exists(self) -> bool:
        """Whether the table has a commit."""
        return self.position.batch >= 0 or bool(self.position.token)


def has_state(sink: SinkOptions, *, with_spark: bool) -> bool:
    """Whether the sink's table stores its owner, and can be read now."""
    return sink.kind != "own" and (with_spark or not sink.in_catalog)


def sink_states(job: Job, *, with_spark: bool = False) -> tuple[SinkState, ...]:
    """Return the state of each table of the job's sinks; with Spark also of those in its catalogs.

    Raise ServerUnreachable if the server of a target does not answer, NotAMirror for a table of another kind, and
    CommitRefused if a target refuses documents of a commit and the job has no dead letters.
    """
    states = []
    for table in tables_of(job, with_spark=with_spark):
        if has_state(table.sink, with_spark=with_spark):
            try:
                states.append(sink_state(table.sink, table.collection))
            except CommitRefused as error:
                if not job.deadletter:
                    raise
                owner = TableOwner.of(error.state.owner)
                states.append(SinkState(table.sink, error.state, owner, table.collection))
    return tuple(states)


def sink_state(sink: SinkOptions, collection: str = "") -> SinkState:
    """Return the state of one table, as `sink_states` does."""
    check_format(sink)
    _check_brokers(sink)
    with answering(f"for the sink {sink}"):
        opened = sink.open()
        if isinstance(opened, MirrorSink) and isinstance(opened.table, MongoMirror):
            opened.table.check_rights()
        position = opened.position()
    return SinkState(sink, position, TableOwner.of(getattr(position, "owner", "")), collection)


@contextmanager
def answering(where: str) -> Iterator[None]:
    """A context that raises ServerUnreachable if a server does not answer within some seconds; `where` it should."""
    try:
        with pymongo.timeout(limits.START_CHECK_SECONDS_MAX):
            yield
    except ConnectionFailure as error:
        reason = error_line(error).partition(": ")[2].partition(" (configured timeouts")[0].partition(", Timeout:")[0]
        raise ServerUnreachable(f"no server answers {where}: {reason}") from error


def _check_brokers(sink: SinkOptions) -> None:
    """Raise ServerUnreachable if the sink writes to Kafka and no broker answers."""
    if sink.kind == "kafka":
        reason = unreachable(kafka_options(sink.options).servers, limits.START_CHECK_SECONDS_MAX)
        if reason:
            raise ServerUnreachable(f"no broker answers for the sink {sink}: {reason}")


_AGAIN = "was removed while the job ran: put it back, or begin again with `headrace pipeline reset`"


class CheckpointGone(RuntimeError):
    """The folder of the job's checkpoint was removed, or emptied, while the job ran."""


class TablesThere:
    """The tables of a job that have begun. Only their folders are checked, which is cheap enough before each batch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun: tuple[str, ...] = ()
        self._folders: dict[str, Path] = {}

    def check(self, record: JobRecord) -> None:
        """Raise CheckpointGone or TableGone."""
        if not (self._job.checkpoint / NAME).exists():
            raise CheckpointGone(f"the checkpoint {self._job.checkpoint} {_AGAIN}")
        if record.begun != self._begun:
            self._begun, self._folders = record.begun, dict(self._local(record))
        for name, folder in self._folders.items():
            if not has_table(folder):
                raise TableGone(f"the table of the sink {name} {_AGAIN}")

    def check_thoroughly(self, record: JobRecord) -> None:
        """Do `check`, and also check tables that are in no local folder, which takes longer."""
        self.check(record)
        for sink in self._job.sinks:
            if sink.kind in {"own", "kafka"} or sink.per_collection or table_name(sink) not in record.begun:
                continue
            exists = True
            with suppress(Exception):  # the error to be explained says more
                exists = sink_state(sink).exists
            if not exists:
                raise TableGone(f"the table of the sink {table_name(sink)} {_AGAIN}")

    def _local(self, record: JobRecord) -> list[tuple[str, Path]]:
        names = [name for name in record.begun if any(may_be_table_of(sink, name) for sink in self._job.sinks)]
        folders = [(name, name.partition(" ")[2]) for name in names]
        return [(name, Path(path)) for name, path in folders if path.startswith("/") and not location_of(path).in_store]
