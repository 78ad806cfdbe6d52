"""The partitions of a batch: what a worker needs besides the options to read its rows (`read_partition.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.archive_table import ArchivedSnapshot
from headrace.spark.timetravel.collection_at_time import DocumentRange
from headrace.spark.timetravel.snapshot import Chunk


@dataclass(frozen=True, slots=True)
class EventRange(InputPartition):
    """The events of one slice, after `start` up to and including `end`."""

    start: Token
    end: Token
    slice: int = 0
    slices: int = 1

    def sliced(self, slices: int) -> list[EventRange]:
        """The same events in `slices` partitions; a document's events are all in one of them, in order."""
        return [EventRange(self.start, self.end, number, slices) for number in range(slices)]

    def cut(self, tokens: Sequence[Token]) -> list[EventRange]:
        """The same events in one range after another, divided at these tokens, which lie in the range in order."""
        bounds = [self.start, *tokens, self.end]
        return [replace(self, start=start, end=end) for start, end in pairwise(bounds)]

    def undivided(self) -> EventRange:
        """The events of all slices."""
        return EventRange(self.start, self.end)


@dataclass(frozen=True, slots=True)
class SnapshotPartition(InputPartition):
    """A chunk of the snapshot that began at `token`; the `first` has also snapshotBegin, the `last` snapshotEnd."""

    token: Token
    first: bool
    chunk: Chunk | None
    last: bool


@dataclass(frozen=True, slots=True)
class ReplacementSnapshot(InputPartition):
    """A complete snapshot in one partition, in place of pruned events, which ended at `token`."""

    token: Token


@dataclass(frozen=True, slots=True)
class PresentPartition(InputPartition):
    """A range of the collection's documents, as they were when the batch was planned."""

    range: DocumentRange


@dataclass(frozen=True, slots=True)
class PastPartition(InputPartition):
    """The collection's documents as they were at `token`, from the server by pre-images."""

    token: Token


@dataclass(frozen=True, slots=True)
class ArchivedPartition(InputPartition):
    """A slice of the documents as they were at `token`, from the archive's snapshot `base` and the events since.

    As part of a snapshot the `first` partition begins with snapshotBegin, the `last` ends with snapshotEnd.
    """

    token: Token
    base: ArchivedSnapshot
    slice: int
    slices: int
    first: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class MergedRanges(InputPartition):
    """A range of each server, in the order of the options; None for a server without one."""

    ranges: tuple[EventRange | None, ...]

    def sliced(self, slices: int) -> list[MergedRanges]:
        """The same events in `slices` partitions, as `EventRange.sliced` divides them."""
        each = [[None] * slices if one is None else one.sliced(slices) for one in self.ranges]
        return [MergedRanges(tuple(ranges)) for ranges in zip(*each, strict=True)]


@dataclass(frozen=True, slots=True)
class ServerPartition(InputPartition):
    """A partition of one of several servers: `number` counts them in the order of the options."""

    number: int
    partition: InputPartition
