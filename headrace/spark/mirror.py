"""A job that keeps a table of files equal to a collection: a snapshot first, then every event, batch by batch.

What must hold: after a run the table's rows are the collection's documents as they were at one token not before the
run's beginning; whatever was killed, whenever, the next run goes on and ends the same way. The two halves of it:

- Spark's checkpoint gives each batch a number and a range that stay the same when the batch is made again.
- A batch changes the table in one commit that also says which batch of which query it was, and up to which token the
  table is. A batch that is in is passed over; an event that is in is not applied again (`fold.py`), so a lost
  checkpoint costs a new snapshot, not a wrong table.

Run it as a program: python -m headrace.spark.mirror --uri … --database … --collection … --path …
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.foreach_batch import Listener, for_each_batch
from headrace.spark.sinks.mirror_sink import MirrorSink
from headrace.spark.source.admission import took_all
from headrace.spark.tables.mirror_table import MirrorTable, open_table
from headrace.spark.tables.table_location import folder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchReport", "Listener", "Mirror", "catch_up", "description_option", "follow"]

_COLUMNS: Final = ("token", "operationType", "documentKey", "fullDocument", "updateDescription", "wallTime")
# How updates are to be described, best first; see `apply.py` for what each leaves open.
_DESCRIPTIONS: Final = ("showRawUpdateDescription", "showExpandedEvents")
_REFUSED: Final = frozenset({323, 9, 40415})


@dataclass(frozen=True, slots=True)
class Mirror:
    """What is mirrored to where. `kind` is that of the table; `rows_max` bounds what a batch holds in memory."""

    uri: str
    database: str
    collection: str
    path: Path
    kind: str = "delta"
    rows_max: int = 20_000
    buckets: int = 0

    def __post_init__(self) -> None:
        folder_of(self.path)  # Spark's notes are in it

    def table(self) -> MirrorTable:
        return open_table(self.path, self.kind, buckets=self.buckets)

    @property
    def checkpoint(self) -> Path:
        """Spark's own notes, inside the table's directory, under a name that readers of tables pass over."""
        return self.path / "_checkpoint"


def follow(mirror: Mirror, *, session: SparkSession | None = None, every: str = "0 seconds",
           listener: Listener | None = None) -> StreamingQuery:  # fmt: skip
    """Starts the job, to go on until it is stopped; batches are at least `every` apart."""
    return _start(mirror, session, {"processingTime": every}, listener)


def catch_up(mirror: Mirror, *, session: SparkSession | None = None, listener: Listener | None = None) -> None:
    """Brings the table up to the collection as it is now, and returns. Raises what stopped the job."""
    while True:
        query = _start(mirror, session, {"availableNow": True}, listener)
        query.awaitTermination()
        if took_all(query):
            return


def description_option(uri: str, database: str | None, collection: str | None) -> dict[str, str]:
    """The source's option for the most exact description of updates that the server gives; none if it knows none."""
    for option in _DESCRIPTIONS:
        feed = MongoDBStream(SourceOptions(uri, database, collection, stream={option: True}))
        try:
            feed.open(StreamPosition("latest")).close()
            return {option: "true"}
        except OperationFailure as error:
            if error.code not in _REFUSED:
                raise
    return {}


def _start(
    mirror: Mirror, session: SparkSession | None, trigger: dict[str, Any], listener: Listener | None
) -> StreamingQuery:
    from headrace.spark.session import get_session, in_this_process, register

    session = in_this_process(register(session) if session else get_session(), "a mirror")
    mirror.path.mkdir(parents=True, exist_ok=True)
    options = {
        "uri": mirror.uri,
        "database": mirror.database,
        "collection": mirror.collection,
        "startingPosition": "snapshot",
        "maxRowsPerTrigger": str(mirror.rows_max),
    } | description_option(mirror.uri, mirror.database, mirror.collection)
    rows = session.readStream.format("headrace").options(**options).load().select(*_COLUMNS)
    writer = rows.writeStream.foreachBatch(for_each_batch(MirrorSink(mirror.table()), listener=listener))
    writer = writer.option("checkpointLocation", str(mirror.checkpoint.absolute())).queryName(_name(mirror))
    return writer.trigger(**trigger).start()


def _name(mirror: Mirror) -> str:
    return f"mirror {mirror.database}.{mirror.collection}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as a program; SIGTERM and SIGINT end it after the batch that is being made."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.spark.mirror", description="Keep a table equal to a collection."
    )
    parser.add_argument("--uri", required=True, help="connection string of the server")
    parser.add_argument("--database", required=True, help="the collection's database")
    parser.add_argument("--collection", required=True, help="the collection")
    parser.add_argument("--path", required=True, help="folder of the table")
    parser.add_argument("--kind", default="delta", choices=["delta", "parquet"], help="the table's format")
    parser.add_argument("--rows-max", type=int, default=20_000, help="limit of rows in a batch")
    parser.add_argument("--follow", action="store_true", help="run until stopped, not only up to now")
    parser.add_argument("--quick", action="store_true", help="start Spark sooner and run slower, for small collections")
    given = parser.parse_args(arguments)
    from headrace.spark.session import get_session

    session = get_session(quick=given.quick)
    mirror = Mirror(given.uri, given.database, given.collection, folder_of(given.path), given.kind, given.rows_max)
    if not given.follow:
        catch_up(mirror, session=session, listener=_print)
        return
    query = follow(mirror, session=session, listener=_print)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: query.stop())
    query.awaitTermination()


def _print(report: BatchReport) -> None:
    print(f"batch {report.batch}: {report.row_count} rows, at {report.token}", flush=True)


if __name__ == "__main__":
    main()
