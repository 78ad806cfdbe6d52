"""A clock that moves only when a test moves it."""

from __future__ import annotations

from headrace.clock import Clock


class FakeClock(Clock):
    """Time as an argument: `now_ms` is the wall clock, and both clocks move by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        """The wall clock as it was set."""
        return self._now_ms

    def monotonic_ms(self) -> float:
        """Milliseconds that `advance` has added up."""
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        self._now_ms += int(ms)
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP does, also backwards."""
        self._now_ms = now_ms
