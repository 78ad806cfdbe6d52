"""What the log says of an exception that should not have been: one record of bounded size, whatever a client sent."""

from __future__ import annotations

import logging
import traceback

from headrace import limits

LOG = logging.getLogger("headrace.server")


def printable(text: object) -> str:
    """A client's text on one line: at most 500 characters, control characters escaped, so that no line is forged."""
    line = str(text)[: limits.LOG_TEXT_LENGTH_MAX + 1]
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
    return shown if len(line) <= limits.LOG_TEXT_LENGTH_MAX else shown[: limits.LOG_TEXT_LENGTH_MAX] + "..."


def log_failure(what: str, error: BaseException, *, level: int = logging.ERROR) -> None:
    """Log an unexpected exception with its innermost frames."""
    frames = traceback.format_tb(error.__traceback__)[-limits.LOG_FRAME_COUNT_MAX :]
    LOG.log(level, "%s: %s: %s\n%s", printable(what), type(error).__name__, printable(error), "".join(frames).rstrip())
