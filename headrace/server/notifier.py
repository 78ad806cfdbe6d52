"""Waiting commands. Each runs again when something in its scope is committed, or at its deadline.

Rule: no watcher waits for ever once a matching commit exists, and an idle watcher costs nothing. A commit looks up the
scopes that it touched and wakes only the commands that wait there. Each iteration of the loop wakes a few, so that a
writer does not wait for a thousand watchers. Streams with slow stages of their own come after all others, one per
iteration.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import monotonic
from headrace.cursors.feed import scope_keys
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import Interrupted
from headrace.running_command import TURN_SECONDS
from headrace.store.store import Committed

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer

SLOW_SECONDS: Final = 0.001
"""A stream with stages whose last batch took longer than this is read after quicker streams."""

NEVER_MS: Final = float("inf")


class Parked:
    """One waiting command."""

    __slots__ = ("command", "key", "peer", "request")

    def __init__(self, peer: Peer, command: Command, request: Request, key: Any) -> None:
        self.peer = peer
        self.command = command
        self.request = request
        self.key = key


class Notifier:
    """Parked commands by the key that they wait for; with the key None they wait only for their deadline."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._parked: dict[Any, dict[Parked, None]] = {}
        self._woken: deque[Parked] = deque()
        self._slow: deque[Parked] = deque()
        core.store.listeners.append(self.committed)

    def park(self, peer: Peer, command: Command, request: Request, wait: Wait) -> None:
        """Park a command until its scope is touched or its deadline, which counts from its first Wait."""
        now_ms = self._core.loop.time() * 1000.0
        if request.wait_until_ms is None:
            request.wait_until_ms = now_ms + wait.wait_ms
            request.since_ms = now_ms
        request.time_is_up = request.time_is_up or request.wait_until_ms <= now_ms
        if request.time_is_up or (wait.over is not None and wait.over()):
            self.queue(peer, command, request)
            return
        parked = peer.waiting = Parked(peer, command, request, wait.scope)
        if request.wait_until_ms < peer.timer_ms:
            self._set_timer(peer, request.wait_until_ms)
        here = self._parked.get(wait.scope)
        if here is None:
            here = self._parked[wait.scope] = {}
        here[parked] = None

    def interrupt(self, connection_id: int) -> None:
        """End the waiting or woken commands of a connection with error 11601."""
        ended = [item for here in self._parked.values() for item in here if _is_of(item, connection_id)]
        for parked in ended:
            self._remove(parked)
        for queue in (self._woken, self._slow):
            for parked in [item for item in queue if _is_of(item, connection_id)]:
                queue.remove(parked)
                ended.append(parked)
        for parked in ended:
            answer = self._core.engine.failure(Interrupted(11601, "operation was interrupted"), parked.request)
            self._core.loop.call_soon(parked.peer.finish, answer)

    def leave(self, peer: Peer) -> None:
        """Drop the parked command of a peer that disconnected."""
        if peer.wait_timer is not None:
            peer.wait_timer.cancel()
            peer.timer_ms = NEVER_MS
        if peer.waiting is not None:
            self._remove(peer.waiting)

    def wake_key(self, key: Any) -> None:
        """Run the commands that wait for `key` (a killed cursor, an ended transaction) again."""
        self._run_first(list(self._parked.get(key, ())))

    def cursor_killed(self, cursor: Any) -> None:
        """Run the getMore that waits for this cursor again, if there is one, so that it reports the kill."""
        here = self._parked.get(cursor.key, ())
        self._run_first([item for item in here if _waits_for(item.request, cursor)])

    def _run_first(self, waiting: list[Parked]) -> None:
        """Run commands again in the next iteration of the loop, before those that were woken earlier."""
        if waiting:
            self._schedule()
            for parked in waiting:
                self._remove(parked)
            self._woken.extendleft(reversed(waiting))

    def committed(self, committed: Committed) -> None:
        """Wake the commands whose scopes a commit touched. A listener of the store."""
        parked = self._parked
        if not parked:
            return
        for key in scope_keys([topic for topics, _, _ in committed.runs for topic in topics], parked):
            if here := parked[key]:
                self._wake(here)

    def queue(self, peer: Peer, command: Command, request: Request) -> None:
        """Run a command at its turn. A command on a slow stream comes after the others."""
        self._schedule()
        item = Parked(peer, command, request, None)
        cursor = request.cursor
        (self._woken if cursor is None or not cursor.is_slow else self._slow).append(item)

    def _schedule(self) -> None:
        if not self._woken and not self._slow:
            self._core.loop.call_soon(self._run_woken)

    def _wake(self, here: dict[Parked, None]) -> None:
        self._schedule()
        woken, slow = self._woken.append, self._slow.append
        for item in here:
            cursor = item.request.cursor
            (woken if cursor is None or not cursor.is_slow else slow)(item)
            item.peer.waiting = None
        here.clear()

    def _run_woken(self) -> None:
        woken, slow = self._woken, self._slow
        now = monotonic()
        ends = now + TURN_SECONDS
        try:
            for _ in range(min(len(woken), limits.WOKEN_COUNT_MAX)):
                parked = woken.popleft()
                parked.peer.wake(parked.command, parked.request)
                begun, now = now, monotonic()
                if (cursor := parked.request.cursor) is not None and cursor.has_stages:
                    cursor.is_slow = now - begun > SLOW_SECONDS
                if now > ends:
                    break
            if slow:
                parked = slow.popleft()
                parked.peer.wake(parked.command, parked.request)
                parked.request.cursor.is_slow = monotonic() - now > SLOW_SECONDS
        finally:
            if woken or slow:
                self._core.writer.call_after_writes(self._run_woken)

    def _set_timer(self, peer: Peer, at_ms: float) -> None:
        """Set the peer's timer, instead of the one that it may have."""
        if peer.wait_timer is not None:
            peer.wait_timer.cancel()
        peer.timer_ms = at_ms
        peer.wait_timer = self._core.loop.call_at(at_ms / 1000.0, self._time_is_up, peer)

    def _time_is_up(self, peer: Peer) -> None:
        """Run the waiting command again if its deadline has passed. The timer may be an earlier command's."""
        at_ms, peer.timer_ms = peer.timer_ms, NEVER_MS
        parked = peer.waiting
        if parked is None:
            return
        if parked.request.wait_until_ms > at_ms:
            self._set_timer(peer, parked.request.wait_until_ms)
            return
        self._remove(parked)
        parked.request.time_is_up = True
        self._schedule()
        self._woken.append(parked)

    def _remove(self, parked: Parked) -> None:
        parked.peer.waiting = None
        here = self._parked.get(parked.key)
        if here is not None:
            here.pop(parked, None)
            if not here:
                del self._parked[parked.key]


def _is_of(parked: Parked, connection_id: int) -> bool:
    return bool(parked.peer.client.connection_id == connection_id)


def _waits_for(request: Request, cursor: Any) -> bool:
    """Return whether this is a getMore of the cursor. A change stream's request holds its cursor, others name it."""
    if request.cursor is not None:
        return request.cursor is cursor
    return request.name == "getMore" and request.body.get("getMore") == cursor.id
