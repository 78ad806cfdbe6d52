"""Tokens and sizes of the events of several collections, as `event_marks.py`, with what they say of collections.

A rename to a selected name brings documents that come in no event. They are read in the batch that has the rename, if
they fit into it. Otherwise the marks stop there, as at an invalidate: the batch ends, and the collection waits for its
snapshot. They stop, too, at the drop of a collection that is skipped, after which one of that name is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, text_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import EventMark, RunBounds
from headrace.values.bson import decode

_COLUMNS = ("token", "operationType", "database", "collection", "other")
_GOES = frozenset({"drop", "rename"})


class NamedMark(NamedTuple):
    """An event's mark, its operation, its collection, and the one that it is renamed to."""

    mark: EventMark
    operation: str
    namespace: Namespace | None
    to: Namespace | None = None


class NamedMarks(NamedTuple):
    """A reply: its marks, the position at its end, and as a `MarkCursor` has them."""

    marks: list[NamedMark]
    token: Token
    drained: bool
    closed: bool


class JoinedSnapshot(NamedTuple):
    """The snapshot of a collection to which a rename gave its name: it begins after the rename, and fits its batch."""

    renamed_at: Token
    name: str
    rows: int


class CollectionSource(Protocol):
    """Questions to the server about collections that come up."""

    def unseen(self, names: list[Namespace]) -> set[Namespace]:
        """Which of these collections are to be skipped."""

    def snapshot_rows(self, name: str) -> int | None:
        """About how many rows a snapshot of the collection has; None if it waits for one, or one is being read."""


class CollectionMarks:
    """See `event_marks.MarkCursor`. The renamed collections of a batch have some `rows_max` documents at most."""

    def __init__(
        self, read: Callable[[int], NamedMarks], start: Token, selection: CollectionSelection,
        skipped: Iterable[str], source: CollectionSource, rows_max: int, close: Callable[[], None],
    ) -> None:  # fmt: skip
        self._read, self._selection, self._source, self._close = read, selection, source, close
        self._rows_max = rows_max
        self.token = start
        self.drained = self.closed = False
        self.stopped_at: Token | None = None
        """The last mark at which a batch had to end."""
        self.renamed_to: tuple[str, ...] = ()
        """The selected collections whose documents came by the rename there, and which wait for their snapshots."""
        self.joined: list[JoinedSnapshot] = []
        """The snapshots that are read in the batch of their rename, of the batches that the caller has not done yet."""
        self.skips: list[tuple[Token, str, bool]] = []
        """From which event on a collection is skipped, or no longer."""
        self._skipped = set(skipped)
        self._seen: set[Namespace] = set()
        self._waiting = NamedMarks([], start, False, False)

    def begin_batch(self, start: Token) -> None:
        """A batch begins at `start`: what joined those before it does not count any more."""
        self.joined = [each for each in self.joined if each.renamed_at > start]

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        if not self._waiting.marks:
            self._waiting = self._read(wait_ms)
        marks, token, self.drained, self.closed = self._waiting
        self._look(marks)
        stop = next((number for number, each in enumerate(marks, 1) if self._stops(each)), None)
        if stop is None:
            self.token = max(token, self.token)
            self._waiting = self._waiting._replace(marks=[])
            return [each.mark for each in marks]
        self.token = self.stopped_at = marks[stop - 1].mark.token
        self.drained, self.closed = False, True
        self._waiting = self._waiting._replace(marks=marks[stop:])
        return [each.mark for each in marks[:stop]]

    def close(self) -> None:
        self._close()

    def _look(self, marks: list[NamedMark]) -> None:
        """Asks of the collections that were not seen before."""
        names = dict.fromkeys(name for each in marks for name in (each.namespace, each.to) if name)
        new = [name for name in names if name not in self._seen and self._selection.matches(name)]
        if new:
            skipped = self._source.unseen(new)
            self._seen.update(new)
            first = {each.namespace: each.mark.token for each in reversed(marks)}
            self.skips += [(first.get(name, marks[0].mark.token), text_of(name), True) for name in skipped]
            self._skipped.update(map(text_of, skipped))

    def _stops(self, each: NamedMark) -> bool:
        if each.operation not in _GOES or each.namespace is None:
            return False
        self._seen.discard(each.namespace)
        name = text_of(each.namespace)
        freed = name in self._skipped
        if freed:
            self._skipped.discard(name)
            self.skips.append((each.mark.token, name, False))
        self.renamed_to = ()
        if each.to and self._selection.matches(each.to) and text_of(each.to) not in self._skipped:
            self._renamed_to(text_of(each.to), each.mark.token, stops=freed)
        return freed or bool(self.renamed_to)

    def _renamed_to(self, name: str, token: Token, *, stops: bool) -> None:
        """Decides whether the snapshot of the name that a rename gave is read in the batch of the rename."""
        full = len(self.joined) >= limits.SNAPSHOT_COLLECTION_COUNT_MAX
        again = any(each.name == name for each in self.joined)
        rows = None if stops or full or again else self._source.snapshot_rows(name)
        if rows is None or sum(each.rows for each in self.joined) + rows > self._rows_max:
            self.renamed_to = (name,)
        else:
            self.joined.append(JoinedSnapshot(token, name, rows))


