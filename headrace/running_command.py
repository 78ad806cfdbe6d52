"""The running command of a turn: its examined documents and held memory, for the log, the profiler and memory limits.

`turns.Turn` is the only subclass. Code that only notes facts about the running command needs just this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent, greenlet

from headrace import limits
from headrace.clock import monotonic
from headrace.time_limit import hand_over

TURN_SECONDS: Final = 0.005  # how long a command runs before other commands get a turn


class Work:
    """The documents and keys that the scans of a command have examined, for the log."""

    __slots__ = ("documents", "keys", "plan")

    def __init__(self, plan: str) -> None:
        self.plan = plan
        """The plan of its first scan: `COLLSCAN`, or `IXSCAN { a: 1 }`."""
        self.documents = 0
        self.keys = 0


class RunningCommand(greenlet):
    """A running or paused command."""

    paused_at: float | None = None
    """The time of its first pause, in seconds of the monotonic clock."""
    pause_count = 0
    """The number of its pauses."""
    work: Work | None = None
    """The documents and keys that it has examined; None: none were counted."""
    answer: Any = None
    """The command's answer, if it has paused, for the log."""
    returned_count: int | None = None
    """The number of documents in its batch, if it is large, for the log."""
    before_pause: Callable[[], None] | None = None
    """Called before the command pauses: frees everything that must not outlive the turn."""
    after_pause: Callable[[Any], None] | None = None
    """Called after it resumes, with the argument of `Turns.resume`: a write's next transaction."""
    interruption: BaseException | None = None
    """Raised in the command when it resumes: its time is up, its client has left, or it was killed."""
    goes_first: bool = False
    """Whether it runs before all others until it ends, because it holds much memory."""
    is_strict: bool = False
    """Whether its client requested the strict stable API, in which the planner has no sparse indexes."""
    allowed_indexes: dict[str, list[Any]] | None = None
    """The indexes that its query settings allow, by namespace: names or key patterns."""
    scan_bytes: int = 0
    """The approximate size of its scan's last chunk, in bytes."""
    stays: bool = False
    """Whether it keeps its results in this process for later commands. No other process may run it then."""
    begins_again: bool = False
    """Whether it has only read so far, so that a reader process may run it again from the beginning."""
    read: tuple[Any, Any, Any] | None = None
    """The engine, the command and the request of a read."""
    waits_for: Any = None
    """The event it waits for before it can resume, as the shell understands it; None: only for its next turn."""

    def pause(self, waits_for: Any = None) -> None:
        """Let other commands run. Returns at this command's next turn, or raises the `interruption`."""
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
                del error  # its traceback has this frame: a cycle would keep the command's data


def running_command() -> RunningCommand | None:
    """Return the command in whose turn the caller runs, or None."""
    command = getcurrent()
    return command if isinstance(command, RunningCommand) else None


def examined(plan: str, documents: int, keys: int = 0) -> None:
    """Count documents and keys that a scan of the running command has read."""
    command = getcurrent()
    if isinstance(command, RunningCommand):
        work = command.work
        if work is None:
            work = command.work = Work(plan)
        work.documents += documents
        work.keys += keys


def holds_chunk(size: int) -> None:
    """Note that a scan of the running command has read `size` bytes from a view at once. A large document is left to a
    reader process before it is decoded."""
    command = getcurrent()
    if isinstance(command, RunningCommand):
        command.scan_bytes = size
        if size > limits.MOVED_CHUNK_BYTES:
            hand_over()
