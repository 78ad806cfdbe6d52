"""findAndModify: change or remove one document and answer it, as it was or as it is."""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Field, Fields, boolean, document, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import (
    ARRAY_FILTERS,
    BYPASS,
    COLLATION,
    COLLECTION_UUID,
    ENCRYPTION,
    HINT,
    LET,
    NOT_AN_UPDATE,
    UPDATE,
    UPSERT,
)
from headrace.dispatch.namespaces import target, writable
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import retryable_of
from headrace.errors import CommandError
from headrace.execution.let import variables_of
from headrace.execution.plan import Finder, check_hint, collation_of
from headrace.execution.updates import Applier, first_by, matches, parsed
from headrace.query.projection import parse_projection
from headrace.query.sort import parse_sort
from headrace.query.update import check_upsert_filter
from headrace.store import catalog_changes
from headrace.store.catalog import Collection

NEW: Final = boolean("new")
PROJECTION: Final = document("fields")
QUERY: Final = document("query")
REMOVE: Final = boolean("remove")
SORT: Final = document("sort")
FIELDS: Final = Fields(
    ARRAY_FILTERS, BYPASS, COLLATION, HINT, LET, NEW, PROJECTION, QUERY, REMOVE, SORT, UPSERT,
    Field("update", UPDATE, None, error=NOT_AN_UPDATE), *COLLECTION_UUID, *ENCRYPTION,
    *without_effect("object", "runtimeConstants"),
)  # fmt: skip


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """findAndModify: the document before or after the change as `value`, and `lastErrorObject`."""
    body = request.body
    namespace = target(request)
    _check(body)
    collection = writable(context, namespace)
    check_hint(collection, body.get("hint"))
    spec = QUERY.of(body)
    if REMOVE.of(body):
        return _remove(context, request, collection, spec)
    return _modify(context, request, namespace, collection, spec)


def _check(body: dict[str, Any]) -> None:
    if REMOVE.of(body):
        if body.get("update") is not None:
            raise CommandError(9, "Cannot specify both an update and remove=true")
        if UPSERT.of(body):
            raise CommandError(9, "Cannot specify both upsert=true and remove=true ")
        if body.get("arrayFilters"):
            raise CommandError(9, "Cannot specify arrayFilters and remove=true")
        if NEW.of(body):
            raise CommandError(
                9, "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
            )
    elif body.get("update") is None:
        raise CommandError(9, "Either an update or remove=true must be specified")


def _pick(context: CommandContext, finder: Finder, collection: Collection, body: dict[str, Any]) -> Any:
    """The document to work on: the first match, by the sort if there is one."""
    sort = body.get("sort")
    if not sort:
        match = matches(finder, context.txn, multi=False)
        return match[0] if match else None
    return first_by(finder, context.txn, parse_sort(sort, collation_of(collection, body.get("collation"))))


def _shown(body: dict[str, Any], document: dict[str, Any] | None, finder: Finder | None) -> dict[str, Any] | None:
    if document is None or not body.get("fields"):
        return document
    predicate = None if finder is None else finder.predicate
    shown: dict[str, Any] = parse_projection(body["fields"], kind="find", predicate=predicate)(document)
    return shown


def _remove(
    context: CommandContext, request: Request, collection: Collection | None, spec: dict[str, Any]
) -> dict[str, Any]:
    body = request.body
    match, finder = None, None
    if collection is not None:
        collation = collation_of(collection, body.get("collation"))
        finder = Finder(collection, spec, collation, variables_of(body) or None)
        match = _pick(context, finder, collection, body)
    if match is None or collection is None:
        return {"lastErrorObject": {"n": 0}, "value": None}
    record, raw, document = match
    context.txn.delete(collection, record, raw, retryable_of(request))
    return {"lastErrorObject": {"n": 1}, "value": _shown(body, document, finder)}


def _modify(
    context: CommandContext, request: Request, namespace: str, collection: Collection | None, spec: dict[str, Any]
) -> dict[str, Any]:
    body = request.body
    upsert, new = UPSERT.of(body), NEW.of(body)
    statement = {"q": spec, "u": body["update"], "upsert": upsert}
    statement |= {name: body[name] for name in ("arrayFilters", "collation") if name in body}
    let = variables_of(body) or None
    update = parsed(statement, collection, let)
    if upsert:
        check_upsert_filter(spec)
    if collection is None:
        if not upsert:
            return {"lastErrorObject": {"n": 0, "updatedExisting": False}, "value": None}
        collection = catalog_changes.create(context.txn, namespace, {})
    finder = Finder(collection, spec, collation_of(collection, body.get("collation")), let)
    applier = Applier(context.txn, collection, statement, update, finder, body, retryable_of(request))
    match = _pick(context, finder, collection, body)
    if match is not None:
        record, raw, document = match
        after = applier.change(record, raw, document) or document
        shown = _shown(body, after if new else document, finder)
        return {"lastErrorObject": {"n": 1, "updatedExisting": True}, "value": shown}
    if not upsert:
        return {"lastErrorObject": {"n": 0, "updatedExisting": False}, "value": None}
    made = applier.insert(spec)
    last = {"n": 1, "updatedExisting": False, "upserted": made["_id"]}
    return {"lastErrorObject": last, "value": _shown(body, made, None) if new else None}


COMMAND: Final = Command("findAndModify", run, FIELDS, writes=True, aliases=("findandmodify",))
