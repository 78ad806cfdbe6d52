"""Unexpected exceptions: a log record of bounded size, and the error for the client."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.log_lines import RepeatedLine, emit, printable
from headrace.store.checksums.transaction import DAMAGED
from headrace.store.lmdb import LmdbError, is_damage, is_disk_failure, is_unusable

LOG = logging.getLogger("headrace.server")
_DISK: Final = RepeatedLine(level=logging.ERROR)
_TOO_DEEP: Final = RepeatedLine()


def log_failure(what: str, error: BaseException, *, level: int = logging.ERROR) -> None:
    """Log an unexpected exception with its innermost frames. A full disk and nesting that is too deep are logged in one
    line each, which is not repeated."""
    if is_disk_failure(error) and level == logging.ERROR:
        _DISK.log(f"{what}, since the disk is full or fails: {error}")
        return
    if isinstance(error, RecursionError) and level == logging.ERROR:  # by a client's message, which gets error 15
        _TOO_DEEP.log(f"{what}: {shown(error)}")
        return
    frames = traceback.format_tb(error.__traceback__, -limits.LOG_FRAME_COUNT_MAX)
    emit(LOG, level, "%s: %s\n%s", printable(what), shown(error), "".join(frames).rstrip())


def log_of_loop(loop: object, context: dict[str, Any]) -> None:
    """Log an exception in a callback of the event loop. This replaces asyncio's handler, which logs the callback's
    arguments and the exception's text; both may have documents."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_failure("a callback of the event loop failed", error)
    else:
        emit(LOG, logging.ERROR, "%s", printable(context.get("message")))


def shown(error: BaseException) -> str:
    """Return the log's text for an exception: its type, and its text unless the text may have a document or a
    password."""
    title = type(error).__name__
    is_ours = isinstance(error, OSError | MemoryError | LmdbError) or type(error) in (RuntimeError, TimeoutError)
    return f"{title}: {printable(error)}" if is_ours and str(error) else title


def internal_error() -> CommandError:
    """Return the error for a failure inside the server that tells the client nothing."""
    return CommandError(1, "an error inside the server; see its log")


def read_error(error: BaseException) -> CommandError:
    """Return the error for a read that failed inside the server: 301 (DataCorruptionDetected) if LMDB cannot read its
    file, 15 (Overflow) if the client's message nests too deeply for the stack (MongoDB: 200 levels), 11600
    (InterruptedAtShutdown) if the store is about to end."""
    if isinstance(error, RecursionError):
        return CommandError(15, "BSONObj exceeds maximum nested object depth")
    if is_damage(error):
        return CommandError(DAMAGED, f"the data file cannot be read: {error}")
    if is_unusable(error):
        return CommandError(11600, "the disk has failed in the middle of a commit, and the store ends")
    return internal_error()


def write_error(error: BaseException) -> CommandError:
    """Return the error for a write that failed inside the server: 14031 (OutOfDiskSpace) if the disk failed, 301, 15
    or 11600."""
    if isinstance(error, RecursionError) or is_unusable(error):
        return read_error(error)
    if is_disk_failure(error):
        return CommandError(
            14031, f"the disk or the data file's map (--mapSize) is full, and nothing more was written: {error}"
        )
    if is_damage(error):
        return CommandError(DAMAGED, f"the data file cannot be changed, and nothing more was written: {error}")
    return CommandError(1, "an error inside the server, and nothing more was written; see its log")
