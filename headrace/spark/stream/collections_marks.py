"""Tokens and sizes of the events of several collections, as `event_marks.py`, with what they say of collections.

The marks stop, as at an invalidate, where a batch must end: at a rename to a selected name, whose documents come in no
event, and at the drop of a collection that is skipped, after which one of that name is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, text_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import EventMark
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


class CollectionMarks:
    """See `event_marks.MarkCursor`. `unseen` is asked which of the collections that come up are to be skipped."""

    def __init__(
        self, read: Callable[[int], NamedMarks], start: Token, selection: CollectionSelection,
        skipped: Iterable[str], unseen: Callable[[list[Namespace]], set[Namespace]], close: Callable[[], None],
    ) -> None:  # fmt: skip
        self._read, self._selection, self._ask, self._close = read, selection, unseen, close
        self.token = start
        self.drained = self.closed = False
        self.stopped_at: Token | None = None
        """The last mark at which a batch had to end."""
        self.renamed_to: tuple[str, ...] = ()
        """The selected collections whose documents came by the rename there."""
        self.skips: list[tuple[Token, str, bool]] = []
        """From which event on a collection is skipped, or no longer."""
        self._skipped = set(skipped)
        self._seen: set[Namespace] = set()
        self._waiting = NamedMarks([], start, False, False)

    def next_batch(self, *, wait_ms: int) -> list[EventMark]:
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
            skipped = self._ask(new)
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
            self.renamed_to = (text_of(each.to),)
        return freed or bool(self.renamed_to)


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
    """Marks from a change stream that projects everything else away."""

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
