"""A job without a file: keeps a table equal to a collection, by a snapshot first, then by every event.

After a run the table's rows are the collection's documents as they were at one token, not before the run began.
Whatever is killed, whenever, the next run resumes and ends the same way:

- Spark's checkpoint gives each batch a number and a range, which stay the same when the batch is repeated.
- A batch changes the table in one commit, which also records the query, the batch's number and the token that the
  table has reached. Committed batches are skipped, and events up to the token are not applied again (`tables/fold.py`).
  A lost checkpoint therefore costs a new snapshot, never a wrong table.

As a program: python -m headrace.spark.mirror --uri … --database … --collection … --path …
"""

from __future__ import annotations

import argparse
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.spark.errors import redacted
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.runner import run_job
from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.foreach_batch import Listener
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.tables.mirror_table import MirrorTable, open_mirror_table
from headrace.spark.tables.table_location import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchReport", "Listener", "Mirror", "catch_up", "follow"]


@dataclass(frozen=True, slots=True)
class Mirror:
    """The mirrored collection and its table.

    `kind` is the table's format, `delta` or `parquet`, in `buckets` partitions if it is a large Delta table.
    `rows_max` bounds the rows of a batch, and so the driver's memory. Raises LocationError for a path in an object
    store: the checkpoint must be in a folder.
    """

    uri: str = field(repr=False)
    database: str
    collection: str
    path: Path
    kind: str = "delta"
    rows_max: int = 20_000
    buckets: int = 0

    def __post_init__(self) -> None:
        local_folder(self.path)

    def table(self) -> MirrorTable:
        """Return the table, which the first batch creates."""
        return open_mirror_table(self.path, self.kind, buckets=self.buckets)

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint, inside the table's directory, under a name that readers of tables ignore."""
        return self.path.absolute() / "_checkpoint"

    def job(self, *, every: str | None, spark: Mapping[str, Any] | None = None) -> Job:
        """Return the job that `catch_up` (`every` is None) and `follow` run."""
        return Job(
            name=f"mirror {self.database}.{self.collection}",
            checkpoint=self.checkpoint,
            source={
                "uri": self.uri,
                "database": self.database,
                "collection": self.collection,
                "startingposition": "snapshot",
                "maxrowspertrigger": str(self.rows_max),
            },
            sinks=(SinkOptions("mirror", {"path": str(self.path), "table": self.kind, "buckets": self.buckets}),),
            every=every,
            report_seconds=math.inf,
            spark=spark or {},
        )


def catch_up(
    mirror: Mirror, *, session: SparkSession | None = None, listener: Listener | None = None, quick: bool = False
) -> None:
    """Bring the table up to the collection as it is now, and return.

    `session` is Spark's. By default it is the process's own, which is started if there is none: with `quick` it starts
    sooner and runs slower, for small collections. `listener` is called with a report after each batch's commit. Raise
    the error that stopped the job; JobRunning if another process runs it.
    """
    run_job(mirror.job(every=None, spark={"quick": quick}), session=session, listener=listener, report=_ignore)


def follow(
    mirror: Mirror, stop: threading.Event, *, session: SparkSession | None = None, every: str = "0 seconds",
    listener: Listener | None = None,
) -> None:  # fmt: skip
    """Keep the table equal as `catch_up` does, until `stop` is set; then finish the current batch. Batches are `every`
    apart."""
    run_job(mirror.job(every=every), stop=stop, session=session, listener=listener, report=_ignore)


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages contain no password."""

    def error(self, message: str) -> NoReturn:
        super().error(redacted(message))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job as a program; on SIGTERM and SIGINT finish the current batch and end."""
    parser = _Parser(prog="python -m headrace.spark.mirror", description="Keep a table equal to a collection.")
    parser.add_argument("--uri", required=True, help="connection string of the server, or env:NAME, file:PATH")
    parser.add_argument("--database", required=True, help="the collection's database")
    parser.add_argument("--collection", required=True, help="the collection")
    parser.add_argument("--path", required=True, help="folder of the table")
    parser.add_argument("--kind", default="delta", choices=["delta", "parquet"], help="the table's format")
    parser.add_argument("--rows-max", type=int, default=20_000, help="limit of rows in a batch")
    parser.add_argument("--follow", action="store_true", help="run until stopped, not only up to now")
    parser.add_argument("--quick", action="store_true", help="start Spark sooner and run slower, for small collections")
    given = parser.parse_args(arguments)
    mirror = Mirror(given.uri, given.database, given.collection, local_folder(given.path), given.kind, given.rows_max)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    job = mirror.job(every="0 seconds" if given.follow else None, spark={"quick": given.quick})
    run_job(job, stop=stop, listener=_print, report=_ignore)


def _print(report: BatchReport) -> None:
    print(f"batch {report.batch}: {report.row_count} rows, at {report.token}", flush=True)


def _ignore(_: str) -> None:
    """Drop the job's report lines; the caller of a mirror has its listener instead."""


if __name__ == "__main__":
    main()
