"""The cursors that clients have ids of: opened, looked up, closed, and closed when they are idle.

Source: MongoDB closes a cursor after ten minutes without a getMore; drivers kill those they abandon.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace import limits
from headrace.clock import Clock
from headrace.errors import CommandError
from headrace.turns import tick


class OpenCursor(Protocol):
    """What every kind of cursor has; how it is read differs and is known to `commands/reading/get_more.py`."""

    id: int
    namespace: str
    is_change_stream: bool
    session: bytes | None
    used_ms: float
    no_timeout: bool

    def close(self) -> None: ...


class Cursors:
    """All open cursors by id."""

    def __init__(self, clock: Clock, killed: Callable[[Any], None]) -> None:
        """`clock`: for when a cursor was last read. `killed`: called with each that is killed: one may wait for it."""
        self._clock = clock
        self._killed = killed
        self._open: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Any:
        return iter(list(self._open.values()))

    def add(self, cursor: OpenCursor, session: bytes | None = None) -> int:
        """Give the cursor an id, a random positive 63-bit number, and register it."""
        cursor.id = secrets.randbits(62) + 1
        cursor.session = session
        cursor.used_ms = self._clock.monotonic_ms()
        self._open[cursor.id] = cursor
        return int(cursor.id)

    def peek(self, cursor_id: Any) -> Any:
        """An open cursor or None, without the checks of a getMore."""
        return self._open.get(cursor_id)

    def get(self, cursor_id: int, namespace: str) -> Any:
        """The cursor of a getMore; raises 43 where there is none, 13 where it is another namespace's."""
        cursor = self._open.get(cursor_id)
        if cursor is None:
            raise CommandError(43, f"cursor id {cursor_id} not found")
        if cursor.namespace != namespace:
            raise CommandError(
                13,
                f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace "
                f"{cursor.namespace}",
            )
        cursor.used_ms = self._clock.monotonic_ms()
        return cursor

    def remove(self, cursor_id: int) -> bool:
        """Close a cursor; False where there is none."""
        cursor = self._open.pop(cursor_id, None)
        if cursor is None:
            return False
        cursor.close()
        return True

    def kill(self, cursor_id: int) -> bool:
        """Close a cursor that a client may be waiting for at this moment; False where there is none."""
        cursor = self._open.get(cursor_id)
        if cursor is None:
            return False
        self.remove(cursor_id)
        self._killed(cursor)
        return True

    def sessions(self) -> list[bytes]:
        """The sessions that have cursors open."""
        return list({item.session for item in self._open.values() if item.session is not None})

    def remove_of_sessions(self, sessions: Sequence[bytes]) -> None:
        """Close what the ended sessions opened."""
        ended = set(sessions)
        for cursor_id in [item.id for item in self._open.values() if item.session in ended]:
            tick()
            self.kill(cursor_id)

    def remove_idle(self, now_ms: float) -> int:
        """Close cursors unread for ten minutes; returns how many."""
        limit = now_ms - limits.CURSOR_IDLE_MS_MAX
        idle = [item.id for item in self._open.values() if item.used_ms < limit and not item.no_timeout]
        for cursor_id in idle:
            self.remove(cursor_id)
        return len(idle)

    def remove_all(self) -> None:
        """Close every cursor."""
        for cursor_id in list(self._open):
            self.remove(cursor_id)
