"""Log lines that clients can cause: limited to one line each, in length, and in number."""

from __future__ import annotations

import logging
import math
import traceback
from contextlib import suppress
from typing import Any, Final

from headrace import limits
from headrace.clock import monotonic

_SERVER: Final = logging.getLogger("headrace.server")


def printable(text: object) -> str:
    """Return a client's text as one line: at most 500 characters, with control characters escaped, so that it cannot
    forge a line."""
    line = str(text)[: limits.LOG_TEXT_LENGTH_MAX + 1]
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
    return shown if len(line) <= limits.LOG_TEXT_LENGTH_MAX else shown[: limits.LOG_TEXT_LENGTH_MAX] + "..."


def emit(
    log: logging.Logger, level: int, text: str, *arguments: object, extra: dict[str, Any] | None = None,
    exc_info: bool = False,
) -> None:  # fmt: skip
    """Log a line and raise nothing. If a handler or a filter of the program fails, the line is lost, and the error is
    printed on stderr, as logging's own handlers do."""
    try:
        log.log(level, text, *arguments, extra=extra, exc_info=exc_info)
    except Exception:
        if logging.raiseExceptions:
            with suppress(Exception):
                traceback.print_exc()


class RepeatedLine:
    """A log line that clients can cause as often as they like. It is logged once in ten seconds."""

    def __init__(self, log: logging.Logger = _SERVER, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._logged_at = -math.inf
        self._omitted = 0

    def log(self, text: str) -> None:
        """Log a line, or count it as omitted."""
        now = monotonic()
        if now - self._logged_at < limits.REPEATED_LOG_SECONDS:
            self._omitted += 1
            return
        more = f" (and {self._omitted} more like it since the last such line)" if self._omitted else ""
        self._logged_at, self._omitted = now, 0
        emit(self._log, self._level, "%s%s", printable(text), more)
