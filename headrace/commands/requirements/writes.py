"""Requirements of writes, changes of the catalog, and `applyOps`.

Rule: a requirement reads a request exactly as the command does, including repeated fields and numbers of any type. If
not, it is stricter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import CLUSTER, Privilege, is_system
from headrace.commands.requirements.pipelines import BYPASS, FIND, reading
from headrace.dispatch.access import Grants
from headrace.dispatch.arguments import raw_documents
from headrace.dispatch.namespaces import namespaces_of, operation_target
from headrace.dispatch.oplog_operations import LoggedOperation, command_of, leaves, located, operations_of, renaming_of
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, namespace_of
from headrace.query.expressions.numbers import truthy
from headrace.values.bson import iter_elements, value_of

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_CREATE: Final = frozenset({"createCollection"})
_INSERT: Final = frozenset({"insert"})
_REMOVE: Final = frozenset({"remove"})
_UPDATE: Final = frozenset({"update"})
_UPSERT: Final = _UPDATE | _INSERT
_RENAME: Final = frozenset({"renameCollectionSameDB"})
_ACTIONS: Final = {"delete": _REMOVE, "insert": _INSERT, "update": _UPDATE}
_INT32: Final = 0x10
_HEAD_END: Final = 4 + 1 + len(b"insert\0") + 4
"""The end of an operation's first element, if it is an int: `insert`, `update` and `delete` are equally long."""


def _insert(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    namespace = namespace_of(request)
    if request.body.get("bypassDocumentValidation"):
        return (namespace, _INSERT), (namespace, BYPASS)
    return ((namespace, _INSERT),)


def _update(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    actions = _UPSERT if _upserts(request) else _UPDATE
    namespace = namespace_of(request)
    if request.body.get("bypassDocumentValidation"):
        return (namespace, actions), (namespace, BYPASS)
    return ((namespace, actions),)


def _upserts(request: Request) -> bool:
    """Whether a statement of an update may insert."""
    statements = request.sequences.get("updates")
    if statements is None:
        if b"upsert" not in request.raw:
            return False
        statements = raw_documents(request, "updates")
    named = [raw for raw in statements if b"upsert" in raw]
    return bool(named) and any(map(_has_upsert, named))


def _has_upsert(raw: bytes) -> bool:
    """Whether a statement has a field `upsert` that is true; if it is repeated, any of them."""
    return any(
        name == b"upsert" and truthy(value_of(kind, raw, low, high)) for kind, name, low, high in iter_elements(raw)
    )


def _find_and_modify(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body, namespace = request.body, namespace_of(request)
    yield namespace, FIND
    yield namespace, _REMOVE if truthy(body.get("remove")) else _UPSERT if truthy(body.get("upsert")) else _UPDATE
    if truthy(body.get("bypassDocumentValidation")):
        yield namespace, BYPASS


def _bulk_write(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    """Yield the privileges of a bulkWrite. Of operations with the same kind and namespace number, parse only one."""
    namespaces = namespaces_of(request)
    operations = raw_documents(request, "ops")
    upserts = any(b"upsert" in raw and _has_upsert(raw) for raw in operations)
    bypasses = truthy(request.body.get("bypassDocumentValidation"))
    heads = {raw[:_HEAD_END] if raw[4] == _INT32 else raw: raw for raw in operations}
    for kind, number in dict.fromkeys(operation_target(raw) for raw in list(heads.values())):
        if not 0 <= number < len(namespaces):
            continue  # the command refuses it
        namespace = namespaces[number]
        yield namespace, _UPSERT if kind == "update" and upserts else _ACTIONS[kind]
        if bypasses:
            yield namespace, BYPASS


def _create(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body, namespace = request.body, namespace_of(request)
    plain = not body.get("capped") and not body.get("viewOn")
    yield namespace, _INSERT if plain and not grants.permits(namespace, _CREATE) else _CREATE
    yield from _of_view(request, grants, body.get("viewOn"))


def _of_view(request: Request, grants: Grants, source: Any) -> Iterator[Privilege]:
    """Yield the privileges to define a view. A user that can read the view must be able to read its sources. Every user
    must be able to read its system collections."""
    if type(source) is str:
        reads_view = grants.permits(namespace_of(request), FIND)
        for required in reading(f"{request.db}.{source}", request.db, request.body.get("pipeline"), grants):
            if reads_view or is_system(required[0]):
                yield required


def _coll_mod(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    namespace, body = namespace_of(request), request.body
    yield namespace, frozenset({"collMod"})
    source = body.get("viewOn")
    if source is None and body.get("pipeline") is not None:
        view = engine.store.catalog.collection(namespace)
        source = None if view is None else view.options.get("viewOn")
    yield from _of_view(request, grants, source)


def _rename(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    source, target = str(request.body.get(request.name)), str(request.body.get("to"))
    dropping = frozenset({"dropCollection"})
    database = source.partition(".")[0]
    within = database == target.partition(".")[0] and not is_system(source) and not is_system(target)
    within = within and grants.permits(f"{database}.", _RENAME)
    if within and (grants.permits(source, FIND) or not grants.permits(target, FIND)):
        yield f"{database}.", _RENAME
    else:
        yield source, FIND | dropping
        yield target, frozenset({"createIndex", "insert"})
    if request.body.get("dropTarget"):
        yield target, dropping


BULK_WRITE: Final = Requirement("insert, update or remove on each collection", _bulk_write)
COLL_MOD: Final = Requirement("collMod on the collection, find on what a view shows", _coll_mod)
CREATE: Final = Requirement("createCollection on the collection, find on what a view shows", _create)
FIND_AND_MODIFY: Final = Requirement("find, and update, insert or remove on the collection", _find_and_modify)
INSERT: Final = Requirement("insert on the collection", _insert)
RENAME: Final = Requirement("renameCollectionSameDB, or find, dropCollection, insert and createIndex", _rename)
UPDATE: Final = Requirement("update on the collection, and insert for an upsert", _update)


_ACTIONS_BY_OP: Final = {"d": frozenset({"remove"}), "i": frozenset({"insert", "update"}), "u": frozenset({"update"})}
"""The required actions by operation. An insert may replace an existing document, so it also requires `update`."""
_UPSERT_OPERATION: Final = frozenset({"insert", "update"})
_NOTE: Final = (CLUSTER, frozenset({"appendOplogNote"}))
_UUIDS: Final = (CLUSTER, frozenset({"forceUUID", "useUUID"}))
_VIEWS: Final = frozenset({"createCollection", "dropCollection"})


def _apply_ops(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    """Yield the requirements of the operations, and `useUUID` and `forceUUID` for UUIDs. If a UUID belongs to another
    collection than the operation names, both collections must be allowed."""
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
                yield namespace, _UPSERT_OPERATION if operation.upserts else _ACTIONS_BY_OP[operation.kind]
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
