"""The only module that reads the time; all others get a clock."""

from __future__ import annotations

import time
from time import monotonic, thread_time
from typing import Protocol


class Clock(Protocol):
    """The time, passed to everything that needs it; tests pass `testing.clock.FakeClock`."""

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


__all__ = ["Clock", "SystemClock", "monotonic", "thread_time"]
