"""The present state of the tables of a job's sinks, and a time limit for servers that do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymongo
from pymongo.errors import ConnectionFailure

from headrace import limits
from headrace.spark.errors import error_line
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.job_tables import check_format, tables_of
from headrace.spark.sinks.kafka_options import kafka_options, unreachable
from headrace.spark.sinks.mirror_sink import MirrorSink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.tables.mongodb.mongodb_mirror import CommitRefused, MongoMirror
from headrace.spark.tables.table_owner import TableOwner


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
