"""create: a collection or a view, with the options that are kept and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.dispatch.arguments import object_field
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import for_writing, target
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.image_options import OPTION, check_database_has_images, check_images
from headrace.query.collation import parse_collation
from headrace.query.match import parse_filter
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.store import catalog_changes
from headrace.values.bson import type_name

UNSUPPORTED: Final = {
    "clusteredIndex": (115, "clustered collections are not supported"),
    "encryptedFields": (115, "encrypted fields are not supported"),
    "timeseries": (115, "time-series collections are not supported"),
}
_GENERIC: Final = frozenset({
    "apiDeprecationErrors", "apiStrict", "apiVersion", "autocommit", "comment", "create", "lsid", "maxTimeMS",
    "readConcern", "startTransaction", "txnNumber", "writeConcern",
})  # fmt: skip


def _boolean(name: str, value: Any) -> Any:
    if type(value) is not bool and not isinstance(value, int | float):
        raise CommandError(
            14, f"BSON field 'create.{name}' is the wrong type '{type_name(value)}', expected type 'bool'"
        )
    return value


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(14, f"BSON field 'create.{name}' is the wrong type '{type_name(value)}', expected a number")
    return value


def _object(name: str, value: Any) -> Any:
    if type(value) is not dict:
        kind = type_name(value)
        raise CommandError(14, f"BSON field 'create.{name}' is the wrong type '{kind}', expected type 'object'")
    return value


def _text(name: str, value: Any) -> Any:
    if type(value) is not str:
        kind = type_name(value)
        raise CommandError(14, f"BSON field 'create.{name}' is the wrong type '{kind}', expected type 'string'")
    return value


def _choice(*allowed: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if _text(name, value) not in allowed:
            raise CommandError(2, f"Enumeration value '{value}' for field 'create.{name}' is not a valid value.")
        return value

    return check


def _pipeline(name: str, value: Any) -> Any:
    if type(value) is not list:
        kind = type_name(value)
        raise CommandError(14, f"BSON field 'create.{name}' is the wrong type '{kind}', expected type 'array'")
    return value


OPTIONS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "autoIndexId": _boolean,
    "capped": _boolean,
    "changeStreamPreAndPostImages": lambda name, value: check_images("create", value),
    "collation": _object,
    "expireAfterSeconds": _number,
    "idIndex": _object,
    "indexOptionDefaults": _object,
    "max": _number,
    "pipeline": _pipeline,
    "size": _number,
    "storageEngine": _object,
    "validationAction": _choice("error", "warn"),
    "validationLevel": _choice("off", "strict", "moderate"),
    "validator": _object,
    "viewOn": _text,
}


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    """The checked options of a `create`, in the order given; raises 40415 for one that is not known."""
    options: dict[str, Any] = {}
    for name, value in body.items():
        if name in _GENERIC or name.startswith("$") or value is None:
            continue
        if name in UNSUPPORTED:
            raise CommandError(*UNSUPPORTED[name])
        check = OPTIONS.get(name)
        if check is None:
            raise CommandError(40415, f"BSON field 'create.{name}' is an unknown field.")
        options[name] = check(name, value)
    return options


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    namespace = target(request)
    for_writing(context, namespace)
    body = request.body
    options = options_of(body)
    existing = context.txn.collection(namespace)
    stored_options = {name: value for name, value in options.items() if name not in ("idIndex", "autoIndexId")}
    if existing is not None:
        if existing.is_view == ("viewOn" in options) and existing.options == stored_options:
            return {}
        kind = "view" if existing.is_view else "collection"
        raise CommandError(48, f"Collection {namespace} already exists as a {kind} with other options")
    if "viewOn" in options:
        _create_view(context, request, namespace, stored_options)
        return {}
    _check(namespace, stored_options)
    catalog_changes.create(context.txn, namespace, stored_options)
    return {}


def _check(namespace: str, options: dict[str, Any]) -> None:
    if "pipeline" in options:
        raise CommandError(72, "'pipeline' requires 'viewOn' to also be specified")
    if options.get("capped") and not options.get("size"):
        raise CommandError(72, "the 'size' field is required when 'capped' is true")
    if options.get(OPTION, {}).get("enabled"):
        check_database_has_images(namespace)
    if "validator" in options:
        parse_filter(options["validator"])
    if "collation" in options:
        parse_collation(options["collation"])


def _create_view(context: CommandContext, request: Request, namespace: str, options: dict[str, Any]) -> None:
    """A view; its pipeline is checked now and its source may come later."""
    if OPTION in options:
        raise CommandError(72, f"option not supported on a view: {OPTION}")
    unknown = [name for name in options if name not in ("viewOn", "pipeline", "collation")]
    if unknown:
        raise CommandError(72, f"option not supported on a view: {unknown[0]}")
    pipeline = options.get("pipeline", [])
    check_view_pipeline(request.db, namespace, pipeline)
    made = {"viewOn": options["viewOn"], "pipeline": pipeline}
    if "collation" in options:
        made["collation"] = object_field(options, "collation", "create")
    catalog_changes.create_view(context.txn, namespace, made)


def check_view_pipeline(database: str, namespace: str, pipeline: list[Any]) -> None:
    """Refuse what a view may not be made of."""
    if pipeline and type(pipeline[0]) is dict and "$changeStream" in pipeline[0]:
        raise CommandError(167, "$changeStream cannot be used in a view definition")
    pipeline_context = PipelineContext(
        database=database, collection=namespace.partition(".")[2], read_collection=lambda *_: ()
    )
    for stage in parse_pipeline(pipeline, context=pipeline_context):
        if stage.name in ("$out", "$merge"):
            raise CommandError(167, f"The aggregation stage {stage.name} cannot be used in a view definition")


COMMAND: Final = Command("create", run, writes=True)
