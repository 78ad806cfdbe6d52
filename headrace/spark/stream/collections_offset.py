"""The offset of a stream of several collections: the token, whose snapshots are still to be read, and what a batch has.

    {"token", ["typeBits"],              the events up to the token were read, of the collections that do not wait
     "selection": text,                  which collections the events are of (`mongodb/collection_selection.py`)
     "waiting": ["shop.a", …],           their snapshots have not begun: their events are left out until then
     "reading": {name, begun, after},    a snapshot that has begun at a token, and was read up to the key `after`
     "skipped": ["shop.log"],            collections whose events of documents are left out
     "snapshots": [{name, begun, first, chunks, last}],   what the batch that ends here has of snapshots
     "initial": true}                    nothing was read; the first batch is made even if it is empty

What is empty is left out. What a batch has is written down, and not computed from two offsets: it may have many small
collections, each from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Chunk

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """The snapshot of the collection `name`, which began at `begun`; the keys up to `after` were read."""

    name: str
    begun: Token
    after: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """The part of a snapshot in a batch: with `first` its beginning, with `last` its end."""

    name: str
    begun: Token
    first: bool
    chunks: tuple[Chunk, ...]
    last: bool

    def document(self) -> dict[str, Any]:
        """The piece as an offset has it."""
        chunks = [[chunk.upto, chunk.after] for chunk in self.chunks]
        begun = [self.begun.text, self.begun.type_bits]
        return {"name": self.name, "begun": begun, "first": self.first, "chunks": chunks, "last": self.last}

    @classmethod
    def of(cls, given: dict[str, Any]) -> SnapshotPiece:
        """The piece that `document` made."""
        chunks = tuple(Chunk(upto, after) for upto, after in given["chunks"])
        return cls(given["name"], Token(*given["begun"]), given["first"], chunks, given["last"])


@dataclass(frozen=True, slots=True)
class CollectionsOffset:
    """See above."""

    token: Token
    selection: CollectionSelection
    waiting: tuple[str, ...] = ()
    reading: RunningSnapshot | None = None
    skipped: tuple[str, ...] = ()
    snapshots: tuple[SnapshotPiece, ...] = ()
    initial: bool = False

    @property
    def in_snapshot(self) -> bool:
        """Whether snapshots are still to be read."""
        return bool(self.waiting) or self.reading is not None

    def with_waiting(self, names: Iterable[str]) -> CollectionsOffset:
        """The offset when the snapshots of these collections are to begin, again if they have begun."""
        new = tuple(dict.fromkeys(name for name in names if name not in self.waiting))
        reading = None if self.reading and self.reading.name in new else self.reading
        skipped = tuple(name for name in self.skipped if name not in new)
        return replace(self, waiting=(*self.waiting, *new), reading=reading, skipped=skipped)

    def document(self) -> Offset:
        """The offset as Spark stores it."""
        token = self.token
        reading = self.reading and {
            "name": self.reading.name, "begun": [self.reading.begun.text, self.reading.begun.type_bits],
            "after": self.reading.after,
        }  # fmt: skip
        fields = {
            "typeBits": token.type_bits,
            "waiting": list(self.waiting),
            "reading": reading,
            "skipped": list(self.skipped),
            "snapshots": [piece.document() for piece in self.snapshots],
            "initial": self.initial,
        }
        head = {"token": token.text, "selection": self.selection.text()}
        return head | {name: value for name, value in fields.items() if value}

    @classmethod
    def of(cls, given: Offset) -> CollectionsOffset:
        """The offset that `document` made."""
        reading = given.get("reading")
        return cls(
            Token(given["token"], given.get("typeBits", "")),
            CollectionSelection.of(given["selection"]),
            tuple(given.get("waiting", ())),
            RunningSnapshot(reading["name"], Token(*reading["begun"]), reading["after"]) if reading else None,
            tuple(given.get("skipped", ())),
            tuple(map(SnapshotPiece.of, given.get("snapshots", ()))),
            bool(given.get("initial")),
        )


class ChunkSource(Protocol):
    """The collections whose chunks are planned."""

    def count(self, name: str) -> int:
        """About how many documents the collection has."""

    def next_chunk(self, name: str, after: str, rows_max: int) -> Chunk | None:
        """As `Snapshot.next_chunk`."""


ALL: Final = Chunk("")
"""A collection in one chunk."""


def planned(offset: CollectionsOffset, begin: Token, rows_max: int, source: ChunkSource) -> CollectionsOffset:
    """The offset after a batch of some `rows_max` documents of snapshots, with the same token; one at a time is begun.

    What begins does so at `begin`, the offset's position. A collection that fits is one chunk, and at most
    `SNAPSHOT_COLLECTION_COUNT_MAX` collections are in a batch.
    """
    pieces: list[SnapshotPiece] = []
    waiting, running, rows = list(offset.waiting), offset.reading, rows_max
    while rows > 0 and (running or waiting) and len(pieces) < limits.SNAPSHOT_COLLECTION_COUNT_MAX:
        begins = running is None
        snapshot = running or RunningSnapshot(waiting[0], begin)
        count = source.count(snapshot.name) if begins else 0
        if begins and rows < count <= rows_max:
            break  # it fits into the next batch
        if begins:
            waiting.pop(0)
        if begins and count <= rows:
            pieces.append(SnapshotPiece(snapshot.name, snapshot.begun, True, (ALL,), True))
            rows -= max(count, 1)
            continue
        piece, rows = _piece(snapshot, begins, rows, source)
        pieces.append(piece)
        running = None if piece.last else replace(snapshot, after=piece.chunks[-1].upto)
    return replace(offset, waiting=tuple(waiting), reading=running, snapshots=tuple(pieces), initial=False)


def _piece(snapshot: RunningSnapshot, first: bool, rows: int, source: ChunkSource) -> tuple[SnapshotPiece, int]:
    """The next chunks of a large collection, and how many rows more the batch may have."""
    chunks: list[Chunk] = []
    after = snapshot.after
    while rows > 0:
        chunk = source.next_chunk(snapshot.name, after, rows)
        if chunk is None:
            return SnapshotPiece(snapshot.name, snapshot.begun, first, tuple(chunks), True), rows
        chunks.append(chunk)
        after = chunk.upto
        if chunk.last:
            return SnapshotPiece(snapshot.name, snapshot.begun, first, tuple(chunks), True), 0
        # A chunk without a beginning is one key: the first of a type.
        rows = 0 if chunk.after else rows - 1
    return SnapshotPiece(snapshot.name, snapshot.begun, first, tuple(chunks), False), 0
