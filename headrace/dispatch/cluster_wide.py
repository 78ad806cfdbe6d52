"""Rules for every client: the default time limit of reads, blocks of writes, and query settings.

    defaultMaxTimeMS  a cluster parameter: the time limit of reads without `maxTimeMS`; 0: no limit. Reads within a
                      transaction, the commands of a user with `bypassDefaultMaxTimeMS`, and cursors that wait for data
                      have none
    fsync lock        counted, in memory; all writes wait until it is gone, also the server's own, so no file changes
    user block        of `setUserWriteBlockMode`: stored with the cluster parameters, with a reason; a user's write is
                      refused (371), except in `admin`, `config` and `local`, and except for a user with
                      `bypassWriteBlockingMode`
    query settings    of `setQuerySettings`, for the commands of one shape: stored with the cluster parameters

The parts of query settings:

    reject            a find, distinct or aggregate of the shape is error 411; explain shows its plan
    indexHints        the indexes that the planner may choose from, by collection; a hint in the command is ignored
    queryFramework    stored and shown without effect: there is one engine
    comment           stored and shown

Source: MongoDB's manual on these commands and the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.auth.privileges import CLUSTER
from headrace.changes.stream import INTERNAL_DATABASES
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.query.command_shape import command_shape, hash_of_shape
from headrace.running_command import running_command
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.dispatch.command import Command
    from headrace.dispatch.context import CommandContext
    from headrace.dispatch.engine import Engine
    from headrace.dispatch.request import Request
    from headrace.store.store import Store

DEFAULT_MAX_TIME: Final = "defaultMaxTimeMS"
_READS: Final = frozenset({"aggregate", "count", "dbHash", "distinct", "find", "listCollections", "listIndexes"})
_BYPASS_TIME: Final = frozenset({"bypassDefaultMaxTimeMS"})


def apply_default(engine: Engine, command: Command, request: Request) -> None:
    """Give a read the default time limit, if any, unless the request has its own."""
    limit_ms = engine.store.cluster_parameters.get(DEFAULT_MAX_TIME, {}).get("readOperations", 0)
    body = request.body
    if not limit_ms or command.name not in _READS or body.get("maxTimeMS") is not None or "autocommit" in body:
        return
    if command.name == "aggregate" and _has_no_limit(body.get("pipeline")):
        return
    if engine.restricts(request.client):
        grants = engine.access.grants(request.client)
        if grants is not None and grants.permits(CLUSTER, _BYPASS_TIME):
            return
    request.deadline_ms = engine.clock.monotonic_ms() + limit_ms


def _has_no_limit(pipeline: Any) -> bool:
    """Whether a pipeline writes or opens a change stream, which may wait for ever."""
    stages = [stage for stage in pipeline if type(stage) is dict] if type(pipeline) is list else []
    return any("$changeStream" in stage or "$merge" in stage or "$out" in stage for stage in stages)


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


QUERY_SETTINGS: Final = "querySettings"
"""The name under which the settings are stored, as in MongoDB. getClusterParameter does not show it."""
TAKEN_BY: Final = frozenset({"aggregate", "distinct", "find"})
_EXEMPT: Final = frozenset({
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$listSessions",
    "$planCacheStats", "$querySettings",
})  # fmt: skip
"""The first stages of aggregations that describe the server, to which no settings apply."""


def stored_settings(store: Store) -> list[dict[str, Any]]:
    """Return all settings, each with `queryShapeHash`, `settings` and, if known, `representativeQuery`."""
    stored: list[dict[str, Any]] = store.cluster_parameters.get(QUERY_SETTINGS, {}).get("settingsArray", [])
    return stored


def settings_of(store: Store, name: str, database: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings that apply to a command, or None."""
    stored = stored_settings(store)
    if not stored or name not in TAKEN_BY or database in INTERNAL_DATABASES or _is_exempt(name, body):
        return None
    digest = hash_of_shape(command_shape(name, database, body))
    return next((item["settings"] for item in stored if item["queryShapeHash"] == digest), None)


def _is_exempt(name: str, body: dict[str, Any]) -> bool:
    pipeline = body.get("pipeline")
    if name != "aggregate" or type(pipeline) is not list or not pipeline:
        return False
    return not _EXEMPT.isdisjoint(pipeline[0]) or type(body[name]) is not str


@contextmanager
def applied(settings: dict[str, Any] | None) -> Iterator[None]:
    """Limit the planner to the indexes that the settings allow, for the running command."""
    command = running_command()
    if command is None or not settings or "indexHints" not in settings:
        yield
        return
    command.allowed_indexes = {
        f"{hint['ns']['db']}.{hint['ns']['coll']}": hint["allowedIndexes"] for hint in settings["indexHints"]
    }
    try:
        yield
    finally:
        command.allowed_indexes = None


def with_settings(engine: Engine, command: Command, request: Request) -> Command:
    """Return the command with the settings of its shape applied. Raise 411 if they reject it."""
    settings = settings_of(engine.store, command.name, request.db, request.body)
    if settings is None:
        return command
    if settings.get("reject") and not request.body.get("explain"):
        raise CommandError(411, "Query rejected by admin query settings")
    return replace(command, run=_run_with(command.run, settings), pauses=True) if "indexHints" in settings else command


def _run_with(
    run: Callable[[CommandContext, Request], Any], settings: dict[str, Any]
) -> Callable[[CommandContext, Request], Any]:
    def run_with_settings(context: CommandContext, request: Request) -> Any:
        with applied(settings):
            return run(context, request)

    return run_with_settings
