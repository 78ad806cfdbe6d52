"""Tokens and sizes of events without the events, to plan ranges; as Arrow from a Headrace, as BSON from other servers.

With `names`, marks also have the operation and the collection: drops and renames affect the snapshots of several
collections (`CollectionMarks`). A Headrace can also count: where the tokens between do not matter, one mark stands for
a run of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bson import Timestamp

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, text_of
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.values.bson import decode
from headrace.values.position import from_timestamp, to_timestamp
from headrace.values.token import decode_token, high_water_mark

if TYPE_CHECKING:
    from headrace.spark.stream.server_stream import ServerStream

NAMES: Final = ("operationType", "database", "collection", "other")
"""The columns that name an event's collection, and the new name of a rename."""


class EventMark(NamedTuple):
    """An event's token and its size as BSON in bytes (0 if sizes were not requested), or a run of `rows` events."""

    token: Token
    bytes: int = 0
    rows: int = 1
    between: bool = False
    """Whether the token of a run is the position after its last event, instead of the token of that event."""
    operation: str = ""
    namespace: Namespace | None = None
    """The event's collection; `to` is the new name of a rename."""
    to: Namespace | None = None

    @property
    def time(self) -> Timestamp:
        """The cluster time of the (last) event, or a time up to which there is no further event."""
        return to_timestamp(from_timestamp(self.token.time) - 1) if self.between else self.token.time


class RunBounds(NamedTuple):
    """The most events of a mark, and its latest time, inclusive (None: any)."""

    rows: int
    until: Timestamp | None = None


class MarkCursor(Protocol):
    """Marks in order, after a token. Not thread-safe."""

    token: Token
    """The position: all marks up to it were returned."""
    drained: bool
    """Whether the last request returned nothing, because the server had nothing more at that time."""
    closed: bool
    """Whether the last mark is an invalidate."""

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        """Return the next marks; none if none comes within `wait_ms`. Raise PositionLost.

        With `run` the cursor may return one mark for a run of events, if it can count.
        """

    def close(self) -> None:
        """Close the server's cursor, if there is one."""


def open_marks(mongodb: MongoDBStream, start: Token, *, sizes: bool, names: bool = False) -> MarkCursor:
    """Return a cursor of the marks after `start`, with `sizes` and `names` if requested. Raise PositionLost."""
    return (ArrowMarks if mongodb.arrow else StreamMarks)(mongodb, start, sizes=sizes, names=names)


def covers(cursor: MarkCursor, moment: Timestamp) -> bool:
    """Whether all marks up to `moment`, inclusive, were returned."""
    return cursor.token.time > moment or (cursor.drained and cursor.token.time == moment)


class StreamMarks:
    """Marks from a change stream that projects all other fields away."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool, names: bool = False) -> None:
        wanted: dict[str, Any] = {"_id": 1} | ({"bytes": {"$bsonSize": "$$ROOT"}} if sizes else {})
        wanted |= {"operationType": 1, "ns": 1, "to": 1} if names else {}
        self._cursor = mongodb.open(
            StreamPosition("token", token=start), stages=({"$project": wanted},), batch_rows=limits.EVENT_MARK_COUNT_MAX
        )
        self.token, self.drained, self.closed = self._cursor.token, self._cursor.drained, self._cursor.closed

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        marks = list(map(_mark_of, self._cursor.next_batch(wait_ms=wait_ms)))
        self.token, self.drained, self.closed = self._cursor.token, self._cursor.drained, self._cursor.closed
        return marks

    def close(self) -> None:
        self._cursor.close()


class ArrowMarks:
    """Marks from a Headrace, without a cursor on the server."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool, names: bool = False) -> None:
        self._mongodb = mongodb
        self._columns = ["token", *(NAMES if names else ()), *(["bytes"] if sizes else [])]
        self.token = start
        self.drained = self.closed = False

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        from headrace.values.arrow.batches import batches_of

        if run and run.rows > 1 and len(self._columns) == 1:
            return self._run(wait_ms, run)
        reply = self._mongodb.changes(
            self.token, None, columns=self._columns, rowsMax=limits.EVENT_MARK_COUNT_MAX, waitMs=wait_ms
        )  # fmt: skip
        self.token = max(self.token, Token.of(reply["token"]))
        self.drained, self.closed = not reply["rows"] and reply["idle"], reply["closed"]
        rows = [row for batch in batches_of(reply["arrow"]) for row in zip(*map(_values, batch.columns), strict=True)]
        if len(self._columns) == 1:
            return [EventMark(Token(text)) for (text,) in rows]
        return [_mark_of_row(dict(zip(self._columns, row, strict=True))) for row in rows]

    def _run(self, wait_ms: int, run: RunBounds) -> list[EventMark]:
        """Return one mark for the next events, which the server counts without making their tokens."""
        until = None if run.until is None else Token(high_water_mark(from_timestamp(run.until) + 1))
        reply = self._mongodb.changes(self.token, until, columns=[], rowsMax=run.rows, waitMs=wait_ms)
        self.token = max(self.token, Token.of(reply["token"]))
        self.drained, self.closed = not reply["rows"] and reply["idle"], reply["closed"]
        if not reply["rows"]:
            return []
        end = self.token if until is None else min(self.token, until)
        return [EventMark(end, 0, reply["rows"], decode_token(end.document()).is_high_water_mark)]

    def close(self) -> None:
        """Nothing to do: there is no cursor."""


