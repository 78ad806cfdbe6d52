"""Sinks in Spark's `foreachBatch`, and how to write a custom one.

Three ways, depending on the target:

- The target stores a line of text in the same transaction as the data: write a `contract.Sink`, with `Progress` and
`Sieve` for the bookkeeping (docs/sinks/own.md has one for SQLite in thirty lines). Exactly once.
- Writing the same rows again does no harm (an upsert by key): `OnceSink` with a function of the rows. It stores its
position in a file after the call. If the process ends in between, the function is called again with the same rows.
- Any other target (a message, a mail): also `OnceSink`, at least once.

Each of several sinks stores its own position. If one has committed a batch and another has not, both get it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.durable_files import replace_file
from headrace.spark.rows.events import SERVER, SNAPSHOT_BEGIN, Row
from headrace.spark.session.interrupts import ACTIVE
from headrace.spark.sinks.contract import BatchReport, FrameSink, MicroBatch, Sink, take_rows
from headrace.spark.sinks.folding_sink import HistorySink, MirrorSink
from headrace.spark.sinks.mongodb_sink import PerCollectionSink
from headrace.spark.tables.progress import Progress, Sieve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Listener = Callable[[BatchReport], None]


@contextmanager
def _writing(query: str) -> Iterator[None]:
    """A context in which a batch of the query is being written. A function, because Connect cannot pickle `ACTIVE`."""
    ACTIVE.begin(query)
    try:
        yield
    finally:
        ACTIVE.finish(query)


def wait_for_sinks(*, query: str | None = None, timeout_s: float = limits.SINK_EXIT_SECONDS_MAX) -> bool:
    """Wait until no sink of this process is writing a batch (of `query`, if given). Return False after `timeout_s`.

    For a caller that has lost Spark and cannot stop the query. At the process's end it is called automatically.
    """
    return ACTIVE.wait(query, timeout_s)


class BatchTooLarge(RuntimeError):
    """The rows of a batch do not fit into the driver, which collects them for the sinks."""


def for_each_batch(
    *sinks: Sink, listener: Listener | None = None, checkpoint: str | Path | None = None
) -> Callable[[DataFrame, int], None]:
    """Return the function for `writeStream.foreachBatch` that applies each batch to every sink, in order.

    The driver collects the rows once, unless every sink takes frames: then tasks write them. `listener` is called after
    each sink's commit. `checkpoint` is the query's checkpointLocation, required only with Spark Connect.

    The function raises what a sink raises. It raises NoBeginning if the stream of a mirror, a history or a copy does
    not begin with a snapshot or the collection's creation, and QueryStopping if Ctrl-C is stopping its query.
    """

    def apply(frame: DataFrame, number: int) -> None:
        query = query_id(frame, None if checkpoint is None else str(checkpoint))
        frame_sinks = [sink for sink in sinks if isinstance(sink, FrameSink) and sink.takes_frames]
        all_frames = len(frame_sinks) == len(sinks)
        with _writing(query):
            for report in (
                _apply_frames(frame_sinks, frame, query, number) if all_frames else collected(frame, query, number)
            ):
                if report and listener:
                    listener(report)

    def collected(frame: DataFrame, query: str, number: int) -> Iterator[BatchReport | None]:
        batch = MicroBatch(query, number, _collected_rows(frame, number))
        for sink in sinks:
            check_beginning(sink, batch)
        return (sink.apply(batch) for sink in sinks)

    return apply


def _collected_rows(frame: DataFrame, number: int) -> pa.Table:
    try:
        return frame.toArrow()
    except Exception as error:
        if any(sign in str(error) for sign in _TOO_LARGE):
            raise BatchTooLarge(
                f"batch {number} has more bytes than the driver takes (spark.driver.maxResultSize, and its heap): set "
                "maxBytesPerTrigger in [source], to 128000000, say, and run the job again; if the batch is planned "
                "already, or one large transaction, give the driver more: memory and spark.driver.maxResultSize in "
                "[spark]"
            ) from error
        raise


_TOO_LARGE: Final = ("spark.driver.maxResultSize", "java.lang.OutOfMemoryError")
"""Spark's messages for a result too large for the driver."""


