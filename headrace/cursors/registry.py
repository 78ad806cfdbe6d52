"""The cursors that clients have ids of: opened, looked up, closed, and closed when they are idle.

Source: MongoDB closes a cursor after ten minutes without a getMore; drivers kill those they abandon.
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
    """Its `CursorRecord`, from `Cursors.add` on."""

    def close(self) -> None: ...


class CursorRecord:
    """The fields of an open cursor that `$currentOp` shows besides its position."""

    __slots__ = ("batch_count", "client", "command", "created_ms", "document_count")

    def __init__(self, client: Any, command: bytes, document_count: int) -> None:
        self.client = client
        """The `ClientInfo` of the client that opened it."""
        self.command = command
        """The command that opened it, as BSON; of a long one its name and `$truncated`."""
        self.created_ms = 0.0
        """When, on the monotonic clock."""
        self.batch_count = 1
        self.document_count = document_count

    def count(self, document_count: int) -> None:
        """Another batch was returned."""
        self.batch_count += 1
        self.document_count += document_count


class Cursors:
    """All open cursors by id."""

    def __init__(self, clock: Clock, killed: Callable[[Any], None], memory: Memory) -> None:
        """`clock`: for when a cursor was last read. `killed`: called with each that is killed: one may wait for it."""
        self._clock = clock
        self._memory = memory
        self._accounts: dict[int, Account] = {}
        """The memory of each client's cursors, by its connection's number: an address may soon be another client's."""
        self._killed = killed
        self._open: dict[int, Any] = {}
        self.owners: dict[int, Any] = {}
        """The owners of cursors that users have opened, by cursor id, on a server with authorization:
        `Access.owner`."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Any:
        return iter(list(self._open.values()))

    def add(self, cursor: OpenCursor, record: CursorRecord, session: bytes | None = None, owner: Any = None) -> int:
        """Register the cursor for the client of `record`, under a random positive 63-bit number as its id; one of a
        reader process has its id.

        If memory is short, cursors of the client that holds most are killed: this one may be among them.
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
        """A cursor holds `size` bytes now. Where memory is short, cursors are killed: it may be this one."""
        more, cursor.read_ahead_bytes = size - cursor.read_ahead_bytes, size
        if more and cursor.account is not None:
            cursor.account.add(more)

    def _make_room(self, connection_id: int) -> None:
        """Kill a cursor of a client, and more until a tenth of the memory is free, or it holds half. Those that
        hold most go first, so that a change stream does not go with the scan beside it; of equal ones the oldest."""
        account, memory = self._accounts[connection_id], self._memory
        half = account.bytes // 2
        held = [item for item in self._open.values() if item.account is account]
        for cursor in sorted(held, key=lambda item: item.read_ahead_bytes, reverse=True):
            self.kill(cursor.id)
            if memory.used <= memory.bytes_max * 0.9 or account.bytes <= half:
                return

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
