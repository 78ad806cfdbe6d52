"""Paused commands: each iteration of the loop resumes one of them, in turn, between the work of sockets.

A client that has sent many messages at once is *eager*. After its first message, its messages share the time that each
iteration of the loop has for all eager clients, which take turns.

Many clients may send a long command at the same moment. After the first command that pauses in an iteration of the
loop, others begin with a short turn. After some of these, the rest is queued for the next iterations.

Rule: a short command waits for at most one turn of a long command, however many there are. Long commands share the
remaining time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from headrace.clock import monotonic
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.errors import HandedOver, Interrupted
from headrace.execution.reader_calls import ReaderCall, hand_over, may_move, moves_at_once
from headrace.memory_budget import exceeded
from headrace.running_command import TURN_SECONDS, RunningCommand
from headrace.server.measured_memory import MeasuredMemory
from headrace.thread_calls import ThreadCall
from headrace.turns import Turn, Turns

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer


EAGER_SECONDS: Final = 0.005
"""The time that an iteration of the loop has for eager clients."""
EAGER_COUNT: Final = 16
"""The number of an eager client's messages before the next client is served."""
CROWDED_SECONDS: Final = 0.0005
"""The first turn of a command after another command has used up its turn in the same iteration of the loop."""
CROWDED_COUNT: Final = 8
"""The number of such used-up turns before further commands are queued."""


@dataclass(slots=True, eq=False)
class _Paused:
    """A paused command or, if `request` is None, the paused reading or writing of a long message."""

    peer: Peer | None
    request: Request | None
    turn: Turn
    done: Callable[[Any], None]
    """Called with the answer, or with the exception that was raised."""
    since: float = 0.0
    """The first pause of the command or of its message's reading, in seconds of the monotonic clock."""
    may_move: bool = False
    """Whether a reader process may run the command."""


