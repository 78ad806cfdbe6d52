"""Query settings, made by `setQuerySettings` for the commands of one shape. They are stored with the cluster parameters
and survive a restart.

    reject          a find, distinct or aggregate of the shape is error 411; explain shows its plan
    indexHints      the indexes that the planner may choose from, by collection; a hint in the command is ignored
    queryFramework  stored and shown without effect: there is one engine
    comment         stored and shown

Source: MongoDB's manual on `setQuerySettings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.changes.scope import INTERNAL_DATABASES
from headrace.dispatch.command import Command
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.command_shape import command_shape, hash_of_shape
from headrace.running_command import running_command

if TYPE_CHECKING:
    from headrace.dispatch.context import CommandContext
    from headrace.dispatch.engine import Engine
    from headrace.store.store import Store

PARAMETER: Final = "querySettings"
"""The name under which the settings are stored, as in MongoDB. getClusterParameter does not show it."""
TAKEN_BY: Final = frozenset({"aggregate", "distinct", "find"})
_EXEMPT: Final = frozenset({
    "$changeStream", "$collStats", "$currentOp", "$indexStats", "$listLocalSessions", "$listSessions",
    "$planCacheStats", "$querySettings",
})  # fmt: skip
"""The first stages of aggregations that describe the server, to which no settings apply."""


def stored_settings(store: Store) -> list[dict[str, Any]]:
    """Return all settings, each with `queryShapeHash`, `settings` and, if known, `representativeQuery`."""
    stored: list[dict[str, Any]] = store.cluster_parameters.get(PARAMETER, {}).get("settingsArray", [])
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
