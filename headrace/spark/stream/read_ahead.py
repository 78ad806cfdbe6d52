"""The ends of micro-batches: the driver reads tokens and sizes ahead of Spark, without the events themselves.

Rules:

- The end is an event's token, or the position at which the server had nothing more; see `mongodb/mongodb_stream.py`.
- A transaction is never split: its events have one cluster time, and the end never lies between events of one time.
- An invalidate ends a batch: the next event is of another collection with the same name.

While Spark processes a full batch, `read_on` already reads the marks for the end of the next. The marks also show where
a batch can be divided (`splits`), so that each partition reads its own range of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from bson import Timestamp

from headrace import limits
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import EventMark, MarkCursor, RunBounds, covers, open_marks
from headrace.values.position import from_timestamp, to_timestamp

_RUN_ROWS: Final = limits.PARTITION_ROW_COUNT_MIN // 5
"""The number of events for which one mark is enough, where only their number matters."""


class ReadAhead:
    """Marks that were read and are not in a batch yet. Not thread-safe."""

    def __init__(self, mongodb: MongoDBStream, open_marks: Callable[[Token], MarkCursor]) -> None:
        self._mongodb = mongodb
        self._open_marks = open_marks
        self._cursor: MarkCursor | None = None
        self._last_end = self._last_nonempty_end = Token("")
        self._ahead: deque[EventMark] = deque()
        self._row_count = 0
        """The number of events of all marks ahead."""
        self._passed: _PassedBatch | None = None
        self._is_full = False
        """Whether the limits ended the last batch."""
        self._reading: Future[None] | None = None
        """The read that `read_on` began. Until it is done, its thread owns the marks and the cursor."""

    def advance(self, start: Token, bounds: BatchLimits, *, until: Timestamp | None, wait_ms: int) -> BatchEnd:
        """Return the end of a batch after `start`: within the limits, or at the last event now; not later than `until`.

        With `until`, wait until the server is past it; otherwise wait at most `wait_ms` for a first event. Raise
        PositionLost.
        """
        cursor = self._cursor_at(start)
        if until is None and not self._ahead:
            # Wait before reading the server's time, so that events that come meanwhile are in this batch.
            self._append(cursor.next_batch(wait_ms=wait_ms), None)
            if not self._ahead:
                return self._cut(start, cursor, bounds, None)
        bound = until or (None if bounds else self._mongodb.now())
        self._read(cursor, bounds, bound, wait_ms=wait_ms, to_end=until is not None)
        return self._cut(start, cursor, bounds, bound)

    def read_on(self, bounds: BatchLimits, *, until: Timestamp | None) -> None:
        """Begin to read, in a thread, the marks that the next batch needs, if the last batch was full.

        If the read fails, the next call repeats it and raises the error.
        """
        if self._is_full and self._cursor and not self._reading:
            pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-read-ahead")
            self._reading = pool.submit(self._read, self._cursor, bounds, until, wait_ms=1, to_end=False)
            pool.shutdown(wait=False)  # the thread ends when the read is done

    def _read(
        self, cursor: MarkCursor, bounds: BatchLimits, bound: Timestamp | None, *, wait_ms: int, to_end: bool
    ) -> None:
        """Read marks until a batch has enough or the server has no more; with `to_end`, all marks up to `bound`."""
        while not self._has_enough(cursor, bounds, bound) and not (cursor.closed and self._ahead):
            run = None if bounds.bytes else RunBounds(self._room(bounds), bound)
            marks = cursor.next_batch(wait_ms=1 if self._ahead else wait_ms, run=run)
            self._append(marks, None if bounds else bound)
            if not marks and (not to_end or cursor.closed):
                break

    def splits(self, start: Token, end: Token, count: int) -> list[Token]:
        """Return tokens that divide the last planned batch, from `start` to `end`, into up to `count` similar ranges.

        Return no tokens for a small batch, or for a batch that another process planned.
        """
        passed = self._passed
        if passed is None or (passed.start, passed.end) != (start, end):
            return []
        count = min(count, passed.rows // limits.PARTITION_ROW_COUNT_MIN)
        splits: list[Token] = []
        for token, rows in passed.marks:
            if len(splits) + 1 < count and rows * count >= (len(splits) + 1) * passed.rows and start < token < end:
                splits.append(token)
        return splits

    def reachable_time(self, start: Token, bounds: BatchLimits, *, wait_ms: int) -> Timestamp:
        """Return the time, inclusive, up to which a batch after `start` could reach within the limits; consume nothing.

        `advance` without limits, with an `until` not after this time, then takes that batch.
        """
        cursor = self._cursor_at(start)
        while not self._has_enough(cursor, bounds, None) and not (cursor.closed and self._ahead):
            marks = cursor.next_batch(wait_ms=1 if self._ahead else wait_ms)
            self._append(marks, None)
            if not marks:
                break
        within = self._count_within(bounds)
        if within is not None or (cursor.closed and self._ahead):
            return self._ahead[(within or len(self._ahead)) - 1].time
        return cursor.token.time if cursor.drained else _tick_before(cursor.token.time)

    def close(self) -> None:
        """Close the cursor; the next call opens another."""
        self._await_reading()
        if self._cursor:
            self._cursor.close()
            self._cursor = None

    def _await_reading(self) -> None:
        if self._reading:
            wait((self._reading,))
            self._reading = None

    def _cursor_at(self, start: Token) -> MarkCursor:
        self._await_reading()
        # A caller that got an empty batch may ask again from its start.
        if self._cursor is None or start not in (self._last_end, self._last_nonempty_end):
            self.close()
            self._ahead.clear()
            self._row_count = 0
            self._cursor = self._open_marks(start)
            self._last_end = self._last_nonempty_end = start
        return self._cursor

    def _has_enough(self, cursor: MarkCursor, bounds: BatchLimits, bound: Timestamp | None) -> bool:
        if bound and (covers(cursor, bound) or (self._ahead and self._ahead[-1].time > bound)):
            return True
        # The end of the last transaction is known once a mark after the limit has another time.
        within = self._count_within(bounds)
        return within is not None and self._ahead[-1].time != self._ahead[within - 1].time

    def _room(self, bounds: BatchLimits) -> int:
        """Return how many more events are within the limits, for one run."""
        # An eighth of the events ahead: partitions are then similar enough.
        room = max(_RUN_ROWS, self._row_count // 8)
        return room if bounds.rows is None else min(room, bounds.rows - self._row_count)

    def _count_within(self, bounds: BatchLimits) -> int | None:
        """Return how many of the marks are within the limits, at least one; None if all are."""
        if bounds.bytes is None:
            if not bounds.rows or self._row_count <= bounds.rows:
                return None
            within, rows = len(self._ahead), self._row_count
            while rows > bounds.rows and within > 1:
                within -= 1
                rows -= self._ahead[within].rows
            return within
        size = 0
        for count, mark in enumerate(self._ahead):
            size += mark.bytes
            if count and ((bounds.rows and count >= bounds.rows) or size > bounds.bytes):
                return count
        return None

    def _append(self, marks: list[EventMark], bound: Timestamp | None) -> None:
        for mark in marks:
            self._row_count += mark.rows
            # Without limits only two things matter: the last mark up to `bound`, and where the batch can be divided.
            if bound and self._ahead and mark.time <= bound:
                rows = self._ahead[-1].rows + mark.rows
                if rows <= _RUN_ROWS:
                    self._ahead.pop()
                    mark = mark._replace(rows=rows)
            self._ahead.append(mark)

    def _cut(self, start: Token, cursor: MarkCursor, bounds: BatchLimits, bound: Timestamp | None) -> BatchEnd:
        within = self._count_within(bounds)
        passed = _PassedBatch(start, self._last_end)
        count, time = 0, None
        while self._ahead and not (bound and self._ahead[0].time > bound):
            if within is not None and count >= within and self._ahead[0].time != time:
                break
            mark = self._ahead.popleft()
            count, time = count + 1, mark.time
            passed.take(mark)
        self._row_count -= passed.rows
        last, rows, closed = passed.end, passed.rows, False
        if not self._ahead:
            last, closed = max(last, cursor.token), cursor.closed
        passed.end = self._last_end = last
        self._is_full = within is not None
        self._passed = passed
        if rows or closed:
            self._last_nonempty_end = last
        return BatchEnd(last, rows, closed)


class _PassedBatch:
    """A planned batch, with a mark about every `_RUN_ROWS` rows, each with the number of rows up to it."""

    def __init__(self, start: Token, end: Token) -> None:
        self.start, self.end = start, end
        self.rows = 0
        self.marks: list[tuple[Token, int]] = []
        self._due = 0

    def take(self, mark: EventMark) -> None:
        self.rows += mark.rows
        self.end = mark.token
        if self.rows >= self._due:
            self.marks.append((mark.token, self.rows))
            self._due = self.rows + _RUN_ROWS


def read_ahead(mongodb: MongoDBStream, *, sizes: bool = False) -> ReadAhead:
    """Return a ReadAhead of this stream; with `sizes` if bytes are limited."""
    return ReadAhead(mongodb, lambda start: open_marks(mongodb, start, sizes=sizes))


def _tick_before(moment: Timestamp) -> Timestamp:
    return to_timestamp(from_timestamp(moment) - 1)
