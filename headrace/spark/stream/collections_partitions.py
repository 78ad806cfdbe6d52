"""The partitions of a stream of several collections, and how a worker reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headrace.spark.mongodb.collection_selection import CollectionSelection, namespace_of, text_of
from headrace.spark.mongodb.event_ranges import rows_batches
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import DOCUMENT_OPERATIONS
from headrace.spark.stream.collections_offset import CollectionsOffset, SnapshotPiece
from headrace.spark.stream.event_marks import NAMES, rename_target
from headrace.spark.stream.partitions import EventRange
from headrace.spark.stream.read_partition import read_partition
from headrace.spark.timetravel.snapshot import Chunk, Snapshot
from headrace.values.arrow import EventRow

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class CollectionEvents(InputPartition):
    """Events of the selected collections, without those of waiting collections and document events of skipped ones."""

    events: EventRange
    selection: CollectionSelection
    waiting: frozenset[str]
    skipped: frozenset[str]

    def undivided(self) -> CollectionEvents:
        """Return the same events in one partition."""
        return replace(self, events=replace(self.events, slice=0, slices=1))


@dataclass(frozen=True, slots=True)
class CollectionSnapshots(InputPartition):
    """Pieces of snapshots in a batch, each in order."""

    pieces: tuple[SnapshotPiece, ...]


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


def snapshot_partitions(
    pieces: Sequence[SnapshotPiece], options: SourceOptions, rows: int
) -> list[CollectionSnapshots]:
    """Return the partitions of a batch's snapshots: up to `options.partitions`.

    One task reads a piece that ends its snapshot, because the end must be later than all its rows.
    """
    units = [unit for piece in pieces for unit in _units(piece, options, rows)]
    count = min(len(units), options.partitions)
    return [CollectionSnapshots(tuple(units[number::count])) for number in range(count)]


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


def read_collections(
    options: SourceOptions, part: CollectionEvents | CollectionSnapshots, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, as batches of these columns of BSON. Raise what `read_partition` raises."""
    if isinstance(part, CollectionSnapshots):
        return rows_batches(_snapshot_rows(options, part.pieces), columns)
    wanted = (*columns, *(name for name in NAMES if name not in columns))
    batches = read_partition(options, part.events, wanted)
    return (_selected(batch, part).select(list(columns)) for batch in batches)


def _snapshot_rows(options: SourceOptions, pieces: Iterable[SnapshotPiece]) -> Iterator[EventRow]:
    for piece in pieces:
        snapshot = snapshot_of(options, piece.name)
        if piece.first:
            yield snapshot.begin_row(piece.begun)
        for chunk in piece.chunks:
            yield from snapshot.read(Chunk(chunk.upto, chunk.after))
        if piece.last:
            yield snapshot.end_row(piece.begun)


def _selected(batch: pa.RecordBatch, part: CollectionEvents) -> pa.RecordBatch:
    """Return the rows that belong to the partition."""
    import pyarrow as pa

    # There are few kinds and many rows, so each kind is tested once.
    kinds = zip(*(batch.column(name).to_pylist() for name in NAMES[:3]), strict=True)
    known: dict[tuple[str | None, str | None, str | None], bool] = {}
    flags = []
    for number, kind in enumerate(kinds):
        if kind[0] == "rename":
            to = rename_target(batch.column("other")[number].as_py())
            flags.append(_is_wanted(part, kind) or (to is not None and _is_wanted(part, ("rename", *to))))
            continue
        if kind not in known:
            known[kind] = _is_wanted(part, kind)
        flags.append(known[kind])
    return batch if all(flags) else batch.filter(pa.array(flags, pa.bool_()))


def _is_wanted(part: CollectionEvents, kind: tuple[str | None, str | None, str | None]) -> bool:
    operation, database, collection = kind
    if database is None or collection is None:
        return True
    name = text_of((database, collection))
    skipped = name in part.skipped and operation in DOCUMENT_OPERATIONS
    return part.selection.matches((database, collection)) and name not in part.waiting and not skipped
