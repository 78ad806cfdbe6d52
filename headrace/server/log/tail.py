"""The log's last lines in memory, for `getLog`. Each is cut to 1 KiB."""

from __future__ import annotations

import logging
from collections import deque

from headrace import limits
from headrace.server.logs import formatter


class LogTail(logging.Handler):
    """A `logging.Handler` that retains its last formatted lines."""

    def __init__(self, log_format: str) -> None:
        """`log_format`: `text` or `json`."""
        super().__init__()
        self.lines: deque[str] = deque(maxlen=limits.LOG_LINE_COUNT_MAX)
        self.setFormatter(formatter(log_format, limits.LOG_LINE_LENGTH_MAX))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record)[: limits.LOG_LINE_LENGTH_MAX])
