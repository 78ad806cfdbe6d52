"""Commands that have paused: each iteration of the loop resumes one of them, in turn, between what sockets bring.

Rule: who sends a short command waits for one turn of a long one at most, however many long ones there are; those share
the time that is left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.turns import Turn, Turns

if TYPE_CHECKING:
    from headrace.server.core import Core
    from headrace.server.peer import Peer


class _Paused(NamedTuple):
    """A command that goes on when it is its turn."""

    peer: Peer
    command: Command
    request: Request
    turn: Turn


class Scheduler:
    """The queue of paused commands."""

    def __init__(self, core: Core) -> None:
        self.turns = Turns()
        self._core = core
        self._paused: deque[_Paused] = deque()

    def run_read(self, peer: Peer, command: Command, request: Request) -> Any:
        """What `Engine.run_read` answers; a `Turn` if the command has paused: its peer is answered through `finish`."""
        answer = self.turns.run(self._core.engine.run_read, command, request)
        if type(answer) is Turn:
            self._add(_Paused(peer, command, request, answer))
        return answer

    def requests(self) -> list[Request]:
        """The commands that have begun and not ended."""
        return [paused.request for paused in self._paused]

    def interrupt(self, connection_id: int, error: CommandError) -> None:
        """End the command of a connection, by its number, at its next turn."""
        for paused in self._paused:
            if paused.peer.client.connection_id == connection_id:
                paused.turn.interruption = error

    def interrupt_all(self, error: CommandError) -> None:
        """End all commands, at once: as the server stops."""
        while self._paused:
            self._paused[0].turn.interruption = error
            self._resume()

    def _add(self, paused: _Paused) -> None:
        if not self._paused:
            self._core.loop.call_soon(self._next)
        self._paused.append(paused)

    def _next(self) -> None:
        try:
            if self._paused:
                self._resume()
        finally:
            if self._paused:
                self._core.loop.call_soon(self._next)

    def _resume(self) -> None:
        paused = self._paused.popleft()
        peer, command, request, turn = paused
        try:
            answer = self.turns.resume(turn)
        except Exception as error:
            answer = peer.failed(request, error)
        if type(answer) is Turn:
            self._paused.append(paused)
        else:
            peer.go_on(command, request, answer)
