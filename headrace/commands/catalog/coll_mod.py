"""collMod: change the options of a collection, of a view, or of an index."""

from __future__ import annotations

from typing import Any, Final

from bson import Int64

from headrace.commands.catalog.create import OPTIONS, check_view_pipeline
from headrace.dispatch.arguments import flag
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import for_writing, target
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.image_options import OPTION, check_database_has_images, check_images
from headrace.query.match import parse_filter
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.values.bson import type_name

SECONDS: Final = "expireAfterSeconds"
_SECONDS_MAX: Final = 2**31 - 1
_GENERIC: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "collMod", "comment", "lsid", "maxTimeMS", "txnNumber",
    "writeConcern",
})  # fmt: skip
_CHANGEABLE: Final = frozenset({OPTION, "expireAfterSeconds", "validationAction", "validationLevel", "validator"})


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    namespace = target(request)
    for_writing(context, namespace)
    change = _change(request.body)
    collection = context.txn.collection(namespace)
    if collection is None:
        raise CommandError(26, f"ns does not exist: {namespace}")
    if collection.is_view:
        return _view(context, collection, change)
    if "viewOn" in change or "pipeline" in change:
        raise CommandError(72, f"'{next(iter(change))}' is not supported on a collection that is no view")
    if change.get(OPTION, {}).get("enabled"):
        check_database_has_images(namespace)
    if "validator" in change:
        parse_filter(change["validator"])
    index_change = change.get("index")
    options = dict(collection.options)
    options.update({name: value for name, value in change.items() if name in _CHANGEABLE})
    before: dict[str, Any] | None = None
    reply: dict[str, Any] = {}
    if index_change is not None:
        change["index"], before, reply = _index(collection, index_change)
    # Also when it changes nothing, as MongoDB does.
    catalog_changes.modify(context.txn, collection, change, options, before)
    return reply


def _change(body: dict[str, Any]) -> dict[str, Any]:
    """What is to be changed, checked; raises 40415 for a field that is not known."""
    change: dict[str, Any] = {}
    for name, value in body.items():
        if name in _GENERIC or name.startswith("$"):
            continue
        if name == OPTION:
            if value is not None:
                change[name] = check_images("collMod", value)
        elif name in _CHANGEABLE or name in ("viewOn", "pipeline"):
            change[name] = OPTIONS[name](name, value)
        elif name == "index":
            if type(value) is not dict:
                kind = type_name(value)
                raise CommandError(14, f"BSON field 'collMod.index' is the wrong type '{kind}', expected type 'object'")
            change[name] = value
        else:
            raise CommandError(40415, f"BSON field 'collMod.{name}' is an unknown field.")
    return change


def _view(context: CommandContext, view: Collection, change: dict[str, Any]) -> dict[str, Any]:
    if OPTION in change:
        raise CommandError(72, f"option not supported on a view: {OPTION}")
    options = dict(view.options)
    for name, value in change.items():
        if name not in ("viewOn", "pipeline"):
            raise CommandError(72, f"option not supported on a view: {name}")
        options[name] = value
    check_view_pipeline(view.database, view.namespace, options["pipeline"])
    if change:
        catalog_changes.modify_view(context.txn, view, options)
    return {}


def _index(
    collection: Collection, change: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Change an index's `expireAfterSeconds` or `hidden`: (what the entry tells, options before, the reply).

    The entry names the index by its name, also where the client gave its key, as MongoDB's does.
    """
    new = _checked_index(change)
    index = _find(collection, change)
    before: dict[str, Any] = {}
    reply: dict[str, Any] = {}
    spec = dict(index.spec)
    for name, value in new.items():
        old = Int64(int(spec[name])) if name == SECONDS and name in spec else spec.get(name)
        if name == "hidden":
            old = bool(old)
        if old is not None:
            before[name] = reply[f"{name}_old"] = old
        reply[f"{name}_new"] = spec[name] = value
    if not spec.get("hidden"):
        spec.pop("hidden", None)
    index.spec = spec
    return {"name": index.name, **new}, before, reply


def _checked_index(change: dict[str, Any]) -> dict[str, Any]:
    """The new options of an index; raises 14, 72, 115, 40415 for what they may not be."""
    for name in change:
        if name in ("prepareUnique", "unique"):
            raise CommandError(115, f"collMod with index.{name} is not supported; drop and create the index")
        if name not in ("hidden", "keyPattern", "name", SECONDS):
            raise CommandError(40415, f"BSON field 'collMod.index.{name}' is an unknown field.")
    if ("name" in change) == ("keyPattern" in change):
        raise CommandError(72, "Must specify either index name or key pattern, and not both")
    new: dict[str, Any] = {name: change[name] for name in (SECONDS, "hidden") if name in change}
    if not new:
        raise CommandError(72, "no expireAfterSeconds, hidden, unique, or prepareUnique field")
    if SECONDS in new:
        new[SECONDS] = _seconds(new[SECONDS])
    if "hidden" in new:
        new["hidden"] = flag(new, "hidden", False, "collMod.index")
    return new


def _seconds(value: Any) -> Int64:
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type_name(value)
        raise CommandError(14, f"BSON field 'collMod.index.{SECONDS}' is the wrong type '{kind}', expected a number")
    if not 0 <= value <= _SECONDS_MAX:
        raise CommandError(72, f"TTL index '{SECONDS}' must be within 0 and {_SECONDS_MAX}")
    return Int64(int(value))


def _find(collection: Collection, change: dict[str, Any]) -> Index:
    for index in collection.indexes:
        if index.name == change.get("name") or ("keyPattern" in change and index.spec["key"] == change["keyPattern"]):
            return index
    raise CommandError(27, f"cannot find index {change} for ns {collection.namespace}")


COMMAND: Final = Command("collMod", run, writes=True)
