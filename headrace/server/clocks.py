"""The clocks of a server, derived from the machine's wall clock and monotonic clock.

- `RunningClock`: monotonic time advances only while the process runs. A process that was stopped (SIGSTOP, a debugger,
  a frozen machine) for a minute has received nothing from its clients for that minute. Without this clock its cursors
  and transactions would expire at once, and history would age by twice that time.
- `ExpiryClock`: the time by which documents expire. A TTL index deletes for good, so a jump of the wall clock ahead
  counts only after it has lasted. A jump back counts at once, and then nothing expires.
- `RetentionClock`: the time by which history ages. It begins at the newest entry of the oplog, or now if that is
  earlier. It advances at most at twice the pace of the monotonic clock until it has caught up, and never goes back. So
  a wall clock that is wrong by a day for a minute ages history by two minutes.
"""

from __future__ import annotations

import logging
from typing import Final

from headrace import limits
from headrace.clock import Clock
from headrace.log_lines import emit

LOG = logging.getLogger("headrace.server")
JUMP_MS: Final = 60_000
"""The smallest difference between the clocks that is logged."""
_SLEW_MS: Final = 60_000
"""How far the wall clock may get ahead of the monotonic clock between two calls. NTP corrects by less."""
_STOPPED_MS: Final = limits.STOPPED_SECONDS * 1000


class RunningClock(Clock):
    """A clock that is read at least once a second (by `Background`) while the process runs. One thread uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_ms = clock.monotonic_ms()
        self._stopped_ms = 0.0
        self.now_ms = clock.now_ms  # type: ignore[method-assign]  # saves a call per commit

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch."""
        return self._clock.now_ms()

    def monotonic_ms(self) -> float:
        """Milliseconds of the monotonic clock, without the time in which the process was stopped."""
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


class ExpiryClock:
    """The clock of one server's TTL indexes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()
        self._ahead_since_ms: float | None = None

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch by which documents expire. Must be read about once a second."""
        monotonic_ms = self._clock.monotonic_ms()
        offset_ms = self._clock.now_ms() - monotonic_ms
        if offset_ms <= self._offset_ms + _SLEW_MS:
            self._offset_ms, self._ahead_since_ms = offset_ms, None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = monotonic_ms
            emit(
                LOG,
                logging.WARNING,
                "documents expire by the new time once the clock has shown it for %d s",
                limits.JUMP_SECONDS,
            )
        elif monotonic_ms - self._ahead_since_ms >= limits.JUMP_SECONDS * 1000:
            self._offset_ms, self._ahead_since_ms = offset_ms, None
        return int(monotonic_ms + self._offset_ms)


class RetentionClock:
    """The clock of one server's background jobs."""

    def __init__(self, clock: Clock, newest_ms: int) -> None:
        """`newest_ms`: the wall clock of the newest entry, or 0 if there is none."""
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()
        self._time_ms = min(self._wall_ms, newest_ms) if newest_ms else self._wall_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch by which history ages. Must be read about once a second."""
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