def open_named(mongodb: MongoDBStream, start: Token, *, sizes: bool) -> tuple[Callable[[int], NamedMarks], Any]:
    """A function that reads the next marks after `start`, and one that ends the reading. Raises PositionLost."""
    if mongodb.arrow:
        return _ArrowReader(mongodb, start, sizes=sizes), lambda: None
    reader = _BsonReader(mongodb, start, sizes=sizes)
    return reader, reader.cursor.close


class _ArrowReader:
    """Marks from a Headrace."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool) -> None:
        self._mongodb, self._token = mongodb, start
        self._columns = [*_COLUMNS, "bytes"] if sizes else list(_COLUMNS)

    def __call__(self, wait_ms: int) -> NamedMarks:
        from headrace.values.arrow.batches import batches_of

        reply = self._mongodb.changes(
            self._token, None, columns=self._columns, rowsMax=limits.EVENT_MARK_COUNT_MAX, waitMs=wait_ms
        )  # fmt: skip
        self._token = max(self._token, Token.of(reply["token"]))
        marks: list[NamedMark] = []
        for batch in batches_of(reply["arrow"]):
            columns = [column.to_pylist() for column in batch.columns]
            sizes = columns[5] if len(columns) > 5 else [0] * batch.num_rows
            for text, operation, database, collection, other, size in zip(*columns[:5], sizes, strict=True):
                namespace = (database, collection) if database and collection else None
                to = rename_target(other) if operation == "rename" else None
                marks.append(NamedMark(EventMark(Token(text), size), operation, namespace, to))
        return NamedMarks(marks, self._token, not reply["rows"] and reply["idle"], reply["closed"])


class _BsonReader:
    """Marks from a change stream that projects all other fields away."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool) -> None:
        wanted: dict[str, Any] = {"_id": 1, "operationType": 1, "ns": 1, "to": 1}
        wanted |= {"bytes": {"$bsonSize": "$$ROOT"}} if sizes else {}
        position = StreamPosition("token", token=start)
        self.cursor = mongodb.open(position, stages=({"$project": wanted},), batch_rows=limits.EVENT_MARK_COUNT_MAX)

    def __call__(self, wait_ms: int) -> NamedMarks:
        marks = []
        for event in self.cursor.next_batch(wait_ms=wait_ms):
            name = event.get("ns", {})
            namespace = (name["db"], name["coll"]) if "coll" in name else None
            mark = EventMark(Token.of(event["_id"]), event.get("bytes", 0))
            marks.append(NamedMark(mark, event["operationType"], namespace, _target(event)))
        return NamedMarks(marks, self.cursor.token, self.cursor.drained, self.cursor.closed)


def rename_target(other: bytes | None) -> Namespace | None:
    """The collection that a rename's row, by its column `other`, names as the new one."""
    return _target(decode(other)) if other else None


def _target(event: dict[str, Any]) -> Namespace | None:
    to = event.get("to")
    return (to["db"], to["coll"]) if isinstance(to, dict) else None
