"""The clock of a server: its monotonic time goes on only while the process runs.

A process that was stopped (SIGSTOP, a debugger, a frozen machine) for a minute has heard none of its clients for
that minute. Without this its cursors and transactions would expire at once, although their clients were there, and
history would age by twice that time. What was stopped for is left out; the wall clock is the machine's.
"""

from __future__ import annotations

import logging
from typing import Final

from headrace import limits
from headrace.clock import Clock
from headrace.log_lines import emit

LOG = logging.getLogger("headrace.server")
_STOPPED_MS: Final = limits.STOPPED_SECONDS * 1000


class RunningClock(Clock):
    """A clock that is asked at least once a second (by `Background`) while the process runs. One thread drives it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_ms = clock.monotonic_ms()
        self._stopped_ms = 0.0

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return self._clock.now_ms()

    def monotonic_ms(self) -> float:
        """Milliseconds of the monotonic clock, less those for which it was not read."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._asked_ms > _STOPPED_MS:
            self._leave_out(now_ms - self._asked_ms)
        self._asked_ms = now_ms
        return now_ms - self._stopped_ms

    def _leave_out(self, passed_ms: float) -> None:
        self._stopped_ms += passed_ms
        emit(
            LOG,
            logging.WARNING,
            "the process was stopped, or had no time, for %d s; nothing expires for that",
            passed_ms // 1000,
        )