class Scheduler:
    """The queue of paused commands."""

    def __init__(self, core: Core) -> None:
        self.turns = Turns()
        self._core = core
        self.measured = MeasuredMemory(core.store.memory)
        self._paused: deque[_Paused] = deque()
        self._in_thread: dict[_Paused, None] = {}  # their calls run in the thread, or in readers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-thread-call")
        self._by_connection: dict[int, _Paused] = {}
        self._scheduled = False
        self._message_since = 0.0  # `since` of the message whose command begins now; 0: it has not paused
        self._begun_count = 0  # commands that have begun and paused in this iteration of the loop
        self._queued: deque[tuple[Peer, Command, Request]] = deque()  # not begun yet
        self.eager_seconds = EAGER_SECONDS
        self._later: deque[Callable[[], None]] = deque()  # eager clients and long messages, for the next iterations
        self._later_ends = 0.0  # end of the time for them in this iteration of the loop; 0: not begun

    def has_time(self) -> bool:
        """Return whether this iteration of the loop has time for a long message, or another one of an eager client."""
        if not self._later_ends:
            self._later_ends = monotonic() + self.eager_seconds
            self._core.writer.call_after_writes(self._next_iteration)
        return monotonic() < self._later_ends

    def serve_later(self, peer: Peer) -> None:
        """Continue with a client after the other eager clients."""
        self._later.append(peer.serve_on)
        self.has_time()

    def _next_iteration(self) -> None:
        self._later_ends = 0.0
        while self._later:
            goes_on = self.has_time()
            self._later.popleft()()
            if not goes_on or not self.has_time():
                return

    def run_read(self, peer: Peer, command: Command, request: Request) -> Any:
        """Return the result of `Engine.run_read`. For a paused or queued command this is neither bytes nor a `Wait`;
        its peer is then answered through `finish`, or woken."""
        readers = self._core.readers
        moves = readers is not None and moves_at_once(self._core.engine, command, request) and readers.have_room()
        if moves:
            answer = self.turns.run(self._core.engine.run_read, replace(command, run=hand_over), request)
        elif self._begun_count:
            if self._begun_count > CROWDED_COUNT:
                self._queued.append((peer, command, request))
                return None
            answer = self.run_shortly(self._core.engine.run_read, command, request)
        else:
            answer = self.turns.run(self._core.engine.run_read, command, request)
        if monotonic() > self.turns.ends + TURN_SECONDS:  # one document took long, and more such commands may come
            self._begun()
            self._begun_count = CROWDED_COUNT + 1
        if type(answer) is Turn:
            if not moves:
                self._begun()
            paused = _Paused(peer, request, answer, partial(peer.go_on, command, request))
            paused.may_move = readers is not None and may_move(self._core.engine, command, request)
            self._add(paused)
            self.look_at_memory()
        return answer

    def run_shortly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `Turns.run` with a short turn, for one of many commands that begin at the same moment."""
        turns, seconds = self.turns, self.turns.seconds
        turns.seconds = min(seconds, CROWDED_SECONDS)
        try:
            return turns.run(function, *args)
        finally:
            turns.seconds = seconds

    def look_at_memory(self) -> None:
        """Free memory if the process exceeds its limit. While accounts hold more than half of the limit, the largest
        account is released. Otherwise the youngest paused command ends."""
        excess = self.measured.excess()
        if not excess:
            return
        commands: list[Any] = [paused for paused in self._paused if paused.peer is not None]
        commands += self._core.writer.waiting()
        if any(paused.turn.goes_first or paused.turn.interruption is not None for paused in commands):
            return  # one ends at its next turn
        memory = self._core.store.memory
        if (memory.used > memory.bytes_max // 2 or not commands) and memory.release_largest(excess):
            return
        if commands:
            memory.note_cut_off(excess, "one of the long commands ends")
            self._out_of_memory(max(commands, key=attrgetter("since")).turn)

    def _out_of_memory(self, turn: RunningCommand) -> None:
        error = exceeded(self._core.store.memory.bytes_max)
        turn.interruption = Interrupted(error.code, error.message)
        turn.goes_first = True
        for paused in self._paused:
            if paused.turn is turn:
                self._paused.remove(paused)
                self._paused.appendleft(paused)
                break

    def _begun(self) -> None:
        """Note that a command has used up its first turn."""
        if not self._begun_count:
            self._core.writer.call_after_writes(self._begin_queued)
        self._begun_count += 1

    def _begin_queued(self) -> None:
        """Begin queued commands while there is time. Runs in the next iteration of the loop."""
        self._begun_count = 0
        if not self._queued:
            return
        self._begun()
        ends = monotonic() + TURN_SECONDS
        while self._queued and self._begun_count <= CROWDED_COUNT and monotonic() < ends:
            peer, command, request = self._queued.popleft()
            peer.wake(command, request)

    def run_message(self, peer: Peer, done: Callable[[Any], None], function: Callable[..., Any], *args: Any) -> None:
        """Read or write a long message of a peer in turns. `done` is called with the result or the exception."""
        if self.has_time():
            self._run(peer, done, function, *args)
        else:
            self._later.append(partial(self._run, peer, done, function, *args))

    def _run(self, peer: Peer | None, done: Callable[[Any], None], function: Callable[..., Any], *args: Any) -> None:
        try:
            answer = self.run_shortly(function, *args) if self._begun_count else self.turns.run(function, *args)
        except Exception as error:
            answer = error
        if type(answer) is Turn:
            self._begun()
            self._add(_Paused(peer, None, answer, done))
            self.look_at_memory()
            return
        try:
            done(answer)
        finally:
            del answer  # an error's traceback has this frame: a cycle would keep the objects of its frames

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the command of a connection, given its number, at its next turn or before its first."""
        if (paused := self._by_connection.get(connection_id)) is not None:
            paused.turn.interruption = error
            if type(paused.turn.waits_for) is ReaderCall and self._core.readers is not None:
                self._core.readers.give_up(paused.turn.waits_for)
                self._called(paused)
        for queued in [item for item in self._queued if item[0].client.connection_id == connection_id]:
            self._queued.remove(queued)
            self._core.loop.call_soon(queued[0].finish, self._core.engine.failure(error, queued[2]))

    def cursor_killed(self, cursor_id: int) -> None:
        """End a getMore that reads this cursor, at its next turn."""
        error = Interrupted(237, f"cursor id {cursor_id} was killed while its next batch was read")
        for connection_id, paused in list(self._by_connection.items()):
            request = paused.request
            if request is not None and request.name == "getMore" and request.body["getMore"] == cursor_id:
                self.interrupt(connection_id, error)

    def interrupt_all(self, error: Interrupted) -> None:
        """End all commands at once, because the server stops."""
        self._queued.clear()
        self._thread.shutdown()
        self._paused += self._in_thread
        self._in_thread.clear()
        while self._paused:
            self._paused[0].turn.interruption = error
            self._resume()

    def _add(self, paused: _Paused) -> None:
        paused.since = self._message_since or monotonic()
        if paused.peer is not None:
            self._by_connection[paused.peer.client.connection_id] = paused
        self._append(paused)

    def _append(self, paused: _Paused) -> None:
        """Queue a command for its next turn. If it waits for a call in the thread or in a reader, queue it after that
        call."""
        call, readers = paused.turn.waits_for, self._core.readers
        if readers is not None and not self._core.ending:
            if type(call) is ReaderCall:
                self._in_thread[paused] = None
                readers.send(call, partial(self._called, paused))
                return
            if paused.request is not None and self._may_move(paused) and readers.have_room():
                paused.may_move = False
                paused.turn.interruption = HandedOver(ReaderCall(paused.request))
                paused.turn.goes_first = True
        if type(call) is not ThreadCall or self._core.ending:
            if paused.turn.goes_first:
                self._paused.appendleft(paused)
            else:
                self._paused.append(paused)
            self._schedule()
            return
        self._in_thread[paused] = None
        self._core.loop.run_in_executor(self._thread, call.run).add_done_callback(partial(self._called, paused))

    def _may_move(self, paused: _Paused) -> bool:
        """Return whether a reader may run a command now."""
        return paused.may_move and not paused.turn.stays and paused.turn.interruption is None

    def _called(self, paused: _Paused, done: asyncio.Future[None] | None = None) -> None:
        if paused in self._in_thread:
            del self._in_thread[paused]
            self._paused.appendleft(paused)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.writer.call_after_writes(self._next)

    def _next(self) -> None:
        """Resume one command. After commands that end within a turn's time resume further ones: their clients may have
        left."""
        self._scheduled = False
        ends = monotonic() + TURN_SECONDS
        try:
            while self._paused and self._resume() and monotonic() < ends:
                pass
        finally:
            if self._paused:
                self._schedule()

    def _resume(self) -> bool:
        """Resume the next command; return whether it has ended."""
        paused = self._paused.popleft()
        try:
            answer = self.turns.resume(paused.turn)
        except Exception as error:
            answer = error
        if type(answer) is Turn:
            self._append(paused)
            self.look_at_memory()
            return False
        if paused.peer is not None:
            del self._by_connection[paused.peer.client.connection_id]
            if paused.request is None:  # the command of a long message begins after a turn of the message's own
                self._begun()
                self._message_since = paused.since
        try:
            paused.done(answer)
        finally:
            self._message_since = 0.0
            del answer  # see `_run`
        return True
