"""The cursors that clients have ids of: open, look up and close them, and close idle ones.

Source: MongoDB closes a cursor after ten minutes without a getMore; drivers kill cursors that they abandon.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from headrace import limits
from headrace.clock import Clock
from headrace.errors import CommandError
from headrace.memory_budget import Account, Memory


class OpenCursor(Protocol):
    """The members that all kinds of cursors share. `commands/reading/get_more.py` knows how to read each kind."""

    id: int
    namespace: str
    is_change_stream: bool
    session: bytes | None
    used_ms: float
    no_timeout: bool
    account: Account | None
    read_ahead_bytes: int
    record: Any
    """Its `CursorRecord`, set by `Cursors.add`."""

    def close(self) -> None: ...


class CursorRecord:
    """The fields of an open cursor that `$currentOp` shows besides its position."""

    __slots__ = ("batch_count", "client", "command", "created_ms", "document_count")

    def __init__(self, client: Any, command: bytes, document_count: int) -> None:
        self.client = client
        """The `ClientInfo` of the client that opened it."""
        self.command = command
        """The command that opened it, as BSON; for a long command its name and `$truncated`."""
        self.created_ms = 0.0
        """When it was opened, on the monotonic clock."""
        self.batch_count = 1
        self.document_count = document_count

    def count(self, document_count: int) -> None:
        """Count another batch."""
        self.batch_count += 1
        self.document_count += document_count


class Cursors:
    """All open cursors by id."""

    def __init__(self, clock: Clock, killed: Callable[[Any], None], memory: Memory) -> None:
        """`clock`: gives the time of a cursor's last read. `killed`: called with each killed cursor, because a getMore
        may wait for it."""
        self._clock = clock
        self._memory = memory
        self._accounts: dict[int, Account] = {}
        """The memory of each client's cursors, by connection number. An address may soon belong to another client."""
        self._killed = killed
        self._open: dict[int, Any] = {}
        self.owners: dict[int, Any] = {}
        """The owners of cursors (`Access.owner`) by cursor id, on a server with authorization."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Any:
        return iter(list(self._open.values()))

    def add(self, cursor: OpenCursor, record: CursorRecord, session: bytes | None = None, owner: Any = None) -> int:
        """Register the cursor for the client of `record`; return its id, a random positive 63-bit number. A reader
        process's cursor already has an id.

        If memory is short, cursors of the client that holds most are killed, possibly this one.
        """
        cursor.id = cursor.id or (int.from_bytes(os.urandom(8), "big") >> 2) + 1
        cursor.session = session
        cursor.used_ms = record.created_ms = self._clock.monotonic_ms()
        cursor.record = record
        self._open[cursor.id] = cursor
        if owner is not None:
            self.owners[cursor.id] = owner
        client = record.client
        account = self._accounts.get(client.connection_id)
        if account is None:
            release = partial(self._make_room, client.connection_id)
            account = self._memory.account(f"open cursors of {client.address}", release, may_close=False)
            self._accounts[client.connection_id] = account
        cursor.account = account
        account.add(limits.CURSOR_BYTES + cursor.read_ahead_bytes)
        return int(cursor.id)

    def count_read_ahead(self, cursor: OpenCursor, size: int) -> None:
        """Note that a cursor now holds `size` bytes. If memory is short, cursors are killed, possibly this one."""
        more, cursor.read_ahead_bytes = size - cursor.read_ahead_bytes, size
        if more and cursor.account is not None:
            cursor.account.add(more)

    def _make_room(self, connection_id: int) -> None:
        """Kill cursors of a client until a tenth of the memory is free or the client holds half as much. Cursors that
        hold most are killed first, so that a scan does not cost the client its change stream; among equals the
        oldest."""
        account, memory = self._accounts[connection_id], self._memory
        half = account.bytes // 2
        held = [item for item in self._open.values() if item.account is account]
        for cursor in sorted(held, key=lambda item: item.read_ahead_bytes, reverse=True):
            self.kill(cursor.id)
            if memory.used <= memory.bytes_max * 0.9 or account.bytes <= half:
                return

    def peek(self, cursor_id: Any) -> Any:
        """Return an open cursor or None, without the checks of a getMore."""
        return self._open.get(cursor_id)

    def get(self, cursor_id: int, namespace: str) -> Any:
        """Return the cursor of a getMore. Raises 43 if there is none, 13 if it belongs to another namespace."""
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
        """Close a cursor. Return False if there is none."""
        cursor = self._open.pop(cursor_id, None)
        if cursor is None:
            return False
        self.owners.pop(cursor_id, None)
        self._give_back(cursor)
        cursor.close()
        return True

    def _give_back(self, cursor: OpenCursor) -> None:
        account, cursor.account = cursor.account, None
        if account is not None:
            account.add(-limits.CURSOR_BYTES - cursor.read_ahead_bytes)
            if account.bytes == 0:
                account.close()
                del self._accounts[cursor.record.client.connection_id]

    def kill(self, cursor_id: int) -> bool:
        """Close a cursor for which a client's getMore may be waiting. Return False if there is none."""
        cursor = self._open.get(cursor_id)
        if cursor is None:
            return False
        self.remove(cursor_id)
        self._killed(cursor)
        return True

    def sessions(self) -> list[bytes]:
        """Return the sessions that have open cursors."""
        return list({item.session for item in self._open.values() if item.session is not None})

    def remove_of_sessions(self, sessions: Sequence[bytes]) -> None:
        """Close the cursors of ended sessions."""
        ended = set(sessions)
        for cursor_id in [item.id for item in self._open.values() if item.session in ended]:
            self.kill(cursor_id)

    def remove_idle(self, now_ms: float) -> int:
        """Close cursors that were not read for ten minutes; return their number."""
        limit = now_ms - limits.CURSOR_IDLE_MS_MAX
        idle = [item.id for item in self._open.values() if item.used_ms < limit and not item.no_timeout]
        for cursor_id in idle:
            self.remove(cursor_id)
        return len(idle)

    def remove_all(self) -> None:
        """Close every cursor."""
        for cursor_id in list(self._open):
            self.remove(cursor_id)
