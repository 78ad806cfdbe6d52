"""Turns: a command that has run for some milliseconds pauses, and goes on when others have had their turn.

    turns.run(function, *arguments)     → its result, or the `Turn` in which it has paused
    turns.resume(turn)                  → likewise
    tick()                              called between documents: pauses if the turn is over
    for document in paced(documents):   the same for a loop

A turn is a greenlet: `tick` pauses its caller and all callers of that, which need not be generators. A caller of `tick`
that writes must be ready for anything to have happened when it returns; one that reads sees the same state of the store
as before. Outside a turn (a test that calls a command, the server's own jobs) and within a limited call (`time_limit`)
`tick` does nothing.

Rule: an interruption is no `CommandError`, `TurnAbandoned` no `Exception`: both pass through the command.

Source: MongoDB's query yielding, `internalQueryExecYieldPeriodMS` (10 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, Final, TypeVar

from greenlet import getcurrent

from headrace.clock import monotonic
from headrace.running_command import TURN_SECONDS, RunningCommand
from headrace.time_limit import is_limited


class Turn(RunningCommand):
    """A command that is running, or has paused."""

    ends: float = 0.0
    """When the turn is over, in seconds of the monotonic clock."""
    result: Any = None
    """The command's result, or `_Raised`, until it is handed on."""


_running: Final[set[Turn]] = set()
"""The turns that run: one on the thread of each server."""
_first_end = inf
"""No later than the end of any of them. Until then a tick does no more than compare: it takes 0.1 µs."""


def tick() -> None:
    """Pause the command that runs if its turn is over; raises what interrupts it."""
    if monotonic() >= _first_end:
        turn = getcurrent()
        if type(turn) is Turn and monotonic() >= turn.ends and not is_limited():
            turn.pause()


def _look_at_running() -> None:
    """Set `_first_end` where turns run on other threads. No lock: each thread looks again after its own change."""
    global _first_end  # noqa: PLW0603  (as below)
    while True:
        running = (*_running,)
        _first_end = min((turn.ends for turn in running), default=inf)
        if running == (*_running,):
            return


Item = TypeVar("Item")


def paced(documents: Iterable[Item]) -> Iterator[Item]:
    """The documents, with a tick before each."""
    for document in documents:
        tick()
        yield document


class TurnAbandoned(BaseException):
    """Unwinds a command whose transaction is gone; the caller that resumed it runs it again. No error handler catches
    it."""


class HandedOver(BaseException):
    """Unwinds a command that another process runs from its beginning; the engine waits for that one's answer."""

    def __init__(self, call: Any = None) -> None:
        """`call`: an `execution.reader_calls.ReaderCall`; None: the command makes it (`begins_again`)."""
        super().__init__()
        self.call = call


class _Raised:
    """An exception on its way out of a turn."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Turns:
    """Runs commands in turns, on one thread. Greenlets that have done their work are used again."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        """`seconds`: how long a turn lasts; 0 makes every tick a pause (for tests)."""
        self.seconds = seconds
        self.pause_count = 0
        """How often anything has paused in them."""
        self._idle: list[Turn] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `function`, or raise its error; or return the `Turn`, if it has paused."""
        if self._idle:
            turn = self._idle.pop()
        else:
            turn = Turn(_work)
            turn.switch()
        return self._switch(turn, (function, arguments))

    def resume(self, turn: Turn, given: Any = None) -> Any:
        """Let a paused command go on: as `run`. `given` is handed to its `after_pause`."""
        return self._switch(turn, given)

    def abandon(self, turn: Turn) -> None:
        """End a paused command without letting it do anything more."""
        turn.after_pause = None
        result: Any = turn
        while result is turn:
            turn.interruption = TurnAbandoned()
            try:
                result = self.resume(turn)
            except TurnAbandoned:
                return

    def _switch(self, turn: Turn, call: Any) -> Any:
        global _first_end  # noqa: PLW0603  (nothing is read sooner than a name of the module)
        turn.ends = ends = monotonic() + self.seconds
        _running.add(turn)
        if ends < _first_end:  # noqa: PLR1730  (a call of `min` takes longer)
            _first_end = ends
        try:
            if turn.switch(call) is turn:
                self.pause_count += 1
                return turn
        finally:
            _running.discard(turn)
            _first_end = inf
            if _running:
                _look_at_running()
        result, turn.result = turn.result, None
        turn.before_pause = turn.after_pause = turn.interruption = turn.work = None
        if turn.pause_count:
            turn.paused_at, turn.pause_count = None, 0
        turn.goes_first = turn.stays = turn.begins_again = False
        turn.scan_bytes = 0
        turn.returned_count = None
        self._idle.append(turn)
        if type(result) is _Raised:
            error, result = result.error, None
            try:
                raise error
            finally:
                del error  # whose traceback has this frame: a cycle would stay until garbage is collected
        return result


def _work() -> None:
    """The body of a turn's greenlet: one call after the other. An idle one refers to nothing of the last."""
    turn = getcurrent()
    assert type(turn) is Turn and turn.parent is not None
    parent = turn.parent
    while True:
        function, arguments = parent.switch(None)
        try:
            turn.result = function(*arguments)
        except BaseException as error:
            turn.result = _Raised(error)
        del function, arguments
