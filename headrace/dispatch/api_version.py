"""The stable API: what a client asks for with `apiVersion`, `apiStrict` and `apiDeprecationErrors`.

There is one version, "1", and nothing in it is deprecated, so that `apiDeprecationErrors` changes nothing.
Source: MongoDB's manual on the stable API and its list of commands.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError

IN_VERSION_1: Final = frozenset({
    "abortTransaction", "aggregate", "authenticate", "bulkWrite", "collMod", "commitTransaction", "count", "create",
    "createIndexes", "delete", "drop", "dropDatabase", "dropIndexes", "endSessions", "explain", "find",
    "findAndModify", "findandmodify", "getMore", "hello", "insert", "killCursors", "listCollections",
    "listDatabases", "listIndexes", "ping", "refreshSessions", "saslContinue", "saslStart", "update",
})  # fmt: skip


def check(command: str, body: dict[str, Any]) -> None:
    """Raise 322 for another version, 323 for a command outside of a strict one."""
    version = body.get("apiVersion")
    if version is None:
        if "apiStrict" in body or "apiDeprecationErrors" in body:
            raise CommandError(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
        return
    if version != "1":
        raise CommandError(322, 'API version must be "1"')
    if body.get("apiStrict") and command not in IN_VERSION_1:
        raise CommandError(
            323,
            f"Provided apiStrict:true, but the command {command} is not in API Version 1. Information on supported "
            "commands and migrations in API Version 1 can be found at https://dochub.mongodb.org/core/manual-versioned-api",
        )
