"""The only place that reads the time; everything else is handed a clock."""

from __future__ import annotations

import time
from time import monotonic


class SystemClock:
    """The machine's clock, in the units the core uses."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch, as BSON dates count them."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back, for deadlines."""
        return time.monotonic() * 1000.0


__all__ = ["SystemClock", "monotonic"]
