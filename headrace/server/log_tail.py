"""The last lines of the log, in memory for `getLog`, each cut to 1 KiB."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from headrace import limits

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogTail(logging.Handler):
    """A `logging.Handler` that retains its last lines, formatted."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=limits.LOG_LINE_COUNT_MAX)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record)[: limits.LOG_LINE_LENGTH_MAX])
