"""The connection of a command to its server, and server errors as one line and an exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidName, OperationFailure, PyMongoError

from headrace.cli.arguments import EXIT_FAILED, EXIT_POSITION_LOST, EXIT_UNREACHABLE, Failed
from headrace.spark.errors import OptionError, error_line
from headrace.spark.mongodb.connection_strings import resolved

Document = dict[str, Any]
Client = MongoClient[Document]

CONNECT_MS: Final = 5_000
HISTORY_LOST_CODES: Final = frozenset({280, 286})
"""Error codes of a change stream whose position the server lacks or cannot resume from."""
_TIMEOUTS: Final = re.compile(r" \(configured timeouts:[^)]*\)|, Timeout: [0-9.]+s")
_LOGIN_CODES: Final = frozenset({18})
_OPTIONS: Final[dict[str, Any]] = {
    "appname": "headrace",
    "datetime_conversion": "DATETIME_AUTO",
    "serverSelectionTimeoutMS": CONNECT_MS,
    "tz_aware": True,
    "unicode_decode_error_handler": "replace",
    "uuidRepresentation": "standard",
}
"""Defaults that a connection string overrides. They let every stored value be shown, also dates Python cannot hold."""


@contextmanager
def connected(uri: str, **options: Any) -> Iterator[Client]:
    """Yield a client of a server that has answered. Raises Failed, also for driver errors in the body."""
    try:
        with opened(uri, **options) as client:
            client.admin.command("hello")
            yield client
    except (OptionError, PyMongoError) as error:
        raise failure(error) from error


def opened(uri: str, **options: Any) -> Client:
    """Return a client that has not connected yet. Raises Failed, OptionError and PyMongoError."""
    resolved_uri = resolved(uri)
    given = resolved_uri.partition("?")[2].lower()
    defaults = {name: value for name, value in _OPTIONS.items() if f"{name.lower()}=" not in given}
    try:
        return MongoClient[Document](resolved_uri, **(defaults | options))
    except OSError as error:
        raise Failed(f"a file of the connection string cannot be used: {error}") from None


def failure(error: Exception) -> Failed:
    """Return the `Failed` for an error: its line and the exit status."""
    if isinstance(error, OperationFailure):
        details = error.details or {}
        text = details.get("errmsg") or str(error)
        name = f" ({details['codeName']})" if "codeName" in details else ""
        status = (
            EXIT_POSITION_LOST if error.code in HISTORY_LOST_CODES
            else EXIT_UNREACHABLE if error.code in _LOGIN_CODES
            else EXIT_FAILED
        )  # fmt: skip
        return Failed(f"error {error.code}{name}: {text}", status)
    if isinstance(error, ConnectionFailure):
        text = _TIMEOUTS.sub("", error_line(error).partition(": ")[2])
        return Failed(f"the server cannot be reached: {text}", EXIT_UNREACHABLE)
    if isinstance(error, ConfigurationError | InvalidName | OptionError):
        return Failed(str(error) if isinstance(error, OptionError) else error_line(error).partition(": ")[2])
    return Failed(error_line(error))


def split_namespace(text: str) -> tuple[str, str]:
    """Split `db` or `db.collection` into two names; the second is empty for a database."""
    database, _, collection = text.partition(".")
    return database, collection
