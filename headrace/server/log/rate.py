"""A bound on how many lines the log gets: clients can make the server log, by messages that it must refuse.

Rule: `limits.LOG_LINES_PER_SECOND_MAX` lines of each logger in a second, and one that says how many were left out. What
ends the server is always logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace import limits
from headrace.clock import monotonic

LOGGERS: Final = ("headrace.events", "headrace.memory", "headrace.server")


class LogRate(logging.Filter):
    """A filter of one logger."""

    def __init__(self, logger: logging.Logger, seconds: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._logger = logger
        self._seconds = seconds
        self._begun = seconds()
        self._count = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        self.look()
        self._count += 1
        if self._count <= limits.LOG_LINES_PER_SECOND_MAX or record.levelno >= logging.CRITICAL:
            return True
        self._left_out += 1
        return False

    def look(self) -> None:
        """Say how many lines were left out, if their second is over."""
        if self._seconds() - self._begun < 1.0:
            return
        self._begun = self._seconds()
        self._count, left_out, self._left_out = 0, self._left_out, 0
        if left_out:
            self._logger.warning("%d lines like these were left out of the log", left_out)


class LogRates:
    """The filters of a server's loggers."""

    def __init__(self) -> None:
        self._filters = [(logger, LogRate(logger)) for logger in map(logging.getLogger, LOGGERS)]
        for logger, rate in self._filters:
            logger.addFilter(rate)

    def look(self) -> None:
        """Each second: say what was left out of the last."""
        for _, rate in self._filters:
            rate.look()

    def close(self) -> None:
        """Log everything again."""
        for logger, rate in self._filters:
            logger.removeFilter(rate)
