"""The clocks of a server, made of the machine's wall clock and monotonic clock.

- `RunningClock`: monotonic time goes on only while the process runs. A process that was stopped (SIGSTOP, a debugger, a
  frozen machine) for a minute has heard none of its clients for that minute. Without this clock its cursors and
  transactions would expire at once, and history would age by twice that time.
- `ExpiryClock`: the time by which documents expire. What a TTL index deletes is gone, so a jump of the wall clock ahead
  counts only once it has lasted; one back counts at once, and then nothing expires.
- `RetentionClock`: the time by which history ages. It begins at the newest entry of the oplog, or now where that is
  earlier, goes at twice the pace of the monotonic clock at most until it has caught up, and never goes back. So a wall
  clock that is wrong by a day for a minute ages history by two minutes.
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
_SLEW_MS: Final = 60_000
"""How far a wall clock may go ahead of the monotonic one between two looks: what NTP corrects."""
_STOPPED_MS: Final = limits.STOPPED_SECONDS * 1000


class RunningClock(Clock):
    """A clock that is asked at least once a second (by `Background`) while the process runs. One thread drives it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_ms = clock.monotonic_ms()
        self._stopped_ms = 0.0
        self.now_ms = clock.now_ms  # type: ignore[method-assign]  # a call less for each commit

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


class ExpiryClock:
    """The time of one server's TTL indexes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()
        self._ahead_since_ms: float | None = None

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch by which documents expire; to be asked about once a second."""
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
