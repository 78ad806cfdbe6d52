"""The requirement of `applyOps`: the requirements of its operations, and `useUUID` and `forceUUID` for UUIDs.

If a UUID belongs to another collection than the operation names, both collections must be allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.auth.privileges import CLUSTER, Privilege
from headrace.commands.requirements.pipelines import BYPASS
from headrace.dispatch.access import Grants
from headrace.dispatch.oplog_operations import LoggedOperation, command_of, leaves, located, operations_of, renaming_of
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement
from headrace.query.expressions.numbers import truthy

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_ACTIONS: Final = {"d": frozenset({"remove"}), "i": frozenset({"insert", "update"}), "u": frozenset({"update"})}
"""The required actions by operation. An insert may replace an existing document, so it also requires `update`."""
_UPSERT: Final = frozenset({"insert", "update"})
_NOTE: Final = (CLUSTER, frozenset({"appendOplogNote"}))
_UUIDS: Final = (CLUSTER, frozenset({"forceUUID", "useUUID"}))
_VIEWS: Final = frozenset({"createCollection", "dropCollection"})


def _apply_ops(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    bypasses = truthy(request.body.get("bypassDocumentValidation"))
    for operation in leaves(operations_of(request)):
        if operation.uuid is not None:
            yield _UUIDS
        if operation.kind == "n":
            yield _NOTE
        elif operation.is_of_views:
            yield f"{operation.database}.", _VIEWS
        elif operation.kind == "c" or operation.is_of_view:
            yield from _of_command(engine, request, grants, operation)
        else:
            for namespace in _namespaces(engine, operation):
                yield namespace, _UPSERT if operation.upserts else _ACTIONS[operation.kind]
                if bypasses:
                    yield namespace, BYPASS


def _of_command(engine: Engine, request: Request, grants: Grants, operation: LoggedOperation) -> Iterator[Privilege]:
    catalog = engine.store.catalog
    for inner in (command_of(operation, catalog, request), renaming_of(operation, catalog, request)):
        if inner is None:
            continue
        command = engine.commands[inner.name]
        command.arguments.check(command.name, inner.body)
        if command.requires.needs is not None:
            yield from command.requires.needs(engine, inner, grants)


def _namespaces(engine: Engine, operation: LoggedOperation) -> set[str]:
    collection = located(engine.store.catalog, operation.namespace, operation.uuid)
    return {operation.namespace} if collection is None else {operation.namespace, collection.namespace}


APPLY_OPS: Final = Requirement(
    "what each operation requires; forceUUID and useUUID on the cluster for UUIDs", _apply_ops
)
