"""The partitions of a batch: what a worker needs, besides the options, to read its rows, and how it reads them.

A range of events gives the same rows each time it is read. A chunk of a snapshot may give newer documents, each with
the token at which it is valid (`timetravel/snapshot.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headrace.spark.mongodb.event_ranges import ReadPartition, read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel import past_from_archive, past_from_images
from headrace.spark.timetravel.archive import ArchivedSnapshot, read_events
from headrace.spark.timetravel.past_from_images import PastUnknown
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow import EventRow

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventRange(ReadPartition):
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

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if options.archive:
            return read_events(options, self.start, self.end, columns, slice_=self.slice, slices=self.slices)
        stream = MongoDBStream(options)
        return read_range(stream, self.start, self.end, columns, slice_=self.slice, slices=self.slices)


@dataclass(frozen=True, slots=True)
class ReplacementSnapshot(ReadPartition):
    """A complete snapshot in one partition. It replaces a range of pruned events that ended at `token`."""

    token: Token

    def rows(self, options: SourceOptions) -> Iterator[EventRow]:
        snapshot = Snapshot(options)
        yield snapshot.begin_row(self.token)
        yield from snapshot.read_all()
        yield snapshot.end_row(self.token)


@dataclass(frozen=True, slots=True)
class PastPartition(ReadPartition):
    """The collection's documents at `token`, read from the server with pre-images."""

    token: Token

    def rows(self, options: SourceOptions) -> Iterable[EventRow]:
        return past_from_images.documents_at(Snapshot(options), self.token)


@dataclass(frozen=True, slots=True)
class ArchivedPartition(ReadPartition):
    """A slice of the documents at `token`, computed from the archive's snapshot `base` and the later events.

    If the slices are a snapshot, the `first` partition begins with snapshotBegin and the `last` ends with snapshotEnd.
    """

    token: Token
    base: ArchivedSnapshot
    slice: int
    slices: int
    first: bool = False
    last: bool = False

    def rows(self, options: SourceOptions) -> Iterator[EventRow]:
        snapshot = Snapshot(options)
        if self.first:
            yield snapshot.begin_row(self.token)
        yield from past_from_archive.documents_at(options, self.token, self.base, self.slice, self.slices)
        if self.last:
            yield snapshot.end_row_at(self.token)


def past_partitions(options: SourceOptions, token: Token) -> Sequence[ReadPartition]:
    """Return the partitions of the collection at `token`: from the archive if possible, otherwise from the server."""
    if options.archive:
        try:
            base = past_from_archive.base_at(options, token)
        except PastUnknown as unknown:
            _LOG.warning("%s. The server is asked instead.", unknown)
        else:
            return [ArchivedPartition(token, base, number, options.partitions) for number in range(options.partitions)]
    return [PastPartition(token)]
