"""The writer's watchdog: it ends the server if a commit does not end, for example on a hanging disk.

It counts only time in which the process runs. A late check, after the process was stopped or the machine slept, counts
little more than one on time.
"""

from __future__ import annotations

from typing import Final

from headrace import limits

LOOK_SECONDS: Final = 1.0
"""The interval of the watchdog's checks."""


class Watchdog:
    """Measures how long the writer has been in the same step."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked_at = 0.0
        self._seconds = 0.0

    def is_stalled(self, busy_since: float | None, now: float) -> bool:
        """Return whether the step that began at `busy_since` (None: there is none) will not end. Must be called each
        second."""
        if busy_since is None or busy_since != self._since:
            self._since, self._seconds = busy_since, 0.0
        else:
            self._seconds += min(now - self._looked_at, 2 * LOOK_SECONDS)
        self._looked_at = now
        return self._seconds > limits.WRITER_STALL_SECONDS_MAX
