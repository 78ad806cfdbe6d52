"""The time by which documents expire: the wall clock's, but a jump forward counts only once it has lasted.

What a TTL index deletes is gone, so a wall clock that is wrong for some minutes must not delete what a right one would
keep. A clock that jumps back counts at once: then nothing expires.
"""

from __future__ import annotations

import logging
from typing import Final

from headrace import limits
from headrace.clock import Clock
from headrace.log_lines import emit

LOG = logging.getLogger("headrace.server")
_SLEW_MS: Final = 60_000
"""How far a wall clock may go ahead of the monotonic one between two looks: what NTP corrects."""


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
