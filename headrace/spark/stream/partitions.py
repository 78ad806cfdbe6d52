"""The partitions of a batch: what a worker needs, besides the options, to read its rows, and how it reads them.

A range of events gives the same rows each time it is read. A chunk of a snapshot may give newer documents, each with
the token at which it is valid (`timetravel/snapshot.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson import Timestamp
from pymongo.collection import Collection

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.collection_selection import CollectionSelection, namespace_of, text_of
from headrace.spark.mongodb.event_ranges import ARROW_ROWS, ReadPartition, read_range
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, SERVER
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import NAMES, rename_target
from headrace.spark.stream.offsets import ArchiveRun, ServerOffset, SnapshotPiece
from headrace.spark.timetravel.archive import ArchivedSnapshot, end_at, read_events
from headrace.spark.timetravel.past import PastUnknown, base_at, documents_by_archive, documents_by_images
from headrace.spark.timetravel.snapshot import Chunk, Snapshot, batches_at
from headrace.values.arrow.event_columns import EventRow
from headrace.values.bson import decode, encode

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
        return documents_by_images(Snapshot(options), self.token)


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
        yield from documents_by_archive(options, self.token, self.base, self.slice, self.slices)
        if self.last:
            yield snapshot.end_row_at(self.token)


def past_partitions(options: SourceOptions, token: Token) -> Sequence[ReadPartition]:
    """Return the partitions of the collection at `token`: from the archive if possible, otherwise from the server."""
    if options.archive:
        try:
            base = base_at(options, token)
        except PastUnknown as unknown:
            _LOG.warning("%s. The server is asked instead.", unknown)
        else:
            return [ArchivedPartition(token, base, number, options.partitions) for number in range(options.partitions)]
    return [PastPartition(token)]


@dataclass(frozen=True, slots=True)
class CollectionEvents(ReadPartition):
    """Events of the selected collections, without those of waiting collections and document events of skipped ones."""

    events: EventRange
    selection: CollectionSelection
    waiting: frozenset[str]
    skipped: frozenset[str]

    def undivided(self) -> CollectionEvents:
        """Return the same events in one partition."""
        return replace(self, events=self.events.undivided())

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = (*columns, *(name for name in NAMES if name not in columns))
        return (self._selected(batch).select(list(columns)) for batch in self.events.read(options, wanted))

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that belong to the partition."""
        # There are few kinds and many rows, so each kind is tested once.
        kinds = zip(*(batch.column(name).to_pylist() for name in NAMES[:3]), strict=True)
        known: dict[tuple[str | None, str | None, str | None], bool] = {}
        flags = []
        for number, kind in enumerate(kinds):
            if kind[0] == "rename":
                to = rename_target(batch.column("other")[number].as_py())
                flags.append(self._wants(*kind) or (to is not None and self._wants("rename", *to)))
                continue
            if kind not in known:
                known[kind] = self._wants(*kind)
            flags.append(known[kind])
        return batch if all(flags) else batch.filter(pa.array(flags, pa.bool_()))

    def _wants(self, operation: str | None, database: str | None, collection: str | None) -> bool:
        if database is None or collection is None:
            return True
        name = text_of((database, collection))
        skipped = name in self.skipped and operation in DOCUMENT_OPERATIONS
        return self.selection.matches((database, collection)) and name not in self.waiting and not skipped


@dataclass(frozen=True, slots=True)
class SnapshotPieces(ReadPartition):
    """Pieces of snapshots in a batch, each in order."""

    pieces: tuple[SnapshotPiece, ...]

    def rows(self, options: SourceOptions) -> Iterator[EventRow]:
        for piece in self.pieces:
            snapshot = snapshot_of(options, piece.name)
            if piece.first:
                yield snapshot.begin_row(piece.begun)
            for chunk in piece.chunks:
                yield from snapshot.read(Chunk(chunk.upto, chunk.after))
            if piece.last:
                yield snapshot.end_row(piece.begun)


