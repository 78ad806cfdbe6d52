"""What writes and changes of the catalog require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import Privilege
from headrace.commands.requirements.pipelines import BYPASS, FIND, reading
from headrace.dispatch.access import Grants
from headrace.dispatch.arguments import raw_documents
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, namespace_of
from headrace.values.bson import decode, find_element

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_CREATE: Final = frozenset({"createCollection"})
_INSERT: Final = frozenset({"insert"})
_REMOVE: Final = frozenset({"remove"})
_UPDATE: Final = frozenset({"update"})
_UPSERT: Final = _UPDATE | _INSERT
_RENAME: Final = frozenset({"renameCollectionSameDB"})
_ACTIONS: Final = {b"delete": _REMOVE, b"insert": _INSERT, b"update": _UPDATE}
_HEAD_END: Final = 4 + 1 + len(b"insert\0") + 4
"""Where the first element of an operation ends: `insert`, `update` and `delete` are as long, the number is an int."""


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
    sequence = request.sequences.get("updates")
    if sequence is not None:
        return any(b"upsert" in raw and find_element(raw, b"upsert") is not None for raw in sequence)
    statements = request.body.get("updates")
    return type(statements) is list and any(type(item) is dict and item.get("upsert") for item in statements)


def _find_and_modify(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body, namespace = request.body, namespace_of(request)
    yield namespace, FIND
    yield namespace, _REMOVE if body.get("remove") else _UPSERT if body.get("upsert") else _UPDATE
    if body.get("bypassDocumentValidation"):
        yield namespace, BYPASS


def _bulk_write(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    """Of each operation a few bytes are looked at, as they may be many: the action and the number of its namespace."""
    namespaces = [decode(raw).get("ns") for raw in raw_documents(request, "nsInfo")]
    operations = raw_documents(request, "ops")
    upserts = any(b"upsert" in raw and find_element(raw, b"upsert") is not None for raw in operations)
    bypasses = bool(request.body.get("bypassDocumentValidation"))
    for head in {raw[4:_HEAD_END] for raw in operations}:
        name, _, number = head[1:].partition(b"\0")
        value = int.from_bytes(number, "little")
        if head[0] != 0x10 or len(number) != 4 or value >= len(namespaces):
            continue  # which the command refuses
        namespace = str(namespaces[value])
        yield namespace, _UPSERT if name == b"update" and upserts else _ACTIONS.get(name, _INSERT)
        if bypasses:
            yield namespace, BYPASS


def _create(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body, namespace = request.body, namespace_of(request)
    plain = not body.get("capped") and not body.get("viewOn")
    yield namespace, _INSERT if plain and not grants.permits(namespace, _CREATE) else _CREATE
    yield from _of_view(request, grants, body.get("viewOn"))


def _of_view(request: Request, grants: Grants, source: Any) -> Iterator[Privilege]:
    """Who could read a view must be allowed to read what it shows."""
    if type(source) is str and grants.permits(namespace_of(request), FIND):
        yield from reading(f"{request.db}.{source}", request.db, request.body.get("pipeline"), grants)


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
    within = database == target.partition(".")[0] and grants.permits(f"{database}.", _RENAME)
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
INSERT: Final = Requirement("insert on the collection", _insert, by_namespace=True)
RENAME: Final = Requirement("renameCollectionSameDB, or find, dropCollection, insert and createIndex", _rename)
UPDATE: Final = Requirement("update on the collection, and insert for an upsert", _update)
