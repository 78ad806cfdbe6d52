"""The partitions of a stream of several collections, and of a snapshot, and how a worker reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.spark.mongodb.collection_selection import CollectionSelection, namespace_of, text_of
from headrace.spark.mongodb.event_ranges import ReadPartition
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import DOCUMENT_OPERATIONS
from headrace.spark.stream.collections_offset import CollectionsOffset, SnapshotPiece
from headrace.spark.stream.event_marks import NAMES, rename_target
from headrace.spark.stream.partitions import EventRange
from headrace.spark.timetravel.snapshot import Chunk, Snapshot
from headrace.values.arrow import EventRow

if TYPE_CHECKING:
    import pyarrow as pa


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
        import pyarrow as pa

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
    start: CollectionsOffset, end: CollectionsOffset, divide: Callable[[EventRange], Sequence[EventRange]]
) -> list[CollectionEvents]:
    """Return the partitions of the events between two offsets; `divide` divides a range."""
    if start.token >= end.token:
        return []
    begun = {piece.name for piece in end.snapshots if piece.first}
    waiting, skipped = frozenset(start.waiting) - begun, frozenset(end.skipped)
    ranges = divide(EventRange(start.token, end.token))
    return [CollectionEvents(events, start.selection, waiting, skipped) for events in ranges]


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
