"""How far a micro-batch may reach: reads tokens ahead of Spark, in the driver, without the events themselves.

Rules:
- The end is an event's token, or the place where the server had nothing more; see `feed.py`.
- A transaction is never cut: all its events have one cluster time, and the end is never between two events
  of one time.
- An invalidate ends a batch: what comes after it is another collection under the same name.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from bson import Timestamp

from headrace.spark.feed import ChangeCursor, Feed
from headrace.spark.options import Position
from headrace.spark.tokens import Token

_TOKENS_ONLY: Final = ({"$project": {"_id": 1}},)
_BATCH_ROWS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reach:
    """The end of the next batch; `rows` events lie before it, at least, and an invalidate is its last if `closed`."""

    token: Token
    rows: int = 0
    closed: bool = False


class ReadAhead:
    """Tokens read and not yet given to a batch. Not for two threads."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._cursor: ChangeCursor | None = None
        self._given = Token("")
        self._ahead: deque[Token] = deque()

    def advance(self, start: Token, *, rows_max: int | None, until: Timestamp | None, wait_ms: int) -> Reach:
        """The end of a batch after `start`: at most `rows_max` rows, or all there are now; nothing later than `until`.

        With `until` it waits until the server has come to it; else at most `wait_ms` for a first event.
        """
        cursor = self._standing_at(start)
        bound = until or (None if rows_max else self._feed.now())
        while not self._enough(cursor, rows_max, bound) and not (cursor.closed and self._ahead):
            events = cursor.next_batch(wait_ms=1 if self._ahead else wait_ms)
            self._take_in([Token.of(event["_id"]) for event in events], None if rows_max else bound)
            if not events and (until is None or cursor.closed):
                break
        return self._cut(cursor, rows_max, bound)

    def close(self) -> None:
        if self._cursor:
            self._cursor.close()
            self._cursor = None

    def _standing_at(self, start: Token) -> ChangeCursor:
        if self._cursor is None or self._given != start:
            self.close()
            self._ahead.clear()
            self._cursor = self._feed.open(
                Position("token", token=start), stages=_TOKENS_ONLY, batch_rows=_BATCH_ROWS_MAX
            )
            self._given = start
        return self._cursor

    def _enough(self, cursor: ChangeCursor, rows_max: int | None, bound: Timestamp | None) -> bool:
        if bound and (cursor.covers(bound) or (self._ahead and self._ahead[-1].time > bound)):
            return True
        # One more than asked for, of another time: only then is it known where the last transaction ends.
        if rows_max is None or len(self._ahead) <= rows_max:
            return False
        return self._ahead[-1].time != self._ahead[rows_max - 1].time

    def _take_in(self, tokens: list[Token], bound: Timestamp | None) -> None:
        for token in tokens:
            # Without a limit of rows the last token before the bound stands for all before it.
            if bound and self._ahead and token.time <= bound:
                self._ahead.pop()
            self._ahead.append(token)

    def _cut(self, cursor: ChangeCursor, rows_max: int | None, bound: Timestamp | None) -> Reach:
        last, rows = self._given, 0
        while self._ahead and not (bound and self._ahead[0].time > bound):
            if rows_max and rows >= rows_max and self._ahead[0].time != last.time:
                break
            last = self._ahead.popleft()
            rows += 1
        closed = False
        if not self._ahead:
            last, closed = max(last, cursor.token), cursor.closed
        self._given = last
        return Reach(last, rows, closed)
