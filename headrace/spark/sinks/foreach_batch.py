"""Sinks in Spark's `foreachBatch`, and what one needs to write a sink of one's own.

Three ways, by what the target can do:

- It can keep a few words in the same transaction as the data: write a `batch.Sink`, with `Progress` and `Sieve` for
  the bookkeeping (docs/sinks/own.md has one for SQLite in thirty lines). Exactly once.
- Writing the same rows again does no harm (an upsert by key): `OnceSink` with a function of the rows. It keeps its
  notes in a file behind the call, so a crash between the two calls the function again with the same rows.
- Anything else (a message, a mail): the same, at least once.

A sink that has several parts is several sinks: each keeps its own position, and a batch that is in one and not in
the other is given to both again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import SystemClock
from headrace.spark.sinks.contract import Batch, BatchReport, FrameSink, Sink, taken
from headrace.spark.sinks.query_id import query_of
from headrace.spark.tables.durable_files import replace_file
from headrace.spark.tables.progress import Progress, Sieve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Listener = Callable[[BatchReport], None]


def for_each_batch(
    *sinks: Sink, listener: Listener | None = None, checkpoint: str | Path | None = None
) -> Callable[[DataFrame, int], None]:
    """The function for `writeStream.foreachBatch`: the rows go to every sink, in order.

    They come to the driver, once, unless every sink takes frames: then tasks write them. `listener` hears of each
    sink's batch behind its commit. `checkpoint` is the query's own; only through Spark Connect it must be named.
    """
    spread = [sink for sink in sinks if isinstance(sink, FrameSink) and sink.takes_frames]

    def apply(frame: DataFrame, number: int) -> None:
        query = query_of(frame, None if checkpoint is None else str(checkpoint))
        whole = len(spread) == len(sinks)
        for report in _spread(spread, frame, query, number) if whole else collected(frame, query, number):
            if report and listener:
                listener(report)

    def collected(frame: DataFrame, query: str, number: int) -> Iterator[BatchReport | None]:
        batch = Batch(query, number, frame.toArrow())
        return (sink.apply(batch) for sink in sinks)

    return apply


def _spread(sinks: Sequence[FrameSink], frame: DataFrame, query: str, number: int) -> Iterator[BatchReport | None]:
    """Each sink is given the frame; what several read is read from the source once."""
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
    """A sink made of a function of the new rows (an Arrow table, in the order of their tokens) and a file of notes.

    The function is called at least once for each row, and with other rows in between only after a crash; when it
    returns, the rows must be durable. Rows of a snapshot are given again with a new snapshot.
    """

    def __init__(self, write: Callable[[pa.Table], object], notes: str | Path) -> None:
        self._write = write
        self._notes = Path(notes)

    def position(self) -> Progress:
        return Progress.of(self._notes.read_text()) if self._notes.exists() else Progress()

    def apply(self, batch: Batch) -> BatchReport | None:
        before = self.position()
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        ordered = batch.table.sort_by("token")
        rows = replace(batch, table=ordered).rows()
        sieve = Sieve(before)
        new = [number for number, row in enumerate(rows) if sieve.is_new(row)]
        if new:
            self._write(taken(ordered, new))
        self._note(replace(sieve.progress, query=batch.query, batch=batch.number))
        return BatchReport(
            batch.number, len(rows), sieve.event_count, sieve.progress.token, batch.first_event_ms(),
            SystemClock().now_ms(),
        )  # fmt: skip

    def _note(self, progress: Progress) -> None:
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._notes, lambda path: path.write_text(progress.text()))
