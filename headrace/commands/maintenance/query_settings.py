"""setQuerySettings and removeQuerySettings: settings for a query shape, named by an example query or its hash."""

from __future__ import annotations

from typing import Any, Final

from headrace.changes.stream import INTERNAL_DATABASES
from headrace.dispatch.arguments import (
    Field,
    Fields,
    FieldType,
    any_type,
    array,
    boolean,
    document,
    string,
)
from headrace.dispatch.cluster_wide import QUERY_SETTINGS, TAKEN_BY, stored_settings
from headrace.dispatch.command import administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.command_shape import command_shape, hash_of_shape, read_namespaces
from headrace.values.bson import type_name

_HINT: Final = Fields(
    document("ns", Fields(string("db"), string("coll")), required=True), array("allowedIndexes", required=True)
)
_HINTS: Final = Field("indexHints", FieldType(("object", "array")), None)
_SETTINGS: Final = Fields(
    any_type("comment"), _HINTS, string("queryFramework", choices=("classic", "sbe")), boolean("reject", strict=True)
)
SETTINGS: Final = document("settings", _SETTINGS, required=True)
QUERY: Final = FieldType(("object", "string"))


def set_settings(context: CommandContext, request: Request) -> dict[str, Any]:
    """setQuerySettings: add settings to a query shape, and answer all its settings."""
    given = _with_hints(SETTINGS.of(request.body))
    digest, query = _target(context, request)
    items = stored_settings(context.store)
    before = next((item for item in items if item["queryShapeHash"] == digest), None)
    query = query or (before or {}).get("representativeQuery")
    settings = {**(before or {}).get("settings", {}), **given}
    if settings.get("reject") is False:
        del settings["reject"]
    if not settings.keys() - {"comment"}:
        raise CommandError(
            7746604, "the resulting settings cannot be empty or contain only default values: use removeQuerySettings"
        )
    if query is not None:
        _check_hints(settings.get("indexHints", []), query)
    made = {"queryShapeHash": digest, "settings": settings}
    if query is not None:
        made["representativeQuery"] = query
    _store(context, [*(item for item in items if item is not before), made])
    return made


def remove_settings(context: CommandContext, request: Request) -> dict[str, Any]:
    """removeQuerySettings: remove the settings of a query shape. Raise 7746701 if there are none."""
    digest, _ = _target(context, request)
    items = stored_settings(context.store)
    left = [item for item in items if item["queryShapeHash"] != digest]
    if len(left) == len(items):
        raise CommandError(7746701, "A matching query settings entry does not exist")
    _store(context, left)
    return {}


def _store(context: CommandContext, items: list[dict[str, Any]]) -> None:
    context.store.log_noop(context.txn, "setQuerySettings")
    context.store.set_cluster_parameter(context.txn, QUERY_SETTINGS, {"settingsArray": items})


def _target(context: CommandContext, request: Request) -> tuple[str, dict[str, Any] | None]:
    """Return the hash of the query shape, and the example query if one is given. Raise 2, 20, or the errors of the
    query's own fields."""
    if not context.store.oplog_enabled:
        raise CommandError(20, f"{request.name} can only run on replica sets or sharded clusters")
    given = request.body[request.name]
    if type(given) is str:
        if len(given) != 64 or not set(given) <= set("0123456789abcdefABCDEF"):
            raise CommandError(2, f"'{given}' is not the hash of a query shape")
        return given.upper(), None
    name, database = next(iter(given), ""), given.get("$db")
    if name not in TAKEN_BY:
        raise CommandError(7746402, "QueryShapeConfiguration requires a find, distinct or aggregate command")
    if type(database) is not str:
        raise CommandError(40414, f"BSON field '{request.name}.$db' is missing but a required field")
    body = {field: value for field, value in given.items() if field != "$db"}
    context.engine.commands[name].arguments.check(name, body)
    if database in INTERNAL_DATABASES:
        raise CommandError(8584900, f"{request.name} cannot be used on internal databases")
    if name == "find" and list(body.get("filter") or ()) == ["_id"] and type(body["filter"]["_id"]) is not dict:
        raise CommandError(7746606, f"{request.name} command cannot be used on find queries eligible for IDHACK")
    return hash_of_shape(command_shape(name, database, body)), given


def _with_hints(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, with the hints as an array. Raise the errors of an invalid hint."""
    if (hints := settings.get("indexHints")) is None:
        return {name: value for name, value in settings.items() if value is not None}
    hints = [hints] if type(hints) is dict else hints
    for index, hint in enumerate(hints):
        path = f"setQuerySettings.settings.indexHints.{index}"
        if type(hint) is not dict:
            raise CommandError(14, f"BSON field '{path}' is the wrong type '{type_name(hint)}', expected type 'object'")
        if hint.get("ns") is None:
            raise CommandError(7746602, "indexHints require the namespace of their collection in 'ns'")
        _HINT.check(path, hint)
        for code, part in ((8727500, "db"), (8727501, "coll")):
            if hint["ns"].get(part) is None:
                raise CommandError(code, f"'{part}' is missing in the 'ns' of indexHints")
        for item in hint["allowedIndexes"]:
            if type(item) not in (dict, str) or not item:
                raise CommandError(9, "each of 'allowedIndexes' must be the name of an index, or its key pattern")
    return {**{name: value for name, value in settings.items() if value is not None}, "indexHints": hints}


def _check_hints(hints: list[dict[str, Any]], query: dict[str, Any]) -> None:
    """Raise 7746603 for hints on a collection that the query does not read, 7746608 for repeated hints."""
    name, database = next(iter(query)), query["$db"]
    read, seen = read_namespaces(name, database, query), set()
    for hint in hints:
        namespace = f"{hint['ns']['db']}.{hint['ns']['coll']}"
        if namespace not in read:
            raise CommandError(7746603, f"the query does not read {namespace}, which the index hints are for")
        if namespace in seen:
            raise CommandError(7746608, f"the collection {namespace} has index hints twice")
        seen.add(namespace)


COMMANDS: Final = (
    administrative(
        "removeQuerySettings",
        remove_settings,
        Field("removeQuerySettings", QUERY, None, required=True),
        strict=True,
        actions=("querySettings",),
        writes=True,
    ),
    administrative(
        "setQuerySettings",
        set_settings,
        SETTINGS,
        Field("setQuerySettings", QUERY, None, required=True),
        strict=True,
        actions=("querySettings",),
        writes=True,
    ),
)
