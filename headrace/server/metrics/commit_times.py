"""The durations of commits: a Prometheus histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The upper bound of each range, in seconds; the last range has none."""


class CommitTimes:
    """The histogram of one server. One thread at a time may add to it, while another reads it."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """The number of commits in each range."""
        self.seconds = 0.0
        """The sum of all durations."""

    def add(self, seconds: float) -> None:
        """Count a commit."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
