"""A range of a stream read once, as rows: plain changes directly from the oplog, all others through events.

Rule: the rows equal the events of a `ChangeCursor`, in the same order and with the same errors. Nothing is stored, and
no feed is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.entry import DecodedEntry
from headrace.changes.row_collector import Entry, ReadBounds, RowCollector
from headrace.changes.stream import StreamSpec
from headrace.cursors.change_cursor import ChangeCursor, ViewSource, check_read
from headrace.cursors.feed import Feeds
from headrace.errors import CommandError
from headrace.values.arrow.event_columns import RowColumns
from headrace.values.bson import encode
from headrace.values.position import LAST

_TIME_END: Final = 18
"""The end of a token's cluster time."""
_LOOK: Final = 63
"""The time is checked every 64 entries."""


class RowCursor(ChangeCursor):
    """A stream that is opened after a token for one `read`."""

    __slots__ = ("_late_at", "_looked_at", "_taker", "_until_ms", "moved")

    def __init__(
        self, spec: StreamSpec, builder: EventBuilder, feeds: Feeds, source: ViewSource, clock_ms: Callable[[], float],
        bounds: ReadBounds,
    ) -> None:  # fmt: skip
        super().__init__(spec, builder, feeds, source, clock_ms)
        self._taker = RowCollector(builder, spec.shape, bounds)
        self._until_ms = clock_ms() + limits.SCAN_MS_MAX
        self._looked_at = 0
        self._late_at: int | None = None
        self.moved = False
        """Whether an event of any slice was passed."""

    @property
    def rows(self) -> RowColumns:
        """The rows read so far, as columns."""
        return self._taker.rows

    def read(self, source: ViewSource, until: str | None) -> None:
        """Read the rows up to and including the token `until`, or as many as the bounds allow."""
        view = source.newest_view
        check_read(view, self._read_from)
        end = LAST if until is None else int(until[2:_TIME_END], 16)
        entries = self._entries(view)
        looked_at = 0
        while True:
            entry = self._next(entries, end)
            if entry is None:
                break
            position, raw = entry
            if not self._take(raw, until, position > end):
                return
            looked_at += 1
            if not looked_at & _LOOK and self._is_late(position):
                break
        if self._late_at is not None:
            self._advance_mark(self._late_at)
        elif not self._taker.full:
            self.idle = True
            self._advance_mark(view.state.last_position)

    def _next(self, entries: Iterator[Entry], end: int) -> Entry | None:
        """Collect plain rows, and return the next entry that is not plain."""
        if self._guard is not None and self._guard.settled:
            self._guard = None
        if self._guard is not None or not self._builder.plain:
            return next(entries, None)
        entry = self._taker.run(entries, end, self._is_late)
        passed = self._taker.passed()
        if passed is not None:
            self.position, self.token = passed
            self.moved = True
        return entry

    def _take(self, raw: bytes, until: str | None, past: bool) -> bool:
        """Take the events of an entry, which may be past the end. Return whether there is more to take."""
        items = [] if past else self._builder.build(DecodedEntry(raw), self._guard)
        failure = None
        for event in items:
            if isinstance(event, CommandError):
                failure = event
                break
            past = until is not None and event.token > until
            if past or (event.document is not None and not self._taker.add(event.document)):
                break
            self._hand_out(event, [])
            self.moved = True
            if event.closes:
                return False
        if past:
            self.token = encode({"_data": until})
        elif failure is not None and not self.moved:
            raise failure
        return not (past or failure or self._taker.full)

    def _is_late(self, position: int) -> bool:
        self._looked_at += _LOOK + 1
        late = self._looked_at >= limits.SCAN_ENTRY_COUNT_MAX or self._clock_ms() > self._until_ms
        if late:
            self._late_at = position
        return late
