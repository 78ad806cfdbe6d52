"""A clock that moves only when a test moves it."""

from __future__ import annotations

from headrace.clock import Clock


class FakeClock(Clock):
    """A wall clock, set to `now_ms`, and a monotonic clock; `advance` moves both."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return self._now_ms

    def monotonic_ms(self) -> float:
        """Return the sum of all calls of `advance` in ms."""
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        self._now_ms += int(ms)
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Set only the wall clock, also backwards, as an operator or NTP does."""
        self._now_ms = now_ms
