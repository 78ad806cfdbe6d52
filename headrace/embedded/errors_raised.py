"""Raise pymongo's errors for replies with errors.

`import pymongo` takes longer than opening a store, so pymongo is imported only when an error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


def raise_closed(reason: str | None) -> NoReturn:
    """Raise `Closed` with a reason."""
    from headrace.embedded.error_types import Closed

    raise Closed(reason or "the store is closed")


def raise_failure(reply: Mapping[str, Any]) -> NoReturn:
    """Raise the error of a reply to a failed command, as pymongo would."""
    from pymongo.errors import CursorNotFound, DuplicateKeyError, ExecutionTimeout, OperationFailure

    from headrace.embedded.error_types import Closed, HistoryLost

    code, message = reply.get("code"), reply["errmsg"]
    if code == 11600:
        raise Closed("the store was closed while the command ran")
    kinds: dict[int | None, type[OperationFailure]] = {
        43: CursorNotFound, 50: ExecutionTimeout, 286: HistoryLost, 11000: DuplicateKeyError,
    }  # fmt: skip
    raise kinds.get(code, OperationFailure)(message, code, reply)


def check_write(reply: Mapping[str, Any]) -> None:
    """Raise the error of a write of one statement, if any: `DuplicateKeyError`, `WriteError`, `WriteConcernError`."""
    if errors := reply.get("writeErrors"):
        from pymongo.errors import DuplicateKeyError, WriteError

        error = errors[-1]
        kind = DuplicateKeyError if error.get("code") == 11000 else WriteError
        raise kind(error.get("errmsg"), error.get("code"), error)
    if "writeConcernError" in reply:
        raise_write_concern(reply)


def raise_write_concern(reply: Mapping[str, Any]) -> NoReturn:
    """Raise the error of a write that was done, but on fewer members than requested."""
    from pymongo.errors import WriteConcernError

    error = dict(reply["writeConcernError"])
    if "errorLabels" in reply:
        error["errorLabels"] = reply["errorLabels"]
    raise WriteConcernError(error.get("errmsg", ""), error.get("code"), error)
