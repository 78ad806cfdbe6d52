"""The last lines of the log, kept in memory for `getLog`."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from headrace import limits

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogTail(logging.Handler):
    """A handler of Python's logging that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=limits.LOG_LINE_COUNT_MAX)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
