"""Turns: a command that has run for some milliseconds pauses, and continues after other commands had their turn.

    turns.run(function, *arguments)     → its result, or the `Turn` in which it has paused
    turns.resume(turn)                  → likewise
    tick()                              called between documents: pauses if the turn is over
    for document in paced(documents):   the same for a loop

A turn is a greenlet: `tick` pauses its caller with the whole call stack, so callers need not be generators. After
`tick` a writing command must expect any change of the store; a reading command sees the same state as before. Outside a
turn (a test that calls a command, the server's own jobs) and within a limited call (`time_limit`) `tick` does nothing.

Rule: an interruption is not a `CommandError`, and `TurnAbandoned` not an `Exception`: both pass through the command.

Source: MongoDB's query yielding, `internalQueryExecYieldPeriodMS` (10 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from threading import Thread, current_thread
from typing import Any, Final, TypeVar

from greenlet import getcurrent

from headrace.clock import monotonic
from headrace.running_command import TURN_SECONDS, RunningCommand
from headrace.time_limit import is_limited, watch


class Turn(RunningCommand):
    """A running or paused command."""

    ends: float = 0.0
    """The end of the turn, in seconds of the monotonic clock."""
    result: Any = None
    """The command's result, or `_Raised`, until it is returned."""
    thread: Thread | None = None
    """The thread of its server."""


_running: Final[set[Turn]] = set()
"""The running turns: one on the thread of each server."""


def tick() -> None:
    """Pause the running command if its turn is over. Raises its interruption."""
    turn = getcurrent()
    if type(turn) is Turn and monotonic() >= turn.ends and not is_limited():
        turn.pause()


def run_to_the_end() -> None:
    """Let the running command end in this turn, without another pause at a tick."""
    turn = getcurrent()
    if type(turn) is Turn:
        turn.ends = inf


def _may_move(thread: Thread) -> bool:
    """Return whether a reader process can run the command whose turn runs on a thread."""
    for turn in (*_running,):
        if turn.thread is thread and not turn.stays and (read := turn.read) is not None:
            engine, command, request = read
            return bool(engine.shell.may_move(command, request))
    return False


watch.may_move = _may_move


Item = TypeVar("Item")


def paced(documents: Iterable[Item]) -> Iterator[Item]:
    """Yield the documents, with a tick before each."""
    for document in documents:
        tick()
        yield document


class TurnAbandoned(BaseException):
    """Unwinds a command whose transaction is gone. The caller that resumed it runs it again. No error handler catches
    it."""


class _Raised:
    """An exception that leaves a turn."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Turns:
    """Runs commands in turns, on one thread. Greenlets that have finished are reused."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        """`seconds`: the length of a turn. With 0 every tick pauses (for tests)."""
        self.seconds = seconds
        self.ends = 0.0
        """The end of the last turn that began, in seconds of the monotonic clock."""
        self.pause_count = 0
        """The number of pauses of all turns."""
        self._idle: list[Turn] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `function`, or raise its error. If it has paused, return the `Turn`."""
        if self._idle:
            turn = self._idle.pop()
        else:
            turn = Turn(_work)
            turn.thread = current_thread()
            turn.switch()
        return self._switch(turn, (function, arguments))

    def resume(self, turn: Turn, given: Any = None) -> Any:
        """Resume a paused command; return the same as `run`. `given` is passed to its `after_pause`."""
        return self._switch(turn, given)

    def abandon(self, turn: Turn) -> None:
        """End a paused command; it does nothing more."""
        turn.after_pause = None
        result: Any = turn
        while result is turn:
            turn.interruption = TurnAbandoned()
            try:
                result = self.resume(turn)
            except TurnAbandoned:
                return

    def _switch(self, turn: Turn, call: Any) -> Any:
        turn.ends = self.ends = monotonic() + self.seconds
        _running.add(turn)
        try:
            if turn.switch(call) is turn:
                self.pause_count += 1
                return turn
        finally:
            _running.discard(turn)
        result, turn.result = turn.result, None
        turn.before_pause = turn.after_pause = turn.interruption = turn.work = turn.read = None
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
                del error  # its traceback has this frame: a cycle would stay until garbage is collected
        return result


def _work() -> None:
    """Run one call after the other: the body of a turn's greenlet. An idle greenlet refers to nothing of its last
    call."""
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
