"""The offset of a stream of one server: the token, the snapshots to be read, and the snapshots in the batch.

    {"token", ["typeBits"],              the events up to the token were read, except of collections that wait
     "selection": text,                  several collections: those selected (`mongodb/collection_selection.py`)
     "waiting": ["shop.a", …],           collections whose snapshots have not begun; their events are omitted until then
     "reading": {name, begun, after, last},   a snapshot that began at the token `begun`; the keys up to `after` were
                                         read, and there is no greater one if `last`
     "skipped": ["shop.log"],            collections whose document events are omitted
     "snapshots": [{name, begun, first, chunks, last}],   the pieces of snapshots in the batch that ends here
     "archive": {begin, end, slices, done},   a snapshot that is computed, at the token, from the archive's snapshot of
                                         begin to end; the first `done` of its slices were read
     "initial": true}                    nothing was read; the first batch is made even if it is empty

Empty fields are omitted. The pieces in a batch are stored, not computed from two offsets, because a batch may have many
small collections, each from its beginning to its end. Offsets of several servers are in `planner.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Chunk

if TYPE_CHECKING:
    from headrace.spark.stream.server_stream import ServerStream

Offset = dict[str, Any]
_SNAPSHOTS: Final = frozenset({"after", "archive", "reading", "waiting"})
"""The fields of an offset while a snapshot is read; `after` is one of 0.1.0."""


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """The running snapshot of the collection `name`. It began at `begun`, and the keys up to `after` were read.

    `last`: no key was greater when the last chunk was planned.
    """

    name: str
    begun: Token
    after: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """The piece of a snapshot in a batch. `first`: it has the snapshot's beginning. `last`: it has the end."""

    name: str
    begun: Token
    first: bool
    chunks: tuple[Chunk, ...]
    last: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> SnapshotPiece:
        """Return the piece from its fields in an offset."""
        chunks = tuple(Chunk(**chunk) for chunk in given["chunks"])
        return cls(**given | {"begun": Token(**given["begun"]), "chunks": chunks})


@dataclass(frozen=True, slots=True)
class ArchiveRun:
    """A snapshot from the archive: its base, and how many of its slices were read."""

    begin: str
    end: str
    slices: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class ServerOffset:
    """An offset as a value; see the module."""

    token: Token
    selection: CollectionSelection | None = None
    waiting: tuple[str, ...] = ()
    reading: RunningSnapshot | None = None
    skipped: tuple[str, ...] = ()
    snapshots: tuple[SnapshotPiece, ...] = ()
    initial: bool = False
    archive: ArchiveRun | None = None

    @property
    def in_snapshot(self) -> bool:
        """Whether snapshots are still to be read."""
        return bool(self.waiting or self.reading or self.archive)

    def with_waiting(self, names: Iterable[str]) -> ServerOffset:
        """Return the offset with the snapshots of these collections waiting, also of those whose snapshot has begun."""
        new = tuple(dict.fromkeys(name for name in names if name not in self.waiting))
        reading = None if self.reading and self.reading.name in new else self.reading
        skipped = tuple(name for name in self.skipped if name not in new)
        return replace(self, waiting=(*self.waiting, *new), reading=reading, skipped=skipped)

    def document(self) -> Offset:
        """Return the offset as Spark stores it."""
        selection = self.selection and self.selection.text()
        fields = {"token": self.token.text, "typeBits": self.token.type_bits, "selection": selection}
        return {name: value for name, value in (asdict(self) | fields).items() if value}

    @classmethod
    def of(cls, given: Offset, name: str = "") -> ServerOffset:
        """Return the offset from the dict that `document` returned.

        `name` is the name of the only collection, which the offsets of 0.1.0 do not have.
        """
        token, archive, reading = Token(given["token"], given.get("typeBits", "")), given.get("archive"), None
        if each := given.get("reading"):
            reading = RunningSnapshot(**each | {"begun": Token(**each["begun"])})
        elif "after" in given and archive:
            archive = archive | {"done": int(given["after"] or 0)}
        elif "after" in given:
            reading = RunningSnapshot(name, token, given["after"], bool(given.get("last")))
        return cls(
            token,
            CollectionSelection.of(given["selection"]) if "selection" in given else None,
            tuple(given.get("waiting", ())),
            reading,
            tuple(given.get("skipped", ())),
            tuple(map(SnapshotPiece.of, given.get("snapshots", ()))),
            bool(given.get("initial")),
            ArchiveRun(**archive) if archive else None,
        )


def in_snapshot(offset: Offset) -> bool:
    """Whether an offset of one server is within a snapshot."""
    return not _SNAPSHOTS.isdisjoint(offset)


ALL: Final = Chunk("")
"""The chunk that is a whole collection."""


def planned(offset: ServerOffset, begin: Token, rows_max: int, source: ServerStream) -> ServerOffset:
    """Return the offset, with the same token, after a batch of about `rows_max` documents of snapshots.

    Only one snapshot runs at a time. A new snapshot begins at `begin`, the offset's position. A collection that fits
    into the batch is one chunk; large documents count as several (`ServerStream.count`). A batch has at most
    `SNAPSHOT_COLLECTION_COUNT_MAX` collections.
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


def with_next_chunk(offset: ServerOffset, rows_max: int, source: ServerStream) -> ServerOffset:
    """Return the offset after a batch of the only collection's snapshot: its next chunk, or its end.

    The end is in a batch of its own, so that several tasks can read the last chunk.
    """
    snapshot = offset.reading or RunningSnapshot(offset.waiting[0], offset.token)
    chunk = None if snapshot.last else source.next_chunk(snapshot.name, snapshot.after, rows_max)
    chunks = (chunk,) if chunk else ()
    piece = SnapshotPiece(snapshot.name, snapshot.begun, not snapshot.after, chunks, not chunks)
    reading = replace(snapshot, after=chunk.upto, last=chunk.last) if chunk else None
    return replace(offset, waiting=(), reading=reading, snapshots=(piece,))


def _piece(snapshot: RunningSnapshot, first: bool, rows: int, source: ServerStream) -> tuple[SnapshotPiece, int]:
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
