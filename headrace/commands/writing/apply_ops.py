"""applyOps: apply operations of an oplog, one after the other. mongorestore uses it to replay a dump's oplog.

Each operation becomes an oplog entry and an event of its own. It is no error if an operation was applied before, so a
replay may begin earlier than the state of the data. Source: MongoDB's manual, and its replies to mongorestore.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.catalog import create as creating
from headrace.commands.requirements.writes import APPLY_OPS
from headrace.commands.writing.delete import remove
from headrace.dispatch.arguments import Field, Fields, array, boolean
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BYPASS
from headrace.dispatch.namespaces import check_namespace, check_writable
from headrace.dispatch.oplog_operations import LoggedOperation, command_of, located, operations_of, renaming_of
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.execution.plan import Finder
from headrace.execution.writes.matches import MatchedDocument, Target, insert, measure
from headrace.execution.writes.updates import Applier
from headrace.execution.writes.validation import Validator
from headrace.store import capped, catalog_changes
from headrace.store.catalog import Collection
from headrace.values.bson import decode
from headrace.values.keystring.encoding import encode_value


def _no_longer(code: int, option: str) -> Any:
    def check(path: str, value: Any) -> None:
        raise CommandError(code, f"applyOps command no longer supports the '{option}' option")

    return check


FIELDS: Final = Fields(
    BYPASS, array("applyOps", "object", required=True), boolean("allowAtomic", default=True),
    Field("preCondition", "array", None, check=_no_longer(6711600, "preCondition")),
    Field("alwaysUpsert", "bool", None, check=_no_longer(6711601, "alwaysUpsert")), strict=False,
)  # fmt: skip
_DONE_BEFORE: Final = {
    "collMod": (5, 26, 27),
    "convertToCapped": (26,),
    "create": (5, 48),  # 5: an earlier release allowed a view that reads itself
    "createIndexes": (26, 68, 85, 86),
    "drop": (26,),
    "dropDatabase": (26,),
    "dropIndexes": (26, 27),
    "renameCollection": (26, 48),
}
"""The errors of commands that were applied before, or whose collection a later operation has removed."""


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """applyOps: answer `applied`, the number of operations, and `results`, whether each took effect.

    The first error ends the command, and operations before it stay applied. An update of a missing document has no
    effect.
    """
    operations = operations_of(request)
    context.keeps_empty_timestamps = True
    results: list[bool] = []
    for operation in operations:
        context.tick()
        try:
            results.append(apply(context, request, operation))
        except CommandError as error:
            results.append(False)
            extra = {**error.extra, "applied": len(results), "results": results}
            raise CommandError(error.code, error.message, labels=error.labels, extra=extra) from error
    return {"applied": len(results), "results": results}


def apply(context: CommandContext, request: Request, operation: LoggedOperation) -> bool:
    """Apply an operation. Return False if its document does not exist. Raise the operation's error."""
    if operation.inner is not None:
        applied = [apply(context, request, item) for item in operation.inner]
        return all(applied)
    if operation.kind == "n":
        return True
    if operation.is_of_views:
        _apply_to_views(context, operation)
        return True
    if operation.kind == "c" or operation.is_of_view:
        _apply_command(context, request, operation)
        return True
    collection = located(context.txn.catalog, operation.namespace, operation.uuid)
    namespace = operation.namespace if collection is None else collection.namespace
    check_writable(check_namespace(namespace))
    if collection is None:
        if operation.kind == "d":
            return True
        raise CommandError(
            26, f"cannot apply insert or update operation on a non-existent namespace {operation.namespace}"
        )
    if collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
    return _APPLY[operation.kind](context, request, operation, collection)


# Documents.


def _apply_insert(
    context: CommandContext, request: Request, operation: LoggedOperation, collection: Collection
) -> bool:
    """Insert a document, or replace the document with the same `_id`."""
    context.metrics["operations.insert"] += 1
    if _match(context, collection, operation) is not None:
        return _change(context, request, operation, collection)
    target = Target(context, collection)
    Validator(request.body, context).check(target.collection, operation.raw_o)
    measure(context, target)
    insert(context, target, operation.raw_o)
    while capped.make_room(context.txn, target.collection):
        context.tick()
    return True