def _apply_frames(
    sinks: Sequence[FrameSink], frame: DataFrame, query: str, number: int
) -> Iterator[BatchReport | None]:
    """Give the frame to each sink. For several sinks cache it, so that the source is read once."""
    if len(sinks) == 1:
        yield sinks[0].apply_frame(frame, query, number)
        return
    frame.persist()
    try:
        for sink in sinks:
            yield sink.apply_frame(frame, query, number)
    finally:
        frame.unpersist()


class OnceSink:
    """A sink made of a function and a file for its position. The function writes new rows: an Arrow table sorted by
    token.

    The function is called at least once for each row. Only after a crash can a repeated row follow later rows. When the
    function returns, the rows must be durable. A new snapshot repeats the rows of an earlier one.
    """

    def __init__(self, write: Callable[[pa.Table], object], notes: str | Path) -> None:
        self._write = write
        self._notes = Path(notes)

    def position(self) -> Progress:
        return Progress.of(self._notes.read_text()) if self._notes.exists() else Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        before = self.position()
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        ordered = batch.table.sort_by("token")
        rows = replace(batch, table=ordered).rows()
        sieve = Sieve(before)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        if new:
            self._write(take_rows(ordered, new))
        self._note(replace(sieve.progress, query=batch.query, batch=batch.number))
        return batch.report(sieve.event_count, sieve.progress.token)

    def _note(self, progress: Progress) -> None:
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._notes, lambda path: path.write_text(progress.text()))


class CheckpointUnnamed(RuntimeError):
    """Spark Connect is used, and the checkpoint was not named."""


def query_id(frame: DataFrame, checkpoint: str | None) -> str:
    """Return Spark's id of the checkpoint of the query whose batch `frame` is.

    In `foreachBatch` it is a local property of Spark's context. Through Spark Connect the function runs in a process
    that gets only rows and a number, so the id is read from `checkpoint`, the query's checkpointLocation. Raise
    CheckpointUnnamed.
    """
    if checkpoint is not None:
        # Spark writes this file before the first batch. Spark reads it, because only Spark may reach the checkpoint's
        # storage.
        (line,) = frame.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
        identifier: str = json.loads(line.value)["id"]
        return identifier
    if "connect" in type(frame).__module__:
        raise CheckpointUnnamed(
            "Spark Connect does not tell a batch which query it is of, and a sink must know: "
            "for_each_batch(..., checkpoint=the query's checkpointLocation)"
        )
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


_BEGINNINGS: Final = frozenset({SNAPSHOT_BEGIN, "create"})


class NoBeginning(ValueError):
    """A new table of state would get events, but not the documents that existed before them."""


def check_beginning(sink: Sink, batch: MicroBatch) -> None:
    """Raise NoBeginning if a table of state has no rows, and the batch begins with neither snapshot nor creation.

    For a program without a job file: the start checks of a job ask the server (`jobs/collection_checks.py`).
    """
    if not isinstance(sink, HistorySink | MirrorSink | PerCollectionSink) or sink.owner is not None:
        return
    each = isinstance(sink, PerCollectionSink)
    if not each and SERVER not in batch.table.column_names and sink.position().token:
        return  # the table has rows, so no row has to be checked
    first: dict[tuple[str | None, ...], Row] = {}
    for row in batch.rows():
        if not each or row.collection:
            first.setdefault((row.database, row.collection) if each else (row.server,), row)
    for row in first.values():
        if row.operationType not in _BEGINNINGS and not _reached(sink, row):
            raise NoBeginning(
                f"the first row for {row.database}.{row.collection} is an event, {row.operationType!r}: documents of "
                "before it would be missing; read the source with startingPosition 'snapshot', or with "
                "showExpandedEvents from before the collection's creation"
            )


def _reached(sink: HistorySink | MirrorSink | PerCollectionSink, row: Row) -> str:
    """Return the token that the table of the row has reached; empty for a new table."""
    if isinstance(sink, PerCollectionSink):
        assert row.database
        assert row.collection
        return sink.reached((row.database, row.collection))
    return str(sink.table.position().of_server(row.server).token)
