"""Blocks of writes: the lock of `fsync`, and the block of `setUserWriteBlockMode`.

    fsync lock    counted, in memory; all writes wait until it is gone, also the server's own, so no file changes
    user block    stored with the cluster parameters, with a reason; a user's write is refused (371), except in
                  `admin`, `config` and `local`, and except for a user with `bypassWriteBlockingMode`

Source: MongoDB's manual on both commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.auth.privileges import CLUSTER
from headrace.changes.scope import INTERNAL_DATABASES
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.dispatch.context import CommandContext
    from headrace.dispatch.engine import Engine

BLOCK: Final = "userWriteBlock"
"""The name under which the block is stored. It is not a parameter that clients see."""
_STATEMENTS: Final = {"bulkWrite": "ops", "delete": "deletes", "insert": "documents", "update": "updates"}
"""The commands that report a refused write as an error of each statement, and the field with their statements."""
_BLOCKED: Final = frozenset({
    *_STATEMENTS, "aggregate", "applyOps", "cloneCollectionAsCapped", "collMod", "convertToCapped", "create",
    "createIndexes", "drop", "dropDatabase", "dropIndexes", "findAndModify", "renameCollection",
})  # fmt: skip
_BYPASS: Final = frozenset({"bypassWriteBlockingMode"})
_ERROR: Final = (371, "User writes blocked")


class WriteLock:
    """The lock of `fsync`: how often it was taken, and the last request that took it."""

    __slots__ = ("_last", "_wake", "count")

    key: Final = "\0fsync"
    """The wait key of writes. No namespace begins with a zero byte."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self.count = 0
        self._last: Request | None = None
        self._wake = wake

    def over(self) -> bool:
        """Whether writes may go on."""
        return not self.count

    def take(self, request: Request) -> int:
        """Lock once more and return the count. A request that runs again after its group commit failed counts once."""
        if request is not self._last:
            self.count += 1
            self._last = request
        return self.count

    def release(self) -> int:
        """Unlock once and return the count. At 0, wake the waiting writes. Raise 20 if not locked."""
        if not self.count:
            raise CommandError(20, "fsyncUnlock called when not locked")
        self.count -= 1
        self._last = None
        if not self.count:
            self._wake(self.key)
        return self.count

    def wait(self, command: Command, request: Request) -> Wait | None:
        """Return the `Wait` of a write; None: the write may run. Raise 50 when its time is up."""
        if not self.count or command.name == "fsync":
            return None
        if request.time_is_up:
            raise CommandError(50, "operation exceeded time limit")
        return Wait(float(request.body.get("maxTimeMS") or limits.AWAIT_MS_MAX), self.key, over=self.over)


def unless_blocked(engine: Engine, command: Command, request: Request) -> Command:
    """Return the command, or one that reports each statement as blocked. Raise 371 if the command has no such reply."""
    if not engine.store.cluster_parameters.get(BLOCK) or command.name not in _BLOCKED:
        return command
    writes = command.writes if isinstance(command.writes, bool) else command.writes(request)
    field = _STATEMENTS.get(command.name)
    if not writes or _databases(request) <= INTERNAL_DATABASES or _may_bypass(engine, request):
        return command
    if field is None or command.name == "bulkWrite":
        raise CommandError(*_ERROR)
    return replace(command, run=_refused(field), pauses=False)


def _databases(request: Request) -> set[str]:
    """Return the databases that a write may change; `{""}` for `applyOps`, which may change any."""
    body = request.body
    if request.name == "renameCollection":
        names = [body[request.name], body.get("to")]
    elif request.name == "bulkWrite":
        infos = request.sequences.get("nsInfo")
        documents = [decode(raw) for raw in infos] if infos is not None else body.get("nsInfo") or []
        names = [item.get("ns") for item in documents if type(item) is dict]
    else:
        names = ["" if request.name == "applyOps" else request.db]
    return {str(name).partition(".")[0] for name in names}


def _may_bypass(engine: Engine, request: Request) -> bool:
    if not engine.authorizes:
        return False
    if request.client.is_program:
        return True
    grants = engine.access.grants(request.client)
    return grants is not None and grants.permits(CLUSTER, _BYPASS)


def _refused(field: str) -> Callable[[CommandContext, Request], dict[str, Any]]:
    """Return a `run` that answers with an error for each statement; only for the first if the write is ordered."""

    def run(context: CommandContext, request: Request) -> dict[str, Any]:
        body = request.body
        statements = request.sequences.get(field) or body.get(field) or ()
        count = len(statements) if body.get("ordered") is False else 1
        code, message = _ERROR
        errors = [{"index": index, "code": code, "errmsg": message} for index in range(count)]
        return {"n": 0, **({"nModified": 0} if field == "updates" else {}), "writeErrors": errors}

    return run
