"""The partitions of a batch: what a worker needs besides the options to read its rows (`read_partition.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.archive_table import ArchivedSnapshot
from headrace.spark.timetravel.snapshot import Chunk


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
class SnapshotPartition(InputPartition):
    """A chunk of the snapshot at `token`; with the row before the first one, and with the row after the last one."""

    token: Token
    first: bool
    chunk: Chunk | None
    last: bool


@dataclass(frozen=True, slots=True)
class ReplacementSnapshot(InputPartition):
    """All of a snapshot in one part, in place of events that are lost; they ended at `token`."""

    token: Token


@dataclass(frozen=True, slots=True)
class PastPartition(InputPartition):
    """The collection's documents as they were at `token`, from the server."""

    token: Token


@dataclass(frozen=True, slots=True)
class ArchivedPartition(InputPartition):
    """A slice of the collection's documents as they were at `token`, from the archive: its snapshot `base` and on.

    With the rows that begin and end a snapshot, if it is the `first` part of one, the `last`.
    """

    token: Token
    base: ArchivedSnapshot
    slice: int
    slices: int
    first: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class MergedRanges(InputPartition):
    """A range of each server, in the order of the options; None for one of which there is nothing."""

    ranges: tuple[EventRange | None, ...]

    def sliced(self, slices: int) -> list[MergedRanges]:
        each = [[None] * slices if one is None else one.sliced(slices) for one in self.ranges]
        return [MergedRanges(tuple(part)) for part in zip(*each, strict=True)]


@dataclass(frozen=True, slots=True)
class ServerPartition(InputPartition):
    """A part of one of several servers, of its snapshot or its past: `number` counts in the order of the options."""

    number: int
    part: InputPartition