def _apply_update(
    context: CommandContext, request: Request, operation: LoggedOperation, collection: Collection
) -> bool:
    context.metrics["operations.update"] += 1
    return _change(context, request, operation, collection)


def _apply_delete(
    context: CommandContext, request: Request, operation: LoggedOperation, collection: Collection
) -> bool:
    context.metrics["operations.delete"] += 1
    match = _match(context, collection, operation)
    if match is not None:
        remove(context, Target(context, collection), Finder(collection, {"_id": operation.key}, None), match, None)
    return True


_APPLY: Final = {"d": _apply_delete, "i": _apply_insert, "u": _apply_update}


def _change(context: CommandContext, request: Request, operation: LoggedOperation, collection: Collection) -> bool:
    """Update a document, or replace it by the inserted one. Return whether the document exists."""
    spec = {"_id": operation.key}
    finder = Finder(collection, spec, None)
    applier = Applier(context, Target(context, collection), {"u": {}}, operation.update, finder, request.body, None)
    while (match := _match(context, collection, operation)) is not None:
        if applier.change(match) is not None:
            return True
    if operation.upserts:
        applier.insert(spec)
    return operation.upserts


def _match(context: CommandContext, collection: Collection, operation: LoggedOperation) -> MatchedDocument | None:
    """Return the document that an operation changes, or None."""
    found = context.txn.by_id(collection, encode_value(operation.key))
    return None if found is None else MatchedDocument(found[0], found[1], decode(found[1]), context.pause_count)


# Commands.


def _apply_command(context: CommandContext, request: Request, operation: LoggedOperation) -> None:
    name = _name(operation)
    if name == "create" and operation.kind == "c" and operation.uuid is not None:
        _create(context, request, operation, operation.uuid)
        return
    try:
        _run(context, command_of(operation, context.txn.catalog, request))
    except CommandError as error:
        if error.code not in _DONE_BEFORE.get(name, ()):
            raise


def _name(operation: LoggedOperation) -> str:
    name = next(iter(operation.o), "")
    return "dropIndexes" if name in ("deleteIndex", "deleteIndexes", "dropIndex") else name


def _run(context: CommandContext, inner: Request) -> None:
    command = context.engine.commands[inner.name]
    command.arguments.check(command.name, inner.body)
    answer = command.run(context, inner)
    if type(answer) is Wait:
        raise CommandError(117, f"{inner.name} must wait for another index build: try again when it has ended")


def _create(context: CommandContext, request: Request, operation: LoggedOperation, uuid: bytes) -> None:
    """Create a collection with a UUID, or rename the one that has this UUID. Raise 48 if the name is taken."""
    catalog = context.txn.catalog
    inner = command_of(operation, catalog, request)
    creating.COMMAND.arguments.check("create", inner.body)
    namespace = check_namespace(f"{inner.db}.{inner.body['create']}")
    there = located(catalog, namespace, uuid)
    if there is None:
        if namespace in catalog.collections:
            raise CommandError(48, f"Collection {namespace} already exists with another UUID")
        creating.create(context, inner, uuid)
    elif there.database != inner.db:
        raise CommandError(48, f"the UUID of the collection {namespace} is that of {there.namespace}")
    elif (renaming := renaming_of(operation, catalog, request)) is not None:
        _run(context, renaming)


def _apply_to_views(context: CommandContext, operation: LoggedOperation) -> None:
    """Create a database's `system.views`, or drop it with all views."""
    txn, database = context.txn, operation.database
    if "create" in operation.o:
        catalog_changes.require_views(txn, database, operation.uuid)
        return
    for view in [item for item in txn.catalog.in_database(database) if item.is_view]:
        catalog_changes.drop(txn, view)
    if database in txn.catalog.views:
        catalog_changes.drop_views(txn, database)


COMMAND: Final = Command("applyOps", run, FIELDS, pauses=True, writes=True, requires=APPLY_OPS)
