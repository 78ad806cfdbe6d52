"""collMod: change the options of a collection, of a view, or of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.commands.command import Command
from headrace.commands.create import OPTIONS, check_view_pipeline
from headrace.commands.images import OPTION, check_images, check_place
from headrace.commands.namespaces import for_writing, target
from headrace.commands.request import Request
from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.store import schema
from headrace.store.catalog import Collection, Index
from headrace.values.bson import type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

_GENERIC: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "collMod", "comment", "lsid", "maxTimeMS", "txnNumber",
    "writeConcern",
})  # fmt: skip
_CHANGEABLE: Final = frozenset({OPTION, "expireAfterSeconds", "validationAction", "validationLevel", "validator"})


def run(engine: Engine, request: Request) -> dict[str, Any]:
    namespace = target(request)
    for_writing(engine, namespace)
    change = _change(request.body)
    collection = engine.txn.collection(namespace)
    if collection is None:
        raise CommandError(26, f"ns does not exist: {namespace}")
    if collection.is_view:
        return _view(engine, collection, change)
    if "viewOn" in change or "pipeline" in change:
        raise CommandError(72, f"'{next(iter(change))}' is not supported on a collection that is no view")
    if change.get(OPTION, {}).get("enabled"):
        check_place(namespace)
    if "validator" in change:
        parse_filter(change["validator"])
    index_change = change.get("index")
    options = dict(collection.options)
    options.update({name: value for name, value in change.items() if name in _CHANGEABLE})
    before: dict[str, Any] | None = None
    reply: dict[str, Any] = {}
    if index_change is not None:
        before, reply = _index(collection, index_change)
    schema.modify(engine.txn, collection, change, options, before)  # also when it changes nothing, as MongoDB does
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


def _view(engine: Engine, view: Collection, change: dict[str, Any]) -> dict[str, Any]:
    if OPTION in change:
        raise CommandError(72, f"option not supported on a view: {OPTION}")
    options = dict(view.options)
    for name, value in change.items():
        if name not in ("viewOn", "pipeline"):
            raise CommandError(72, f"option not supported on a view: {name}")
        options[name] = value
    check_view_pipeline(view.database, view.namespace, options["pipeline"])
    if change:
        schema.modify_view(engine.txn, view, options)
    return {}


def _index(collection: Collection, change: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Change an index's `expireAfterSeconds` or `hidden`; returns (options before, what the reply tells)."""
    index = _find(collection, change)
    before: dict[str, Any] = {}
    reply: dict[str, Any] = {}
    for name in ("expireAfterSeconds", "hidden"):
        if name not in change:
            continue
        if name in index.spec:
            before[name] = reply[f"{name}_old"] = index.spec[name]
        index.spec = {**index.spec, name: change[name]}
        if name == "hidden" and not change[name]:
            index.spec.pop("hidden")
        reply[f"{name}_new"] = change[name]
    for name in ("prepareUnique", "unique"):
        if name in change:
            raise CommandError(115, f"collMod with index.{name} is not supported; drop and create the index")
    return before, reply


def _find(collection: Collection, change: dict[str, Any]) -> Index:
    for index in collection.indexes:
        if index.name == change.get("name") or ("keyPattern" in change and index.spec["key"] == change["keyPattern"]):
            return index
    raise CommandError(27, f"cannot find index {change} for ns {collection.namespace}")


COMMAND: Final = Command("collMod", run, writes=True)
