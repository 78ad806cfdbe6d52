"""Where events lie: their tokens and sizes without the events, for planning ranges; from either kind of server.

A cursor of marks stands at `token`: all marks up to it were handed out. `drained` says that the last answer to a
question was empty, so that the server had nothing more then; `closed` that an invalidate was the last mark.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from bson import Timestamp

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token

_BATCH_ROWS_MAX: Final = 10_000


class EventMark(NamedTuple):
    """An event's place, and its size as BSON where that was asked for."""

    token: Token
    bytes: int = 0

    @property
    def time(self) -> Timestamp:
        return self.token.time


class MarkCursor(Protocol):
    """Marks in order, from a token on. Not for two threads."""

    @property
    def token(self) -> Token: ...

    @property
    def drained(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    def next_batch(self, *, wait_ms: int) -> list[EventMark]:
        """The next marks, waiting up to `wait_ms` for the first; none if there is none."""

    def close(self) -> None: ...


def open_marks(mongodb: MongoDBStream, start: Token, *, sizes: bool) -> MarkCursor:
    """The marks after `start`. Raises PositionLost."""
    return ArrowMarks(mongodb, start, sizes=sizes) if mongodb.arrow else StreamMarks(mongodb, start, sizes=sizes)


def covers(cursor: MarkCursor, moment: Timestamp) -> bool:
    """Whether everything that happened up to and at `moment` was handed out."""
    return cursor.token.time > moment or (cursor.drained and cursor.token.time == moment)


class StreamMarks:
    """Marks from a change stream that leaves everything else out."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool) -> None:
        self._sizes = sizes
        wanted: dict[str, Any] = {"_id": 1} | ({"bytes": {"$bsonSize": "$$ROOT"}} if sizes else {})
        self._cursor = mongodb.open(
            StreamPosition("token", token=start), stages=({"$project": wanted},), batch_rows=_BATCH_ROWS_MAX
        )

    @property
    def token(self) -> Token:
        return self._cursor.token

    @property
    def drained(self) -> bool:
        return self._cursor.drained

    @property
    def closed(self) -> bool:
        return self._cursor.closed

    def next_batch(self, *, wait_ms: int) -> list[EventMark]:
        return [
            EventMark(Token.of(event["_id"]), event.get("bytes", 0))
            for event in self._cursor.next_batch(wait_ms=wait_ms)
        ]

    def close(self) -> None:
        self._cursor.close()


class ArrowMarks:
    """Marks from a Headrace: nothing is held open there."""

    def __init__(self, mongodb: MongoDBStream, start: Token, *, sizes: bool) -> None:
        self._mongodb = mongodb
        self._columns = ["token", "bytes"] if sizes else ["token"]
        self.token = start
        self.drained = self.closed = False

    def next_batch(self, *, wait_ms: int) -> list[EventMark]:
        from headrace.values.arrow.batches import batches_of

        reply = self._mongodb.changes(
            self.token, None, columns=self._columns, rowsMax=_BATCH_ROWS_MAX, waitMs=wait_ms
        )  # fmt: skip
        self.token = max(self.token, Token.of(reply["token"]))
        self.drained, self.closed = not reply["rows"] and reply["idle"], reply["closed"]
        columns = [column.to_pylist() for batch in batches_of(reply["arrow"]) for column in batch.columns]
        sizes = columns[1] if len(columns) > 1 else [0] * reply["rows"]
        return [EventMark(Token(text), size) for text, size in zip(columns[0], sizes, strict=True)]

    def close(self) -> None:
        """Nothing: the server keeps nothing."""
