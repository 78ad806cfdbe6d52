"""The memory of the process, as the system measures it. It includes memory that no account counts (`memory_budget.py`):
intermediate values of expressions, parsed filters, copies of messages. If the resident memory exceeds the limit by an
eighth, a command must end (`Scheduler.look_at_memory`).

Only `headrace serve` measures. A program with a server inside is responsible for its own memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import cache

from headrace import limits
from headrace.memory_budget import Memory


class MeasuredMemory:
    """Compares the memory of the process with its limit."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.resident: Callable[[], int] | None = None
        """Returns the private resident memory of the process in bytes; None: nothing is measured."""
        self.return_freed: Callable[[], object] = bool
        """Returns freed blocks to the system."""

    def excess(self) -> int:
        """Return the memory of the process in bytes if a command must end because of it, otherwise 0. Freed blocks are
        returned to the system first."""
        most = self._memory.bytes_max * limits.MEMORY_EXCEEDED_SHARE
        if self.resident is None or self.resident() <= most:
            return 0
        self.return_freed()
        used = self.resident()
        return used if used > most else 0


@cache
def _statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def resident_bytes() -> int:
    """Return the resident memory of the process in bytes, without pages of files; 0 on systems other than Linux. Takes
    4 µs."""
    resident, shared = _resident_pages()
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_of_all() -> int:
    """Return the resident memory of the process in bytes, with pages of files; 0 on systems other than Linux."""
    return _resident_pages()[0] * os.sysconf("SC_PAGE_SIZE")


def _resident_pages() -> tuple[int, int]:
    """Return the numbers of resident pages, and of those that belong to files."""
    try:
        _, resident, shared, _ = os.pread(_statm(), 128, 0).split(b" ", 3)
    except OSError:
        return 0, 0
    return int(resident), int(shared)


@cache
def c_library() -> ctypes.CDLL:
    """Open the C library once: each opening leaves a class behind, which is garbage in a cycle. Raises OSError."""
    return ctypes.CDLL(None)


def return_freed_memory() -> None:
    """Return freed blocks to the system. Takes a millisecond for 16 MB."""
    with contextlib.suppress(OSError, AttributeError):
        c_library().malloc_trim(0)
