"""The stable API: the fields `apiVersion`, `apiStrict` and `apiDeprecationErrors` of a command.

The only version is "1". Nothing in it is deprecated, so `apiDeprecationErrors` changes nothing.
Source: MongoDB's manual on the stable API and its list of commands.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch import api_strict
from headrace.dispatch.request import Request
from headrace.errors import CommandError

IN_VERSION_1: Final = frozenset({
    "abortTransaction", "aggregate", "authenticate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "endSessions", "explain", "find",
    "findAndModify", "findandmodify", "getMore", "hello", "insert", "killCursors", "listCollections",
    "listDatabases", "listIndexes", "ping", "refreshSessions", "renameCollection", "saslContinue", "saslStart",
    "update",
})  # fmt: skip


def is_strict(body: dict[str, Any]) -> bool:
    """Whether the client allows only the stable API."""
    return body.get("apiStrict") is True


def check(command: str, request: Request) -> None:
    """Raise 322 for a version other than 1, 323 for parts of a command that `apiStrict` forbids.

    `command`: the command's name, also if the request uses an alias.
    """
    body = request.body
    version = body.get("apiVersion")
    if version is None:
        if "apiStrict" in body or "apiDeprecationErrors" in body:
            raise CommandError(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
        return
    if version != "1":
        raise CommandError(322, 'API version must be "1"')
    if body.get("apiStrict"):
        api_strict.check(command, request)


def check_name(request: Request) -> None:
    """Raise 323 for a command that is not in the strict version 1, whatever its fields are."""
    if request.body.get("apiVersion") == "1" and request.name not in IN_VERSION_1:
        raise CommandError(
            323,
            f"Provided apiStrict:true, but the command {request.name} is not in API Version 1. Information on "
            "supported commands and migrations in API Version 1 can be found at "
            "https://dochub.mongodb.org/core/manual-versioned-api",
        )
