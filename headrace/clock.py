"""The clocks. This is the only module that reads the time; all others get a clock."""

from __future__ import annotations

import sys
import time
from time import monotonic, thread_time
from typing import Protocol


class Clock(Protocol):
    """A source of the time, passed to everything that needs it. Tests pass `testing.clock.FakeClock`."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch, as BSON dates count them."""

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back, for deadlines."""


class SystemClock(Clock):
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds of `time.monotonic`."""
        return time.monotonic() * 1000.0


def cpu_seconds_of(process_id: int) -> float:
    """Return the CPU time of a process in seconds, or `monotonic()` if the system does not show it or the process has
    ended.

    On Linux the number of a process's clock is derived from its id: clock_getcpuclockid(3).
    """
    if not sys.platform.startswith("linux"):
        return monotonic()
    try:
        return time.clock_gettime((~process_id << 3) | 2)
    except OSError:  # the process has ended
        return monotonic()


__all__ = ["Clock", "SystemClock", "cpu_seconds_of", "monotonic", "thread_time"]
