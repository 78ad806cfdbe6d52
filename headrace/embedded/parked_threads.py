"""Threads whose command returned `Wait`. Each sleeps until a commit touches its scope, or until its time is up.

This is the shell of an embedded engine (`dispatch.shell.Shell`). While the store is served, the engine's calls also go
to the server's shell, whose clients wait there. Only the profiler's documents always stay with the store.

Rule: all but the sleep itself happens under the engine's lock, so that no wake-up is missed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import monotonic
from headrace.cursors.feed import scope_keys
from headrace.dispatch.request import Request
from headrace.dispatch.shell import Shell
from headrace.dispatch.wait import Wait
from headrace.errors import Interrupted
from headrace.store.store import Committed

if TYPE_CHECKING:
    from headrace.embedded.local_engine import Caller, LocalEngine


class Released:
    """Releases a lock of the caller for the length of a `with`."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        retake(self._lock)


def retake(lock: threading.Lock) -> None:
    """Acquire a lock. An exception during the wait (Ctrl-C) is raised once the lock is held."""
    is_held, interruption = False, None
    while not is_held:
        try:
            for is_held in iter(lock.acquire, None):  # noqa: B007  (acquired and noted in one step of the interpreter)
                break
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


_NO_SHELL: Final = Shell()


class ParkedThread:
    """A waiting thread."""

    __slots__ = ("interruption", "request", "woken")

    def __init__(self, request: Request, woken: threading.Lock) -> None:
        self.request = request
        self.woken = woken
        self.interruption: Interrupted | None = None

    def wake(self) -> None:
        """Let the thread run its command again. A second call has no effect."""
        if self.woken.locked():
            self.woken.release()


class ParkedThreads:
    """The waiting threads, by the key that they wait for. A `Shell`, with the rest from the server's shell."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self._parked: dict[Any, dict[ParkedThread, None]] = {}

    def wait(self, caller: Caller, request: Request, wait: Wait) -> None:
        """Wait, without the engine's lock, until the command must run again. Raises the interruption, if any."""
        now_ms = monotonic() * 1000.0
        if request.wait_until_ms is None:
            request.wait_until_ms = now_ms + wait.wait_ms
            request.since_ms = now_ms
        left_ms = request.wait_until_ms - now_ms
        if left_ms <= 0:
            request.time_is_up = True
        if request.time_is_up or self._local.unusable is not None:
            return
        if wait.over is not None and wait.over():
            with Released(self._local.lock):
                self._local.give_way()
            return
        parked = ParkedThread(request, caller.woken)
        waiting = self._parked.setdefault(wait.scope, {})
        waiting[parked] = None
        caller.woken.acquire()
        is_woken = False
        try:
            with Released(self._local.lock):
                is_woken = caller.woken.acquire(timeout=min(left_ms / 1000, threading.TIMEOUT_MAX))
        finally:
            if parked.woken.locked():
                parked.woken.release()
            waiting.pop(parked, None)
            if not waiting and self._parked.get(wait.scope) is waiting:
                del self._parked[wait.scope]
        if parked.interruption is not None:
            raise parked.interruption
        request.time_is_up = request.time_is_up or not is_woken

    def wake_all(self) -> None:
        """Wake all threads, because the store is closed."""
        for waiting in self._parked.values():
            _wake(waiting)

    def committed(self, committed: Committed) -> None:
        """Wake the threads that wait for a scope of this commit. The store calls this at each commit."""
        parked = self._parked
        if not parked:
            return
        for key in scope_keys([topic for topics, _, _ in committed.runs for topic in topics], parked):
            _wake(parked[key])

    # Called by the engine: `dispatch.shell.Shell`.

    @property
    def _server(self) -> Shell:
        """The server's shell while the store is served."""
        return self._local.core or _NO_SHELL

    def __getattr__(self, name: str) -> Any:
        """Return what only a server has, such as its log: from the server's shell, or without effect."""
        return getattr(self._server, name)

    def profiled(self, namespace: str, document: bytes | None) -> None:
        """Store a document of the profiler, in a job of the store."""
        if len(self._local.profiles) < limits.PROFILE_QUEUE_COUNT_MAX:
            self._local.profiles.append((namespace, document))

    def waiting_requests(self) -> Sequence[Request]:
        """Return the unanswered commands of the program's threads and of clients."""
        parked = [parked.request for waiting in self._parked.values() for parked in waiting]
        local = self._local
        begun = dict.fromkeys([*parked, *list(local.held)])  # a write may be in both
        return [*begun, *local.writes.requests(), *self._server.waiting_requests()]

    def interrupt(self, connection_id: int) -> None:
        """End the command of a thread or connection with error 11601."""
        error = Interrupted(11601, "operation was interrupted")
        for waiting in self._parked.values():
            for parked in waiting:
                if parked.request.client.connection_id == connection_id:
                    parked.interruption = error
                    parked.wake()
        for request, interruptions in list(self._local.held.items()):
            if request.client.connection_id == connection_id:
                interruptions.append(error)
        self._local.writes.interrupt(connection_id, error)
        self._server.interrupt(connection_id)

    def wake(self, key: str) -> None:
        """Run again the commands that wait for `key`."""
        _wake(self._parked.get(key, {}))
        self._server.wake(key)

    def cursor_killed(self, cursor: Any) -> None:
        """Run again the getMore that waits for this cursor."""
        _wake(self._parked.get(cursor.key, {}))
        self._server.cursor_killed(cursor)


def _wake(waiting: dict[ParkedThread, None]) -> None:
    for parked in waiting:
        parked.wake()
