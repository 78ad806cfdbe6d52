"""The command that runs in a turn: what it has examined and holds, for the log, the profiler and the limits of memory.

`turns.Turn` is the only kind there is. Whoever only notes something of the running command needs no more than this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent, greenlet

from headrace.clock import monotonic

TURN_SECONDS: Final = 0.005  # how long a command runs before others have their turn


class Work:
    """The documents and keys that the scans of a command have examined, for the log."""

    __slots__ = ("documents", "keys", "plan")

    def __init__(self, plan: str) -> None:
        self.plan = plan
        """`COLLSCAN`, or `IXSCAN { a: 1 }`: of its first scan."""
        self.documents = 0
        self.keys = 0


class RunningCommand(greenlet):
    """A command that is running, or has paused."""

    paused_at: float | None = None
    """When it has first paused, in seconds of the monotonic clock."""
    pause_count = 0
    """How often it has."""
    work: Work | None = None
    """Its examined documents and keys; None: nothing is counted."""
    answer: Any = None
    """The command's answer, if it has paused, for the log."""
    returned_count: int | None = None
    """How many documents are in its batch, where these are many, for the log."""
    before_pause: Callable[[], None] | None = None
    """Called as the command pauses: frees everything that must not outlive the turn."""
    after_pause: Callable[[Any], None] | None = None
    """Called as it resumes, with the argument of `Turns.resume`: a write's next transaction."""
    interruption: BaseException | None = None
    """Raised in the command when it resumes: its time is up, its client has gone, or it was killed."""
    goes_first: bool = False
    """Whether it runs before all others until it ends, because it holds much memory."""
    is_strict: bool = False
    """Whether its client asked for the strict stable API, in which the planner has no sparse indexes."""
    allowed_indexes: dict[str, list[Any]] | None = None
    """The indexes that its query settings allow, by namespace: names or key patterns."""
    scan_bytes: int = 0
    """About what its scan has last read at once."""
    stays: bool = False
    """Whether what it does is kept in this process, for later commands, so that no other is to run it."""
    begins_again: bool = False
    """Whether it has only read so far, so that a reader process may begin that again."""
    waits_for: Any = None
    """The event it waits for before it can resume, as the shell understands it; None: only its next turn."""

    def pause(self, waits_for: Any = None) -> None:
        """Let others run; returns, or raises the `interruption`, when it is this command's turn again."""
        if self.before_pause is not None:
            self.before_pause()
        if self.paused_at is None:
            self.paused_at = monotonic()
        self.pause_count += 1
        assert self.parent is not None
        self.waits_for = waits_for
        given = self.parent.switch(self)
        self.waits_for = None
        if self.after_pause is not None:
            self.after_pause(given)
        if self.interruption is not None:
            error, self.interruption = self.interruption, None
            try:
                raise error
            finally:
                del error  # whose traceback has this frame: a cycle would keep what the command holds


def running_command() -> RunningCommand | None:
    """The command in whose turn the caller runs."""
    command = getcurrent()
    return command if isinstance(command, RunningCommand) else None


def examined(plan: str, documents: int, keys: int = 0) -> None:
    """Count what a scan of the command that runs has read at once."""
    command = getcurrent()
    if isinstance(command, RunningCommand):
        work = command.work
        if work is None:
            work = command.work = Work(plan)
        work.documents += documents
        work.keys += keys


def holds_chunk(size: int) -> None:
    """Note that a scan of the running command has read `size` bytes from a view at once."""
    command = getcurrent()
    if isinstance(command, RunningCommand):
        command.scan_bytes = size
