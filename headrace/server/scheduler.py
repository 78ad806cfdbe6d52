"""Commands that have paused: each iteration of the loop resumes one of them, in turn, between what sockets bring.

A client that has sent many messages at once is *eager*: behind the first, they are served in the time that each
iteration of the loop has for all such clients, some of one and then some of the next.

Rule: who sends a short command waits for one turn of a long one at most, however many long ones there are; those share
the time that is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.clock import monotonic
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.errors import Interrupted
from headrace.turns import Turn, Turns, free

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer


EAGER_SECONDS: Final = 0.005
"""How long an iteration of the loop serves eager clients."""
EAGER_COUNT: Final = 16
"""Messages of one of them before the next is served."""


class _Paused(NamedTuple):
    """What goes on when it is its turn: a command, or (`request` is None) the reading or writing of a long message."""

    peer: Peer | None
    request: Request | None
    turn: Turn
    done: Callable[[Any], None]
    """Called with what it answers, or with the exception that it raises."""


class Scheduler:
    """The queue of paused commands."""

    def __init__(self, core: Core) -> None:
        self.turns = Turns()
        self._core = core
        self._paused: deque[_Paused] = deque()
        self._scheduled = False
        self.eager_seconds = EAGER_SECONDS
        self._eager: deque[Peer] = deque()
        self._eager_ends = 0.0  # when this iteration of the loop has no more time for eager clients; 0: not begun

    def has_time(self) -> bool:
        """Whether this iteration of the loop has time for one more message of a client that has had one answered."""
        if not self._eager_ends:
            self._eager_ends = monotonic() + self.eager_seconds
            self._core.loop.call_soon(self._next_iteration)
        return monotonic() < self._eager_ends

    def serve_later(self, peer: Peer) -> None:
        """Serve a client on behind the other eager ones."""
        self._eager.append(peer)
        self.has_time()

    def _next_iteration(self) -> None:
        self._eager_ends = 0.0
        while self._eager:
            goes_on = self.has_time()
            self._eager.popleft().serve_on()
            if not goes_on or not self.has_time():
                return

    def run_read(self, peer: Peer, command: Command, request: Request) -> Any:
        """What `Engine.run_read` answers; a `Turn` if the command has paused: its peer is answered through `finish`."""
        answer = self.turns.run(self._core.engine.run_read, command, request)
        if type(answer) is Turn:
            self._add(_Paused(peer, request, answer, partial(_go_on, peer, command, request)))
        return answer

    def run_message(self, peer: Peer, done: Callable[[Any], None], function: Callable[..., Any], *args: Any) -> None:
        """Read or write a long message of a peer in turns; `done` is called with the result, or with the exception."""
        self._run(peer, done, function, *args)

    def free_large(self) -> None:
        """Free the large containers that commands have made and nobody refers to any more."""
        if self.turns.large:
            self._run(None, _ignore, free, self.turns.large)

    def _run(self, peer: Peer | None, done: Callable[[Any], None], function: Callable[..., Any], *args: Any) -> None:
        try:
            answer = self.turns.run(function, *args)
        except Exception as error:
            answer = error
        if type(answer) is Turn:
            self._add(_Paused(peer, None, answer, done))
        else:
            done(answer)

    def requests(self) -> list[Request]:
        """The commands that have begun and not ended."""
        return [paused.request for paused in self._paused if paused.request is not None]

    def interrupt(self, connection_id: int, error: Interrupted) -> None:
        """End the command of a connection, by its number, at its next turn."""
        for paused in self._paused:
            if paused.peer is not None and paused.peer.client.connection_id == connection_id:
                paused.turn.interruption = error

    def interrupt_all(self, error: Interrupted) -> None:
        """End all commands, at once: as the server stops."""
        while self._paused:
            self._paused[0].turn.interruption = error
            self._resume()

    def _add(self, paused: _Paused) -> None:
        self._paused.append(paused)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.loop.call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        try:
            if self._paused:
                self._resume()
        finally:
            if self._paused:
                self._schedule()

    def _resume(self) -> None:
        paused = self._paused.popleft()
        try:
            answer = self.turns.resume(paused.turn)
        except Exception as error:
            answer = error
        if type(answer) is Turn:
            self._paused.append(paused)
        else:
            paused.done(answer)


def _go_on(peer: Peer, command: Command, request: Request, answer: Any) -> None:
    peer.go_on(command, request, peer.failed(request, answer) if isinstance(answer, Exception) else answer)


def _ignore(answer: Any) -> None:
    """What frees containers answers nothing."""