def event_partitions(
    start: ServerOffset, end: ServerOffset, divide: Callable[[EventRange], Sequence[EventRange]]
) -> Sequence[EventRange | CollectionEvents]:
    """Return the partitions of the events between two offsets; `divide` divides a range."""
    if start.token >= end.token:
        return []
    ranges = divide(EventRange(start.token, end.token))
    if start.selection is None:
        return ranges
    begun = {piece.name for piece in end.snapshots if piece.first}
    waiting, skipped = frozenset(start.waiting) - begun, frozenset(end.skipped)
    return [CollectionEvents(events, start.selection, waiting, skipped) for events in ranges]


def archived_partitions(token: Token, start: ArchiveRun, end: ArchiveRun | None) -> list[ArchivedPartition]:
    """Return the partitions between two offsets of a snapshot from the archive, whose rows are valid at the token."""
    base, slices = ArchivedSnapshot(Token(start.begin), Token(start.end)), start.slices
    return [
        ArchivedPartition(token, base, number, slices, number == 0, number == slices - 1)
        for number in range(start.done, end.done if end else slices)
    ]


def snapshot_partitions(pieces: Sequence[SnapshotPiece], options: SourceOptions, rows: int) -> list[SnapshotPieces]:
    """Return the partitions of a batch's snapshots: up to `options.partitions`.

    One task reads a piece that ends its snapshot, because the end must be later than all its rows.
    """
    units = [unit for piece in pieces for unit in _units(piece, options, rows)]
    count = min(len(units), options.partitions)
    return [SnapshotPieces(tuple(units[number::count])) for number in range(count)]


def _units(piece: SnapshotPiece, options: SourceOptions, rows: int) -> list[SnapshotPiece]:
    if piece.last or not piece.chunks or options.partitions == 1:
        return [piece]
    snapshot = snapshot_of(options, piece.name)
    chunks = [each for chunk in piece.chunks for each in snapshot.split(chunk, rows, options.partitions)]
    return [replace(piece, first=piece.first and not nth, chunks=(chunk,)) for nth, chunk in enumerate(chunks)]


def snapshot_of(options: SourceOptions, name: str) -> Snapshot:
    """Return the snapshot of the collection `database.collection`."""
    database, collection = namespace_of(name)
    return Snapshot(replace(options, database=database, collection=collection))


@dataclass(frozen=True, slots=True)
class MergedRanges(ReadPartition):
    """A range of each server, in the order of the options; None for a server without a range."""

    ranges: tuple[EventRange | None, ...]

    def sliced(self, slices: int) -> list[MergedRanges]:
        """Return the same events in `slices` partitions, divided as in `EventRange.sliced`."""
        each = [[None] * slices if one is None else one.sliced(slices) for one in self.ranges]
        return [MergedRanges(tuple(ranges)) for ranges in zip(*each, strict=True)]

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = tuple(columns) if "token" in columns else ("token", *columns)
        each = zip(options.servers, self.ranges, strict=True)
        return _merged({server_name(one.uri): events.read(one, wanted) for one, events in each if events})