def rename_target(other: bytes | None) -> Namespace | None:
    """Return the new name of the collection in a row of a rename; `other` is the row's column."""
    return _target(decode(other)) if other else None


def _target(event: dict[str, Any]) -> Namespace | None:
    to = event.get("to")
    return (to["db"], to["coll"]) if isinstance(to, dict) else None


def _mark_of(event: dict[str, Any]) -> EventMark:
    name = event.get("ns", {})
    namespace = (name["db"], name["coll"]) if "coll" in name else None
    return EventMark(
        Token.of(event["_id"]), event.get("bytes", 0), operation=event.get("operationType", ""), namespace=namespace,
        to=_target(event),
    )  # fmt: skip


def _mark_of_row(row: dict[str, Any]) -> EventMark:
    operation, database, collection = (row.get(name) or "" for name in NAMES[:3])
    namespace = (database, collection) if database and collection else None
    to = rename_target(row["other"]) if operation == "rename" else None
    return EventMark(Token(row["token"]), row.get("bytes", 0), operation=operation, namespace=namespace, to=to)


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


_GOES: Final = frozenset({"drop", "rename"})


class CollectionMarks:
    """Marks of the events of several collections, and how they affect the collections' snapshots; see `MarkCursor`.

    A rename to a selected name brings documents without events. So the marks stop there, as at an invalidate: the batch
    ends, and the collection waits for its snapshot. The marks also stop at the drop of a skipped collection, because a
    later collection of that name is another one.
    """

    def __init__(
        self, cursor: MarkCursor, selection: CollectionSelection, skipped: Iterable[str], source: ServerStream
    ) -> None:
        self._cursor, self._selection, self._source = cursor, selection, source
        self.token = cursor.token
        self.drained = self.closed = False
        self.stopped_at: Token | None = None
        """The last mark at which a batch had to end."""
        self.renamed_to: tuple[str, ...] = ()
        """The selected names to which that mark renames a collection, and whose snapshots must wait."""
        self.skips: list[tuple[Token, str, bool]] = []
        """The events from which on a collection is skipped (True) or no longer skipped (False)."""
        self._skipped = set(skipped)
        self._seen: set[Namespace] = set()
        self._waiting: list[EventMark] = []

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        cursor = self._cursor
        marks = self._waiting or cursor.next_batch(wait_ms=wait_ms)
        self._look(marks)
        stop = next((number for number, each in enumerate(marks, 1) if self._stops(each)), None)
        if stop is None:
            self.token, self._waiting = max(cursor.token, self.token), []
            self.drained, self.closed = cursor.drained, cursor.closed
            return marks
        self.token = self.stopped_at = marks[stop - 1].token
        self.drained, self.closed = False, True
        self._waiting = marks[stop:]
        return marks[:stop]

    def close(self) -> None:
        self._cursor.close()

    def _look(self, marks: list[EventMark]) -> None:
        """Ask the server about the collections that were not seen before."""
        names = dict.fromkeys(name for each in marks for name in (each.namespace, each.to) if name)
        new = [name for name in names if name not in self._seen and self._selection.matches(name)]
        if new:
            skipped = self._source.unseen(new)
            self._seen.update(new)
            first = {each.namespace: each.token for each in reversed(marks)}
            self.skips += [(first.get(name, marks[0].token), text_of(name), True) for name in skipped]
            self._skipped.update(map(text_of, skipped))

    def _stops(self, each: EventMark) -> bool:
        if each.operation not in _GOES or each.namespace is None:
            return False
        self._seen.discard(each.namespace)
        name = text_of(each.namespace)
        freed = name in self._skipped
        if freed:
            self._skipped.discard(name)
            self.skips.append((each.token, name, False))
        self.renamed_to = ()
        if each.to and self._selection.matches(each.to) and text_of(each.to) not in self._skipped:
            self.renamed_to = (text_of(each.to),)
        return freed or bool(self.renamed_to)
