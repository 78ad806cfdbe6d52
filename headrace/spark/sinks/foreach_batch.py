"""Sinks in Spark's `foreachBatch`, and what is needed to write a custom one.

Three ways, by what the target can do:

- It can store a line of text in the same transaction as the data: write a `contract.Sink`, with `Progress` and `Sieve`
  for the bookkeeping (docs/sinks/own.md has one for SQLite in thirty lines). Exactly once.
- Writing the same rows again does no harm (an upsert by key): `OnceSink` with a function of the rows. It stores its
  position in a file after the call, so a crash in between calls the function again with the same rows.
- Anything else (a message, a mail): the same, at least once.

Several sinks each store their own position: a batch that one has committed and another has not is given to both again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.durable_files import replace_file
from headrace.spark.session.active_batches import ACTIVE
from headrace.spark.sinks.beginning import check_beginning
from headrace.spark.sinks.contract import BatchReport, FrameSink, MicroBatch, Sink, take_rows
from headrace.spark.sinks.query_id import query_id
from headrace.spark.tables.progress import Progress, Sieve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Listener = Callable[[BatchReport], None]


@contextmanager
def _writing(query: str) -> Iterator[None]:
    """Inside, a batch of the query is being written. (A function, since `ACTIVE` cannot be pickled by Connect.)"""
    ACTIVE.begin(query)
    try:
        yield
    finally:
        ACTIVE.finish(query)


def wait_for_sinks(*, query: str | None = None, timeout_s: float = limits.SINK_EXIT_SECONDS_MAX) -> bool:
    """Waits until no sink of this process is writing a batch (of the query, if given); False if the time is up.

    For whoever has lost Spark and cannot stop the query. At the process's end it happens by itself.
    """
    return ACTIVE.wait(query, timeout_s)


class BatchTooLarge(RuntimeError):
    """The rows of a batch do not fit the driver, which has to have them for the sinks."""


def for_each_batch(
    *sinks: Sink, listener: Listener | None = None, checkpoint: str | Path | None = None
) -> Callable[[DataFrame, int], None]:
    """The function for `writeStream.foreachBatch` that applies each batch to every sink, in order.

    The rows are collected to the driver once, unless every sink takes frames: then tasks write them. `listener` is
    called after each sink's commit. `checkpoint` is the query's checkpointLocation, needed through Spark Connect only.
    The function raises what a sink raises, NoBeginning for a mirror, a history or a copy whose stream begins amid the
    life of its collection, and QueryStopping if its query is stopped by Ctrl-C.
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
"""Spark's messages for a result that the driver does not take."""


def _apply_frames(
    sinks: Sequence[FrameSink], frame: DataFrame, query: str, number: int
) -> Iterator[BatchReport | None]:
    """Gives each sink the frame; for several it is cached, so that the source is read once."""
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
    """A sink of a function that writes new rows (an Arrow table, in the order of tokens) and a file for its position.

    The function is called at least once for each row, and with other rows in between only after a crash; when it
    returns, the rows must be durable. A new snapshot repeats the rows of a snapshot.
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
