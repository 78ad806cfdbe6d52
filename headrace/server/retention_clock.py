"""The time that ages history: it goes with the wall clock, but does not jump with it.

Rule: it begins at the newest entry of the oplog, or now where that is earlier, and then catches up with the wall clock
at twice the pace of the monotonic one at most. It never goes back. So a wall clock that is wrong by a day for a minute
ages history by two minutes, and what a server slept or was stopped for (`RunningClock`) is caught up while its clients
can read on.
"""

from __future__ import annotations

import logging
from typing import Final

from headrace import limits
from headrace.clock import Clock
from headrace.log_lines import emit

LOG = logging.getLogger("headrace.server")
JUMP_MS: Final = 60_000
"""A difference between the clocks that is worth a line in the log."""


class RetentionClock:
    """The time of one server's background jobs."""

    def __init__(self, clock: Clock, newest_ms: int) -> None:
        """`newest_ms`: wall clock of the newest entry, 0 if there is none."""
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()
        self._time_ms = min(self._wall_ms, newest_ms) if newest_ms else self._wall_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch by which history ages; called about once a second."""
        wall_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        elapsed_ms = monotonic_ms - self._monotonic_ms
        jump_ms = wall_ms - self._wall_ms - elapsed_ms
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        if abs(jump_ms) >= JUMP_MS:
            emit(
                LOG,
                logging.WARNING,
                "the wall clock went %s by %d s at once; history ages at its own pace, and cluster times never go back",
                "forward" if jump_ms > 0 else "back",
                abs(jump_ms) // 1000,
            )
        self._time_ms = max(self._time_ms, min(wall_ms, self._time_ms + int(limits.RETENTION_PACE_MAX * elapsed_ms)))
        return self._time_ms
