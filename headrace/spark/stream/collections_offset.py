"""The offset of a stream of several collections: the token, the snapshots to be read, and the snapshots in the batch.

    {"token", ["typeBits"],              the events up to the token were read, except of collections that wait
     "selection": text,                  the selected collections (`mongodb/collection_selection.py`)
     "waiting": ["shop.a", …],           collections whose snapshots have not begun; their events are omitted until then
     "reading": {name, begun, after},    a snapshot that began at the token `begun`; the keys up to `after` were read
     "skipped": ["shop.log"],            collections whose document events are omitted
     "snapshots": [{name, begun, first, chunks, last}],   the pieces of snapshots in the batch that ends here
     "initial": true}                    nothing was read; the first batch is made even if it is empty

Empty fields are omitted. The pieces in a batch are stored, not computed from two offsets, because a batch may have many
small collections, each from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Chunk

if TYPE_CHECKING:
    from headrace.spark.stream.collections_stream import CollectionsStream

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """The running snapshot of the collection `name`. It began at `begun`, and the keys up to `after` were read."""

    name: str
    begun: Token
    after: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """The piece of a snapshot in a batch. `first`: it has the snapshot's beginning. `last`: it has the end."""

    name: str
    begun: Token
    first: bool
    chunks: tuple[Chunk, ...]
    last: bool

    def document(self) -> dict[str, Any]:
        """Return the piece as a dict for the offset."""
        chunks = [[chunk.upto, chunk.after] for chunk in self.chunks]
        begun = [self.begun.text, self.begun.type_bits]
        return {"name": self.name, "begun": begun, "first": self.first, "chunks": chunks, "last": self.last}

    @classmethod
    def of(cls, given: dict[str, Any]) -> SnapshotPiece:
        """Return the piece from the dict that `document` returned."""
        chunks = tuple(Chunk(upto, after) for upto, after in given["chunks"])
        return cls(given["name"], Token(*given["begun"]), given["first"], chunks, given["last"])


@dataclass(frozen=True, slots=True)
class CollectionsOffset:
    """An offset as a value; see the module."""

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
        """Return the offset with the snapshots of these collections waiting, also of those whose snapshot has begun."""
        new = tuple(dict.fromkeys(name for name in names if name not in self.waiting))
        reading = None if self.reading and self.reading.name in new else self.reading
        skipped = tuple(name for name in self.skipped if name not in new)
        return replace(self, waiting=(*self.waiting, *new), reading=reading, skipped=skipped)

    def document(self) -> Offset:
        """Return the offset as Spark stores it."""
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
        """Return the offset from the dict that `document` returned."""
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


ALL: Final = Chunk("")
"""The chunk that is a whole collection."""


def planned(offset: CollectionsOffset, begin: Token, rows_max: int, source: CollectionsStream) -> CollectionsOffset:
    """Return the offset, with the same token, after a batch of about `rows_max` documents of snapshots.

    Only one snapshot runs at a time. A new snapshot begins at `begin`, the offset's position. A collection that fits
    into the batch is one chunk. A batch has at most `SNAPSHOT_COLLECTION_COUNT_MAX` collections.
    """
    pieces: list[SnapshotPiece] = []
    waiting, running, rows = list(offset.waiting), offset.reading, rows_max
    while rows > 0 and (running or waiting) and len(pieces) < limits.SNAPSHOT_COLLECTION_COUNT_MAX:
        begins = running is None
        snapshot = running or RunningSnapshot(waiting[0], begin)
        count = source.count(snapshot.name) if begins else 0
        if begins and rows < count <= rows_max:
            break  # the collection fits into the next batch
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


def _piece(snapshot: RunningSnapshot, first: bool, rows: int, source: CollectionsStream) -> tuple[SnapshotPiece, int]:
    """Return the next chunks of a large collection, and how many more rows the batch may have."""
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
