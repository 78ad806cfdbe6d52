"""A reader process: the server's engine without listener and writer, over the server's data file.

It takes commands from its server, runs them in alternating turns, and answers. It ends when the server's end of the
socket is closed, for whatever reason.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.commands.reading import aggregate, count, find, get_more
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo, Request, parse_message
from headrace.dispatch.shell import Shell
from headrace.errors import AnsweredError, CommandError, Interrupted
from headrace.memory_budget import exceeded
from headrace.running_command import RunningCommand, Work
from headrace.server.failures import log_failure, read_error
from headrace.server.measured_memory import MeasuredMemory, resident_bytes, return_freed_memory
from headrace.server.readers import matching
from headrace.server.readers.frames import Frames, frame
from headrace.store.lmdb import FileReplaced
from headrace.store.reader_store import ReaderStore
from headrace.thread_calls import ThreadCall
from headrace.time_limit import watch
from headrace.turns import Turn, Turns
from headrace.values.bson import find_element

_RECEIVE_BYTES: Final = 256 * 1024
_NICENESS: Final = 5
"""A lower priority than the server's, because clients wait for the server's short work."""


_COMMANDS: Final = {
    command.name: command
    for command in (aggregate.COMMAND, *count.COMMANDS, find.COMMAND, get_more.COMMAND, matching.COMMAND)
}
"""The commands that a reader can run at first. Importing all commands takes as long again."""
_OOM_SCORE: Final = "500"
"""Makes the system kill a reader rather than the server if it is out of memory."""


class _Running:
    """A paused command."""

    __slots__ = ("number", "request", "turn")

    def __init__(self, number: int, request: Request, turn: Turn) -> None:
        self.number = number
        self.request = request
        self.turn = turn


class _ReaderShell(Shell):
    """Notes the work of a paused command."""

    work: Work | None = None

    def has_paused(self, request: Request, turn: RunningCommand) -> None:
        self.work = turn.work


class ReaderProcess:
    """A reader at its end of the socket."""

    def __init__(self, connection: socket.socket, frames: Frames, start: dict[str, Any]) -> None:
        """`frames`: has split what was received; `start`: the server's first message. Raises `FileReplaced`."""
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        options = ServerOptions(
            dbpath=Path(start["path"]), bind_ips=(), oplog=start["oplog"], map_bytes=start["mapBytes"],
            memory_bytes_max=start["memoryBytesMax"], slow_ms=None, replica_set=start["replicaSet"],
            advertised_host=start["advertisedHost"],
        )  # fmt: skip
        self._store = ReaderStore(
            options.dbpath, start["numberBase"], start["files"], clock=SystemClock(), oplog=options.oplog,
            map_bytes=options.map_bytes,
        )  # fmt: skip
        self._store.estimates = {int(number): count for number, count in start["counts"].items()}
        self._shell = _ReaderShell()
        self._engine = Engine(self._store, options, dict(_COMMANDS), start["parameters"], self._shell)
        self._turns = Turns()
        self._paused: deque[_Running] = deque()
        self._frames = frames
        self._held: list[tuple[dict[str, Any], bytes]] | None = None  # until the message about the newest data file
        self._reported: dict[str, int] = dict(self._engine.metrics)
        self._measured = MeasuredMemory(self._engine.memory)
        self._measured.resident, self._measured.return_freed = resident_bytes, _return_freed_memory
        watch.memory_is_exceeded = lambda: self._measured.excess() > 0
        self._has_freed = True  # whether it has freed memory since memory was last returned to the system

    def serve(self) -> None:
        """Run commands until the server is gone."""
        self._send({"ready": os.getpid(), "commit": self._store.number})
        while True:
            if not self._paused:
                self._store.forget_read()  # the server may then reuse the pages
                self._rest()
            elif not self._poll.poll(0):
                self._resume()
                continue
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                return
            for message, payload in self._frames.feed(data):
                self.take(message, payload)

    def _rest(self) -> None:
        """Wait for a command. If none comes for a while, return freed memory first."""
        if self._has_freed and not self._poll.poll(limits.QUIET_SECONDS * 1000):
            _return_freed_memory()
            self._has_freed = False
        self._poll.poll()

    def take(self, message: dict[str, Any], payload: bytes) -> None:
        """Do what a message of the server says."""
        if "reopen" in message:
            self._reopen(message)
        elif self._held is not None:
            self._held.append((message, payload))
        elif "run" in message:
            self._begin(message, payload)
        elif "kill" in message:
            self._end(message["kill"], is_late=message["isLate"])
        elif "close" in message:
            self._engine.cursors.kill(message["close"])

    def _reopen(self, message: dict[str, Any]) -> None:
        held = self._held or []
        try:
            self._store.reopen(message["reopen"], message["files"])
        except FileReplaced:
            self._held = held
            return
        self._held = None
        for each in held:
            self.take(*each)

    def _end(self, number: int, *, is_late: bool) -> None:
        """Run a command before all others so that it ends: its time is up, or it was given up."""
        for running in [running for running in self._paused if running.number == number]:
            if not is_late:
                running.turn.interruption = Interrupted(11601, "operation was interrupted")
            self._paused.remove(running)
            self._paused.appendleft(running)

    def _begin(self, message: dict[str, Any], raw: bytes) -> None:
        self._has_freed = True
        number, address, local = message["client"]
        engine, client = self._engine, ClientInfo(number, address, tuple(local) if type(local) is list else local)
        client.shown_roles = message.get("roles", [])
        if "parameters" in message:
            engine.parameters.update(message["parameters"])
        try:
            self._store.refresh(message["position"])
            request = parse_message(raw, {}, client)
            if request.name not in engine.commands:
                from headrace.commands.table import COMMANDS

                engine.commands = {**COMMANDS, **_COMMANDS}
            command = engine.command(request)
            left_ms = message["leftMs"]
            request.deadline_ms = None if left_ms is None else engine.clock.monotonic_ms() + left_ms
            answer = self._turns.run(engine.run_read, command, request)
        except AnsweredError as error:
            self._answer(message["run"], engine.failure(error, Request("", "", raw, {}, client)))
        except Exception as error:
            self._fail(message["run"], error, Request("", "", raw, {}, client))
        else:
            self._settle(_Running(message["run"], request, answer), answer)

    def _resume(self) -> None:
        running = self._paused.popleft()
        call = running.turn.waits_for
        if type(call) is ThreadCall:
            call.run()
        try:
            answer = self._turns.resume(running.turn)
        except Exception as error:
            self._fail(running.number, error, running.request)
        else:
            self._settle(running, answer)

    def _settle(self, running: _Running, answer: Any) -> None:
        """Queue a paused command, or answer one that has ended."""
        if type(answer) is Turn:
            self._paused.append(running)
            excess = self._measured.excess()
            if excess and not self._engine.memory.release_largest(excess):
                error = exceeded(self._engine.memory.bytes_max)
                running.turn.interruption = Interrupted(error.code, error.message)
        elif type(answer) is bytes:
            self._answer(running.number, answer)
        else:  # a command that waits is never sent to a reader
            error = CommandError(1, f"{running.request.name} cannot wait in a reader")
            self._answer(running.number, self._engine.failure(error, running.request))

    def _fail(self, number: int, error: Exception, request: Request) -> None:
        log_failure("a command failed inside a reader", error)
        self._answer(number, self._engine.failure(read_error(error), request))

    def _answer(self, number: int, reply: bytes) -> None:
        message: dict[str, Any] = {"answer": number, "commit": self._store.number, **self._uses()}
        cursor = self._cursor_of(reply)
        if cursor is not None:
            shown = {"id": cursor.id, "ns": cursor.namespace, "noTimeout": cursor.no_timeout}
            message["cursor"] = {**shown, "documentCount": cursor.record.document_count}
        if self._shell.work is not None:
            message["work"] = [self._shell.work.plan, self._shell.work.keys, self._shell.work.documents]
            self._shell.work = None
        self._send(message, reply)

    def _cursor_of(self, reply: bytes) -> Any:
        """Return the cursor that a reply leaves open, or None."""
        cursor = find_element(reply, b"cursor")
        if cursor is None:
            return None
        found = find_element(reply, b"id", cursor[1])
        if found is None:
            return None
        return self._engine.cursors.peek(int.from_bytes(reply[found[1] : found[2]], "little"))

    def _uses(self) -> dict[str, Any]:
        """Return the counts since the last answer, for the server."""
        store, metrics = self._store, self._engine.metrics
        counted = {
            name: count - self._reported.get(name, 0)
            for name, count in metrics.items()
            if count != self._reported.get(name) and not name.startswith("commands.")
        }
        self._reported = dict(metrics)
        return {"metrics": counted, "uses": store.uses.taken()}

    def _send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        self._socket.sendall(frame(message, payload))


def _return_freed_memory() -> None:
    """Return freed blocks to the system."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    return_freed_memory()


def serve(connection: socket.socket) -> None:
    """Run a reader until the server's end of `connection` is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server gets these signals, too, and ends the reader
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    gc.freeze()
    frames, start = Frames(), dict[str, Any]()
    process: ReaderProcess | None = None
    with contextlib.suppress(ConnectionError):
        while process is None and (data := connection.recv(_RECEIVE_BYTES)):
            for message, payload in frames.feed(data):
                if process is not None:
                    process.take(message, payload)
                    continue
                start |= message | ({"numberBase": message["reopen"]} if "reopen" in message else {})
                with contextlib.suppress(FileReplaced):
                    process = ReaderProcess(connection, frames, start)
        if process is not None:
            process.serve()
