"""The only place that reads the time; everything else is handed a clock."""

from __future__ import annotations

import time
from time import monotonic
from typing import Protocol


class Clock(Protocol):
    """What is asked for the time: `SystemClock`, or a test's clock."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back."""


class SystemClock:
    """The machine's clock, in the units the core uses."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch, as BSON dates count them."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back, for deadlines."""
        return time.monotonic() * 1000.0


__all__ = ["Clock", "SystemClock", "monotonic"]
