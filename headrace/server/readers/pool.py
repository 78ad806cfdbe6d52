"""The server's readers: start them when needed, give them commands, interrupt, kill and replace them.

Rule: each call that was sent is done exactly once, with its outcome or an error; or never, if it was given up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.clock import cpu_seconds_of, monotonic
from headrace.errors import CommandError
from headrace.execution.reader_calls import ReaderAnswer, ReaderCall, ReaderCursor
from headrace.log_lines import printable
from headrace.running_command import Work
from headrace.server.child_process import child_environment, python_command
from headrace.server.readers.frames import Frames, frame
from headrace.store.transaction_registry import SETTLED

if TYPE_CHECKING:
    from headrace.server.core import Core

LOG = logging.getLogger("headrace.server")
_TRY_COUNT_MAX: Final = 2
_PATIENCE_WALL: Final = 10
"""The server waits this many times its patience for a process that gets no CPU time."""

Done = Callable[[], object]
"""Resumes the command of a call that has an outcome or a failure."""


class Reader(asyncio.Protocol):
    """The server's end of one reader process."""

    def __init__(self, pool: Readers, process: subprocess.Popen[bytes]) -> None:
        self._pool = pool
        self._core = pool.core
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._last_number = 0
        self._parameters: dict[str, Any] = {}  # the parameters that the process has
        self.process = process
        self.is_ready = False
        self.is_ended = False
        self.is_retired = False
        self.started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True once the process is ready; False if it ends before."""
        self.calls: dict[int, tuple[ReaderCall, Done | None]] = {}
        """The process's commands by number. None instead of `Done`: the command was given up."""
        self.idle_since = monotonic()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._pool.readers.append(self)
        self._parameters = dict(self._core.engine.parameters)
        self.send({**self._pool.start_message(), "parameters": self._parameters})

    def data_received(self, data: bytes) -> None:
        for message, payload in self._frames.feed(data):
            if "answer" in message:
                self._answered(message, payload)
            else:
                self.is_ready = True
                self.started.set_result(True)
                self._core.engine.count("readers.started")
                self._pool.ready()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_ended, self.is_ready = True, False
        if not self.started.done():
            self.started.set_result(False)
        self._pool.lost(self)

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message, unless the process has ended."""
        if self._transport is not None and not self.is_ended:
            self._transport.write(frame(message, payload))

    def run(self, call: ReaderCall, done: Done) -> None:
        """Let the process run a command."""
        self._last_number = number = self._last_number + 1
        self.calls[number] = call, done
        call.try_count += 1
        self._core.engine.count("readers.commands")
        engine, request, client = self._core.engine, call.request, call.request.client
        now_ms = engine.clock.monotonic_ms()
        message: dict[str, Any] = {
            "run": number, "leftMs": None if request.deadline_ms is None else max(0.0, request.deadline_ms - now_ms),
            "position": self._core.store.last_position,
            "client": [client.connection_id, client.address, client.local_address],
        }  # fmt: skip
        if roles := engine.access.shown_roles(client):
            message["roles"] = roles
        if self._parameters != engine.parameters:
            self._parameters = message["parameters"] = dict(engine.parameters)
        self.send(message, request.raw)
        if request.deadline_ms is not None:
            self._core.loop.call_later(max(0.0, request.deadline_ms - now_ms) / 1000, self._is_late, number)

    def give_up(self, call: ReaderCall) -> None:
        """End a command whose client was already answered or has left."""
        for number, (own, _) in self.calls.items():
            if own is call:
                self.calls[number] = call, None
                self._end(number, is_late=False)
                return

    def _is_late(self, number: int) -> None:
        self._end(number, is_late=True)

    def _end(self, number: int, *, is_late: bool) -> None:
        """End a command within `READER_PATIENCE_SECONDS` of CPU time, or else the process. `is_late`: the command's own
        deadline has passed."""
        if number in self.calls:
            self.send({"kill": number, "isLate": is_late})
            self._look(number, cpu_seconds_of(self.process.pid), monotonic())

    def _look(self, number: int, cpu_began: float, began: float) -> None:
        """Kill the process if a command has not ended in its CPU time. On a busy machine that takes longer."""
        if number not in self.calls or self.is_ended:
            return
        patience = limits.READER_PATIENCE_SECONDS
        used, waited = cpu_seconds_of(self.process.pid) - cpu_began, monotonic() - began
        if used < patience and waited < _PATIENCE_WALL * patience:
            self._core.loop.call_later(patience / 4, self._look, number, cpu_began, began)
            return
        if self.is_ready:  # the first of several such commands
            LOG.warning("a reader process is killed, since a command does not end in it")
        call, done = self.calls.pop(number)
        if done is not None:
            call.failure = CommandError(50, "operation exceeded time limit")
            done()
        self.kill()

    def kill(self) -> None:
        """End the process at once. Other readers run its commands."""
        self.is_ready = False
        self.process.kill()
        if self._transport is not None:
            self._transport.abort()

    def retire(self) -> None:
        """Let an idle process end."""
        self.is_retired, self.is_ready = True, False
        if self._transport is not None:
            self._transport.close()

    def close_cursor(self, cursor_id: int) -> None:
        """Close a cursor of the process."""
        self.send({"close": cursor_id})

    def _answered(self, message: dict[str, Any], reply: bytes) -> None:
        call, done = self.calls.pop(message["answer"])
        self._pool.count(message)
        if not self.calls:
            self.idle_since = monotonic()
        shown = message.get("cursor")
        if done is None:
            if shown is not None and call.cursor is None:
                self.send({"close": shown["id"]})
            return
        cursor = call.cursor if shown is not None else None
        if shown is not None and cursor is None:
            cursor = ReaderCursor(self, shown["id"], shown["ns"], no_timeout=shown["noTimeout"])
        work = None
        if "work" in message:
            plan, keys, documents = message["work"]
            work = Work(plan)
            work.keys, work.documents = keys, documents
        call.outcome = ReaderAnswer(reply, cursor, 0 if shown is None else shown["documentCount"], work)
        self._pool.after_commit(message["commit"], done)


class Readers:
    """All readers of one server. They run on the loop's thread."""

    def __init__(self, core: Core, count_max: int) -> None:
        self.core = core
        self._count_max = count_max
        self.readers: list[Reader] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._start_at = 0.0  # no start before this time, because one has failed
        self._pending: deque[tuple[ReaderCall, Done]] = deque()  # calls that no reader can take yet
        self._retires: asyncio.TimerHandle | None = None
        self._held: list[tuple[int, Done]] = []  # calls that have read an unpublished commit
        core.store.transactions.wake_listeners.append(self._woken)
        core.store.file_listeners.append(self._file_replaced)

    def __iter__(self) -> Iterator[Reader]:
        return iter(list(self.readers))

    # Called by the scheduler.

    @property
    def can_take(self) -> bool:
        """Whether a reader process runs, or one can be started. Read from any thread."""
        return bool(self._starting) or any(reader.is_ready for reader in self) or monotonic() >= self._start_at

    def have_room(self) -> bool:
        """Return whether a reader can take a command that has used up its turn. If all are busy, start another one
        first."""
        ready = [reader for reader in self.readers if reader.is_ready]
        if not all(reader.calls for reader in ready):
            return True
        return not self._start_another() and not self._starting and bool(ready)

    def send(self, call: ReaderCall, done: Done) -> None:
        """Give a command to the least busy reader; a getMore goes to its cursor's reader. `done` is called once."""
        if call.cursor is not None:
            host = call.cursor.host
            if isinstance(host, Reader) and not host.is_ended:
                host.run(call, done)
            else:
                _fail(call, done)
            return
        ready = [reader for reader in self.readers if reader.is_ready]
        if ready:
            min(ready, key=lambda reader: len(reader.calls)).run(call, done)
        elif self._starting or self._start_another():
            self._pending.append((call, done))
        else:
            _fail(call, done)

    def give_up(self, call: ReaderCall) -> None:
        """End a command. Its `done` has no effect any more."""
        if call.outcome is not None and call.outcome.cursor is not None and call.cursor is None:
            call.outcome.cursor.close()
        self._pending = deque(item for item in self._pending if item[0] is not call)
        for reader in self.readers:
            reader.give_up(call)

    async def stop(self) -> None:
        """End all readers. The server is ending, and sends nothing more."""
        self.core.store.transactions.wake_listeners.remove(self._woken)
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for reader in self:
            reader.kill()
            await self.core.loop.run_in_executor(None, reader.process.wait)

    # Called by readers.

    def start_message(self) -> dict[str, Any]:
        """Return the server's settings that a reader needs."""
        options, environment = self.core.options, self.core.store.environment
        return {
            "path": str(environment.path.absolute()), "numberBase": environment.number_base,
            "files": environment.files, "oplog": options.oplog, "mapBytes": options.map_bytes,
            "replicaSet": options.replica_set, "advertisedHost": options.advertised_host,
            "counts": {str(number): count.documents for number, count in self.core.store.state.counts.items()},
            "memoryBytesMax": max(self.core.engine.memory.bytes_max // self._count_max, limits.MEMORY_BYTES_LEAST),
        }  # fmt: skip

    def ready(self) -> None:
        """Send the calls that wait for a reader to start."""
        pending, self._pending = self._pending, deque()
        for call, done in pending:
            self.send(call, done)

    def count(self, message: dict[str, Any]) -> None:
        """Add a reader's counts to the server's."""
        engine, store = self.core.engine, self.core.store
        for name, count in message["metrics"].items():
            engine.count(name, count)
        store.uses.add(message["uses"])

    def after_commit(self, number: int, done: Done) -> None:
        """Call `done` after the commit that a reader has read is published. So clients see its writes acknowledged
        first, and find them in all later reads."""
        if number <= self._published():
            done()
        else:
            self.core.store.transactions.awaited = True
            self._held.append((number, done))

    def _published(self) -> int:
        kv = self.core.store.begin_read()
        try:
            return kv.number
        finally:
            kv.abort()

    def _woken(self, key: str) -> None:
        if key == SETTLED and self._held:
            held, self._held = self._held, []
            for number, done in held:
                self.after_commit(number, done)

    def _file_replaced(self) -> None:
        environment = self.core.store.environment
        for reader in self:
            reader.send({"reopen": environment.number_base, "files": environment.files})

    def lost(self, reader: Reader) -> None:
        """Handle a reader that has ended: close its cursors, and give its commands to other readers."""
        self.readers.remove(reader)
        if not reader.is_retired:
            reader.process.kill()
        self.core.loop.run_in_executor(None, reader.process.wait)
        if self.core.ending:
            return
        if not reader.is_retired:
            LOG.warning("a reader process has ended; %d commands ran in it", len(reader.calls))
            self.core.engine.count("readers.lost")
        self.core.store.environment.forget_dead_readers()
        cursors = self.core.engine.cursors
        for cursor in cursors:
            if type(cursor) is ReaderCursor and cursor.host is reader:
                cursor.host, cursor.is_lost = None, True
                cursors.remove(cursor.id)
        for call, done in reader.calls.values():
            if done is None:
                continue
            if call.cursor is not None or call.try_count >= _TRY_COUNT_MAX:
                _fail(call, done)
            else:
                self.send(call, done)

    # Starting and retiring.

    def _start_another(self) -> bool:
        """Start a reader, unless there are enough. Return whether one is starting."""
        if len(self.readers) + len(self._starting) >= self._count_max or monotonic() < self._start_at:
            return False
        task = self.core.loop.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._start_ended)
        return True

    def _start_ended(self, task: asyncio.Task[None]) -> None:
        """Send the calls that wait for a start: a reader may have ended as soon as it was ready."""
        self._starting.discard(task)
        if not self.core.ending:
            self.ready()

    async def _start(self) -> None:
        loop = self.core.loop
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await loop.run_in_executor(None, spawn, theirs.fileno())
            reader = Reader(self, process)
            await loop.create_unix_connection(lambda: reader, sock=ours)
        except OSError as error:
            LOG.error("a reader process cannot be started: %s", printable(error))
            self._not_started()
            return
        try:
            is_started = await asyncio.wait_for(asyncio.shield(reader.started), limits.READER_START_SECONDS_MAX)
        except TimeoutError:
            LOG.error("a reader process has not started within %d s", limits.READER_START_SECONDS_MAX)
            reader.kill()
            is_started = False
        if not is_started:
            self._not_started()
        elif self._retires is None:
            self._retires = loop.call_later(limits.READER_IDLE_SECONDS, self._retire)

    def _not_started(self) -> None:
        """Start no reader for a while."""
        self._start_at = monotonic() + limits.READER_IDLE_SECONDS

    def _retire(self) -> None:
        """End idle readers."""
        used = {cursor.host for cursor in self.core.engine.cursors if type(cursor) is ReaderCursor}
        before = monotonic() - limits.READER_IDLE_SECONDS
        for reader in self:
            if not reader.calls and reader not in used and reader.idle_since <= before:
                reader.retire()
        self._retires = None
        if self.readers and not self.core.ending:
            self._retires = self.core.loop.call_later(limits.READER_IDLE_SECONDS, self._retire)


def _fail(call: ReaderCall, done: Done) -> None:
    """Fail a command that has lost its reader and gets no other."""
    if call.cursor is not None:
        call.failure = CommandError(43, f"cursor id {call.cursor.id} not found")
    else:
        call.failure = CommandError(175, "the reader process that ran the command has ended")
    done()


def spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a reader process with this end of a socket."""
    # A process group of its own, so that Ctrl-C in the terminal reaches only the server. No session of its own: Linux
    # would divide the cores between sessions regardless of priorities.
    return subprocess.Popen(
        python_command("headrace.server.readers", str(descriptor)), env=child_environment(),
        pass_fds=(descriptor,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
