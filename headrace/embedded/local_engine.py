"""The engine of an open store. It runs a command in the calling thread and returns the reply's bytes.

    execute(database, name, body, ...)  →  reply bytes, also of a command that failed

Only the holder of `lock` may use the engine and the store. The store calls LMDB under the lock, except for the sync of
a commit. A long command runs in turns (`turns.py`) and releases the lock between them. A command that must wait
(`Wait`) is parked without the lock (`parked_threads.py`). `local_writes.py` runs writes.

Rule: no thread waits, sleeps or calls a program's function while it holds the lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.clock import Clock, SystemClock, monotonic
from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.dispatch.command import Command
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import UNIX_SOCKET, ClientInfo, Request
from headrace.embedded.errors_raised import raise_closed
from headrace.embedded.local_writes import LocalWrites
from headrace.embedded.parked_threads import ParkedThreads, Released
from headrace.errors import AnsweredError, Interrupted
from headrace.server.clocks import RunningClock
from headrace.server.failures import log_failure, read_error
from headrace.store.store import Store
from headrace.thread_calls import ThreadCall
from headrace.turns import Turn, Turns

if TYPE_CHECKING:
    from headrace.embedded.change_stream import EmbeddedChangeStream
    from headrace.embedded.serving import ServedStore
    from headrace.server.core import Core

_GIVE_WAY_SECONDS: Final = 0.00005
"""How long a paused command leaves the lock to the threads that wait for it."""
_engines: Final[weakref.WeakSet[LocalEngine]] = weakref.WeakSet()


class Caller:
    """A calling thread: a client of the engine, with its own greenlets, and a lock at which it waits when parked."""

    __slots__ = ("client", "turns", "woken")

    def __init__(self, client: ClientInfo) -> None:
        self.client = client
        self.turns = Turns()
        self.woken = threading.Lock()
        """Locked while the thread is parked."""


class LocalEngine:
    """An open data directory with its engine. Every method may be called from any thread."""

    def __init__(
        self, path: str | os.PathLike[str] | None, *, oplog: bool = True, clock: Clock | None = None, **options: Any
    ) -> None:
        """Open `path`, creating it if it is missing; None stands for a throw-away directory.

        Raises `DirectoryInUse`, `UnusableDirectory`, and TypeError for an option that `ServerOptions` does not have.
        """
        self.throw_away = path is None
        self.options = ServerOptions(dbpath=Path(path or os.devnull), bind_ips=(), oplog=oplog, **options)
        clock = clock or RunningClock(SystemClock())
        self.store = Store(path, oplog=oplog, clock=clock, map_bytes=self.options.map_bytes)
        self.lock = threading.Lock()
        self.parked = ParkedThreads(self)
        self.engine = Engine(
            self.store, self.options, commands_for(self.options), first_parameters(self.options),
            shell=self.parked,  # type: ignore[arg-type]
        )  # fmt: skip
        self.store.listeners.append(self.parked.committed)
        self.writes = LocalWrites(self)
        self.core: Core | None = None
        """The server of this store while the store is served; see `serving.py`."""
        self.served: ServedStore | None = None
        self.serving = threading.RLock()
        """Held while a server starts or ends."""
        self.unusable: str | None = None
        """The reason why every call fails; None if the store is open."""
        self.held: dict[Request, list[Interrupted]] = {}
        """Writes, and commands that have paused or that a fail point blocks, each with the errors that interrupt it."""
        self.profiles: list[tuple[str, bytes | None]] = []
        """(namespace, document) of the profiler, which a job stores (`jobs.py`)."""
        self._waiting: set[int] = set()  # threads that wait for the lock
        self._forgotten: deque[int] = deque()  # cursors that nothing refers to
        self._callers = threading.local()
        self.streams: weakref.WeakSet[EmbeddedChangeStream] = weakref.WeakSet()
        """The open change streams, which a forked child must end."""
        _engines.add(self)

    # Running commands.

    def execute(
        self, database: str, name: str, body: dict[str, Any], raw: bytes = b"",
        sequences: dict[str, list[bytes]] | None = None, cursor: Any = None, wait_ms: float | None = None,
    ) -> bytes:  # fmt: skip
        """Run a command and return its reply. Raises `Closed`.

        `body` is what `values.bson.decode` makes of `raw`; a command on documents needs no `raw`. `cursor` is the
        change stream of a getMore. `wait_ms` is how long to wait for events; None takes the command's own time.
        """
        caller = self.caller()
        request = Request(name, database, raw, sequences or {}, caller.client, body)
        request.cursor = cursor
        if wait_ms is not None:
            request.time_is_up = wait_ms == 0
            request.since_ms = monotonic() * 1000
            request.wait_until_ms = request.since_ms + wait_ms
        self.enter()
        try:
            try:
                command = self.engine.command(request)
                if self.engine.fail_points.active:
                    self._before(command, request)
            except AnsweredError as error:
                return self.engine.failure(error, request)
            if not (command.writes and (command.writes is True or command.writes(request))):
                return self._read(caller, command, request)
            pauses = command.pauses is True or (command.pauses is not False and command.pauses(self.engine, request))
        finally:
            self.lock.release()
        return self.writes.execute(caller, command, request, pauses=pauses)

    def caller(self) -> Caller:
        """Return the `Caller` of the calling thread."""
        try:
            caller: Caller = self._callers.caller
        except AttributeError:
            with self.lock:  # each thread has its own number, for killOp
                self.engine.connections_created += 1
                client = ClientInfo(self.engine.connections_created, UNIX_SOCKET, "embedded")
            client.is_program = True
            client.metadata = {"application": {"name": "the program"}}
            caller = self._callers.caller = Caller(client)
        return caller

    def enter(self) -> None:
        """Take the lock. Raises `Closed`, and then does not hold the lock."""
        if self.unusable is not None:
            raise_closed(self.unusable)
        if not self.lock.acquire(False):
            thread = threading.get_ident()
            self._waiting.add(thread)
            try:
                self.lock.acquire()
            finally:
                self._waiting.discard(thread)
        if self.unusable is not None:
            self.lock.release()
            raise_closed(self.unusable)

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits for the lock."""
        return bool(self._waiting)

    def forget_cursor(self, cursor_id: int) -> None:
        """Close a cursor soon. The garbage collector may call this at any time, so it never waits."""
        self._forgotten.append(cursor_id)

    def close_forgotten(self) -> None:
        """Close the cursors that `forget_cursor` has noted."""
        while self._forgotten:
            self.enter()
            try:
                self.engine.cursors.kill(self._forgotten.popleft())
            finally:
                self.lock.release()

    def give_way(self) -> None:
        """Let another thread take the lock. The caller does not hold it."""
        if self._waiting:
            time.sleep(_GIVE_WAY_SECONDS)

    def _before(self, command: Command, request: Request) -> None:
        """Apply a fail point before the command runs."""
        failure = self.engine.fail_points.before_command(self.engine, command, request)
        if failure is None:
            return
        if failure.block_ms:
            interruptions = self.held[request] = []
            try:
                with Released(self.lock):
                    time.sleep(failure.block_ms / 1000)
            finally:
                del self.held[request]
            if interruptions:
                raise interruptions[0]
        if failure.error is not None:
            raise failure.error

    def _read(self, caller: Caller, command: Command, request: Request) -> bytes:
        """Run a read, again after each wait, and return its reply. The caller's lock is released while it pauses."""
        while True:
            try:
                if command.pauses and (command.pauses is True or command.pauses(self.engine, request)):
                    answer = caller.turns.run(self.engine.run_read, command, request)
                    while type(answer) is Turn:
                        self._pause(caller, request, answer)
                        answer = caller.turns.resume(answer)
                else:
                    answer = self.engine.run_read(command, request)
            except Exception as error:
                log_failure(f"the command {request.name} failed inside the engine", error)
                return self.engine.failure(read_error(error), request)
            if type(answer) is bytes:
                return answer
            try:
                self.parked.wait(caller, request, answer)
            except Interrupted as error:
                return self.engine.failure(error, request)
            if self.unusable is not None:
                raise_closed(self.unusable)

    def _pause(self, caller: Caller, request: Request, turn: Turn) -> None:
        """Let other threads take the lock."""
        interruptions = self.held[request] = []
        try:
            with Released(self.lock):
                if type(turn.waits_for) is ThreadCall:
                    turn.waits_for.run()
                self.give_way()
        except BaseException:
            caller.turns.abandon(turn)
            raise
        finally:
            del self.held[request]
        if interruptions:
            turn.interruption = interruptions[0]
        if self.unusable is not None:
            turn.interruption = Interrupted(11600, "interrupted at shutdown")

    # The end.

    def fail(self, reason: str) -> None:
        """Make every further call raise `Closed`, because memory may differ from the disk. The caller holds the lock.

        Acknowledged writes are on disk and are there when the directory is opened again.
        """
        self.unusable = reason
        self.parked.wake_all()

    def close(self) -> None:
        """End waiting commands, finish the write that is being committed, and close the directory.

        A second call has no effect.
        """
        if self.is_forked or not self.writes.gate.enter():
            return
        with self.lock:
            if self.unusable is None:
                self.fail("the store is closed")
            if self in _engines:
                _engines.discard(self)
                self.engine.cursors.remove_all()
                self.store.close()
        self.writes.gate.leave()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child, whose parent has the store."""
        return self.unusable is _FORKED

    def leave_to_parent(self) -> None:
        """Make the store unusable in a forked child, which has none of its parent's threads.

        A lock that one of these threads held would never be released, so the locks are replaced. Every call checks
        `unusable` after its first lock and raises.
        """
        self.unusable = _FORKED
        self.lock = threading.Lock()
        self.serving = threading.RLock()
        self.core = self.served = None
        self.writes = LocalWrites(self)
        self._waiting.clear()
        for stream in list(self.streams):
            stream.leave_to_parent(_FORKED)


_FORKED: Final = (
    "the store was opened before this process was forked, and belongs to its parent: open it after the fork, or reach "
    "the parent's by `serve`"
)


def _after_fork() -> None:
    for engine in list(_engines):
        engine.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
