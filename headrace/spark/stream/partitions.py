"""The partitions of a batch: what a worker needs, besides the options, to read its rows (`read_partition.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.archive_table import ArchivedSnapshot
from headrace.spark.timetravel.snapshot import Chunk


@dataclass(frozen=True, slots=True)
class EventRange(InputPartition):
    """The events of one slice, after `start` up to and including `end`."""

    start: Token
    end: Token
    slice: int = 0
    slices: int = 1

    def sliced(self, slices: int) -> list[EventRange]:
        """Return the same events in `slices` partitions; each has all events of its documents, in order."""
        return [EventRange(self.start, self.end, number, slices) for number in range(slices)]

    def cut(self, tokens: Sequence[Token]) -> list[EventRange]:
        """Return the same events as consecutive ranges, divided at these tokens, which are in order."""
        bounds = [self.start, *tokens, self.end]
        return [replace(self, start=start, end=end) for start, end in pairwise(bounds)]

    def undivided(self) -> EventRange:
        """Return the events of all slices."""
        return EventRange(self.start, self.end)


@dataclass(frozen=True, slots=True)
class SnapshotPartition(InputPartition):
    """A chunk of the snapshot that began at `token`. The `first` also has snapshotBegin, the `last` snapshotEnd."""

    token: Token
    first: bool
    chunk: Chunk | None
    last: bool


@dataclass(frozen=True, slots=True)
class ReplacementSnapshot(InputPartition):
    """A complete snapshot in one partition. It replaces a range of pruned events that ended at `token`."""

    token: Token


@dataclass(frozen=True, slots=True)
class PastPartition(InputPartition):
    """The collection's documents at `token`, read from the server with pre-images."""

    token: Token


@dataclass(frozen=True, slots=True)
class ArchivedPartition(InputPartition):
    """A slice of the documents at `token`, computed from the archive's snapshot `base` and the later events.

    If the slices are a snapshot, the `first` partition begins with snapshotBegin and the `last` ends with snapshotEnd.
    """

    token: Token
    base: ArchivedSnapshot
    slice: int
    slices: int
    first: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class MergedRanges(InputPartition):
    """A range of each server, in the order of the options; None for a server without a range."""

    ranges: tuple[EventRange | None, ...]

    def sliced(self, slices: int) -> list[MergedRanges]:
        """Return the same events in `slices` partitions, divided as in `EventRange.sliced`."""
        each = [[None] * slices if one is None else one.sliced(slices) for one in self.ranges]
        return [MergedRanges(tuple(ranges)) for ranges in zip(*each, strict=True)]


@dataclass(frozen=True, slots=True)
class ServerPartition(InputPartition):
    """A partition of one of several servers; `number` is the server's index in the options."""

    number: int
    partition: InputPartition
