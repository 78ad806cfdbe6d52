"""What a worker is given to read, frozen, and how it reads it: batches in Spark's schema.

A part needs nothing but itself and the options. A range of events read again gives the same rows; a chunk of a
snapshot read again may give newer documents, each with the token at which it is true (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headrace.spark.rows.tokens import Token
from headrace.spark.source.archive import read_events
from headrace.spark.source.feed import Feed
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.past import documents_at
from headrace.spark.source.ranges import read_range, rows_batches
from headrace.spark.source.snapshot import Chunk, Snapshot
from headrace.values.event_columns import EventRow

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class EventRange(InputPartition):
    """The events after `start` up to and including `end`, those of one slice."""

    start: Token
    end: Token
    slice: int = 0
    slices: int = 1

    def sliced(self, slices: int) -> list[EventRange]:
        """The same events in so many parts, each document's in one of them and in order."""
        return [EventRange(self.start, self.end, number, slices) for number in range(slices)]


@dataclass(frozen=True, slots=True)
class SnapshotPart(InputPartition):
    """A chunk of the snapshot at `token`; with the row before the first one, and with the row after the last one."""

    token: Token
    first: bool
    chunk: Chunk | None
    last: bool


@dataclass(frozen=True, slots=True)
class WholeSnapshot(InputPartition):
    """All of a snapshot in one part, in place of events that are lost; they ended at `token`."""

    token: Token


@dataclass(frozen=True, slots=True)
class PastPart(InputPartition):
    """The collection's documents as they were at `token`."""

    token: Token


def read_part(options: SourceOptions, part: InputPartition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as batches of these columns of BSON. Raises PositionLost."""
    if isinstance(part, EventRange) and options.archive:
        return read_events(options, part, columns)
    if isinstance(part, EventRange):
        return read_range(Feed(options), part.start, part.end, columns, slice_=part.slice, slices=part.slices)
    return rows_batches(_rows(options, part), columns)


def _rows(options: SourceOptions, part: InputPartition) -> Iterable[EventRow]:
    snapshot = Snapshot(options)
    if isinstance(part, PastPart):
        yield from documents_at(snapshot, part.token)
        return
    if isinstance(part, WholeSnapshot):
        yield snapshot.begin(part.token)
        yield from snapshot.read_all()
        yield snapshot.end()
        return
    assert isinstance(part, SnapshotPart)
    if part.first:
        yield snapshot.begin(part.token)
    if part.chunk:
        yield from snapshot.read(part.chunk)
    if part.last:
        yield snapshot.end()
