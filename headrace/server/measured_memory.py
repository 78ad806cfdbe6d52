"""The memory of the process, as the system measures it. It includes what no account counts (`memory_budget.py`): values
that expressions make on the way, parsed filters, copies of messages.

    plenty      up to three quarters of the limit: all commands that have paused take turns
    short       one read and one write go on, the oldest ones; the others wait for their next turn
    exceeded    an eighth above the limit: something must end (`Scheduler.look_at_memory`)

The memory is measured before and after each turn, so that it is known how much the process has grown during the turns
of a command. What a command has allocated in place of freed memory is not seen.

Only `headrace serve` measures. The memory of a program with a server inside is the program's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from operator import attrgetter
from typing import Protocol, TypeVar

from headrace import limits
from headrace.clock import monotonic
from headrace.memory_budget import Memory
from headrace.running_command import RunningCommand


class MeasuredMemory:
    """Compares the memory of the process with its limit."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.resident: Callable[[], int] | None = None
        """Returns the bytes that the process has for itself; None: nothing is measured."""
        self.return_freed: Callable[[], object] = bool
        """Returns freed blocks to the system."""
        self._returns_at = 0.0

    def is_short(self) -> bool:
        """Whether only the oldest commands may go on."""
        return self._used() > self._memory.bytes_max * limits.MEMORY_SHORT_SHARE

    def excess(self) -> int:
        """Return how many bytes the process has where a command must end for it; otherwise 0."""
        used = self._used()
        return used if used > self._memory.bytes_max * limits.MEMORY_EXCEEDED_SHARE else 0

    def now(self) -> int:
        """Return how many bytes the process has; 0 where nothing is measured."""
        return 0 if self.resident is None else self.resident()

    def _used(self) -> int:
        """Return how many bytes the process has; freed blocks are returned first where these are many."""
        if self.resident is None:
            return 0
        used, most = self.resident(), self._memory.bytes_max
        if used <= most * limits.MEMORY_SHORT_SHARE:
            return used
        if used <= most * limits.MEMORY_EXCEEDED_SHARE and monotonic() < self._returns_at:
            return used
        self.return_freed()
        self._returns_at = monotonic() + limits.MEMORY_RETURN_SECONDS
        return self.resident()


class Paused(Protocol):
    """A command that has paused."""

    @property
    def turn(self) -> RunningCommand:
        """Its turn."""

    @property
    def since(self) -> float:
        """When it has first paused, in seconds of the monotonic clock."""


AnyPaused = TypeVar("AnyPaused", bound=Paused)


def oldest(paused: Collection[AnyPaused]) -> AnyPaused:
    """Return which command goes on while memory is short: one that is about to end, or the oldest."""
    ending = (item for item in paused if is_ending(item))
    return next(ending, None) or min(paused, key=attrgetter("since"))


def expendable(paused: Collection[AnyPaused], most: int) -> AnyPaused:
    """Return which command ends where memory is exceeded: one during whose turns the process has grown by more than
    `most` bytes; otherwise the youngest."""
    largest = max(paused, key=lambda item: item.turn.grown_bytes)
    return largest if largest.turn.grown_bytes > most else max(paused, key=attrgetter("since"))


def is_ending(paused: Paused) -> bool:
    """Whether the command ends at its next turn."""
    return paused.turn.goes_first or paused.turn.interruption is not None


@cache
def _statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """Return the resident memory of the process without pages of files, 4 µs; 0 where the system is not Linux."""
    resident, shared = _resident_pages()
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_of_all() -> int:
    """Return the resident memory of the process, with pages of files; 0 where the system is not Linux."""
    return _resident_pages()[0] * os.sysconf("SC_PAGE_SIZE")


def _resident_pages() -> tuple[int, int]:
    """Return how many pages are resident, and how many of these are of files."""
    try:
        _, resident, shared, _ = os.pread(_statm(), 128, 0).split(b" ", 3)
    except OSError:
        return 0, 0
    return int(resident), int(shared)


@cache
def c_library() -> ctypes.CDLL:
    """Opened once: each that is opened leaves a class behind, which is garbage in a cycle. Raises OSError."""
    return ctypes.CDLL(None)


def return_freed_memory() -> None:
    """Return freed blocks to the system: a millisecond for 16 MB of them."""
    with contextlib.suppress(OSError, AttributeError):
        c_library().malloc_trim(0)
