"""The writer's watchdog: a commit that does not end, as on a disk that hangs, ends the server.

It counts the time in which the process runs, as it sees it: a look that comes late, since the process was stopped or
the machine slept, counts for little more than one that is in time.
"""

from __future__ import annotations

from typing import Final

from headrace import limits

LOOK_SECONDS: Final = 1.0
"""How often the watchdog looks."""


class Watchdog:
    """How long one and the same step of the writer has been under way."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked_at = 0.0
        self._seconds = 0.0

    def is_stalled(self, busy_since: float | None, now: float) -> bool:
        """To be asked each second: whether the step that began at `busy_since` (None: there is none) will not end."""
        if busy_since is None or busy_since != self._since:
            self._since, self._seconds = busy_since, 0.0
        else:
            self._seconds += min(now - self._looked_at, 2 * LOOK_SECONDS)
        self._looked_at = now
        return self._seconds > limits.WRITER_STALL_SECONDS_MAX
