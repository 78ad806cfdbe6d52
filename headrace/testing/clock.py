"""A clock that stands still until it is told to move."""

from __future__ import annotations

from headrace.clock import SystemClock


class FakeClock(SystemClock):
    """Time as an argument: `now_ms` is the wall clock, and both clocks move by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        """Let time pass."""
        self._now_ms += int(ms)
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP does, also backwards."""
        self._now_ms = now_ms