@dataclass(frozen=True, slots=True)
class ServerPartition(ReadPartition):
    """A partition of one of several servers; `number` is the server's index in the options."""

    number: int
    partition: ReadPartition

    def read(self, options: SourceOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        one = options.servers[self.number]
        return (_named(batch, server_name(one.uri)) for batch in self.partition.read(one, columns))


def merged_past_partitions(options: SourceOptions) -> list[ServerPartition]:
    """Return the partitions of each server's documents at a past time, by the server's own clock."""
    if options.as_of is None or options.as_of.time is None:
        raise OptionError("a token is of one server: several are asked for the collections as of a time")
    each = ((one, end_at(MongoDBStream(one), options.as_of.time)) for one in options.servers)
    return [ServerPartition(number, part) for number, server in enumerate(each) for part in past_partitions(*server)]


def _merged(inputs: Mapping[str, Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the servers' rows in order. Rows are complete up to the time to which the slowest server was read."""
    read_to = dict.fromkeys(inputs, "")
    """The servers that have not ended, each with the time of its last row read, as hexadecimal digits of a token."""
    rows: dict[str, pa.Table] = {}
    while read_to or rows:
        slowest = min(read_to, key=read_to.__getitem__, default=None)
        complete = []
        for server in inputs:
            if table := rows.pop(server, None):
                early = None if slowest is None else pc.sum(pc.less(_times(table), read_to[slowest])).as_py()
                complete.append(table.slice(0, early))
                rows |= {} if early is None else {server: table.slice(early)}
        if any(table.num_rows for table in complete):
            table = pa.concat_tables(complete)
            order = pc.sort_indices(_times(table))  # stable: servers and tokens stay in order
            yield from table.take(order).combine_chunks().to_batches(max_chunksize=ARROW_ROWS)
        if slowest is not None:
            batch = next(inputs[slowest], None)
            if batch is None:
                del read_to[slowest]
            elif batch.num_rows:
                table = pa.table(_named(batch, slowest))
                read_to[slowest] = _times(table)[-1].as_py()
                rows[slowest] = pa.concat_tables([rows[slowest], table]) if slowest in rows else table


def _times(table: pa.Table) -> pa.ChunkedArray:
    return pc.utf8_slice_codeunits(table["token"], 2, 18)


def _named(batch: pa.RecordBatch, server: str) -> pa.RecordBatch:
    return batch.append_column(SERVER, pa.array([server] * batch.num_rows, type=pa.string()))


@dataclass(frozen=True, slots=True)
class DocumentRange(ReadPartition):
    """A partition: the documents of one cluster time with keys from `low` to before `high`, read in parallel by tasks.

    A bound is BSON of {"_id": key}, or empty. It is a part of the index on `_id`, read with read concern `snapshot`, so
    the ranges have each document once, wherever they begin. The server must keep the time for as long as the tasks
    take: a Headrace for an hour, a MongoDB for `minSnapshotHistoryWindowInSeconds`, five minutes by default.
    """

    token: Token
    time: Timestamp
    low: bytes = b""
    high: bytes = b""

    def rows(self, options: SourceOptions) -> Iterator[EventRow]:
        snapshot = Snapshot(options)
        bounds: dict[str, Any] = {name: decode(key) for name, key in (("min", self.low), ("max", self.high)) if key}
        hinted = {"hint": {"_id": 1}, **bounds} if bounds else {}
        for _, batch in batches_at(_collection(options), self.time, **hinted):
            for document in batch:
                yield snapshot.row(self.token, document)


def key_ranges(options: SourceOptions, count: int) -> list[DocumentRange]:
    """Return the collection at present, in up to `count` ranges of similar size; in more if it is large.

    Raise NoSnapshotRead.
    """
    collection = _collection(options)
    keys: dict[str, Any] = {"projection": {"_id": 1}, "limit": 1}
    time, _ = next(batches_at(collection, **keys))
    rows = collection.estimated_document_count()
    count = max(min(count, rows), min(rows // limits.SNAPSHOT_RANGE_ROW_COUNT, limits.SNAPSHOT_RANGE_COUNT_MAX))
    bounds = [b""]
    for number in range(1, count):
        start = {"min": decode(bounds[-1])} if bounds[-1] else {}
        skip = rows * number // count - rows * (number - 1) // count
        _, found = next(batches_at(collection, time, **keys, hint={"_id": 1}, sort={"_id": 1}, **start, skip=skip))
        if not found:
            break
        bounds.append(encode({"_id": found[0]["_id"]}))
    token = MongoDBStream(options).end_at(time)
    return [DocumentRange(token, time, low, high) for low, high in zip(bounds, [*bounds[1:], b""], strict=True)]


def _collection(options: SourceOptions) -> Collection[dict[str, Any]]:
    return client_of(options.uri)[options.database or ""][options.collection or ""]
