"""Reading and writing `admin.system.users` and `admin.system.roles` within a command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName
from headrace.auth.roles import LoadRole
from headrace.dispatch.access import ROLES, SECRET_KEY, USERS, located, stored
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import VERSIONS
from headrace.errors import CommandError
from headrace.execution.writes.matches import created
from headrace.store import catalog_changes
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT
from headrace.values.bson import decode, encode

_SCHEMA: Final = {"_id": "authSchema", "currentVersion": 5}
"""The document that marks users and roles as stored in the format of MongoDB 3.0 and later."""
_UNIQUE: Final = {USERS: "user", ROLES: "role"}


def each(context: CommandContext, namespace: str) -> Iterator[dict[str, Any]]:
    """Yield all stored users or roles."""
    collection = context.view.collection(namespace)
    if collection is None or collection.is_view:
        return
    for _, raw in list(context.view.scan(collection)):
        context.tick()
        if raw is not LEFT_OUT:
            yield decode(raw)


def load(context: CommandContext, namespace: str, identity: str) -> dict[str, Any] | None:
    """Return a user or role as the command sees it, or None."""
    return stored(context.view, namespace, identity)


def role_loader(context: CommandContext) -> LoadRole:
    """Return a function that looks up roles as the command sees them."""
    return lambda name: load(context, ROLES, name.id)


def role_exists(context: CommandContext, name: RoleName) -> bool:
    """Whether a role exists, built-in or user-defined."""
    return builtin_roles.privileges_of(name) is not None or load(context, ROLES, name.id) is not None


def require_roles(context: CommandContext, names: list[RoleName]) -> None:
    """Raise 31 for the first role that does not exist."""
    for name in names:
        if not role_exists(context, name):
            raise CommandError(31, f"Could not find role: {name.text}")


def add(context: CommandContext, namespace: str, document: dict[str, Any]) -> None:
    """Store a new user or role. Raise 11000 if it exists."""
    collection = _collection(context, namespace)
    if load(context, VERSIONS, str(_SCHEMA["_id"])) is None:
        context.txn.insert(created(context, VERSIONS), encode(_SCHEMA))
    txn = context.txn
    if txn.kv.get(SECRET_KEY, db=txn.tables["meta"]) is None:
        txn.kv.put(SECRET_KEY, context.engine.access.secret, db=txn.tables["meta"])
    txn.insert(collection, encode(document))


def _collection(context: CommandContext, namespace: str) -> Collection:
    collection = context.txn.collection(namespace)
    if collection is not None:
        if collection.is_view:
            raise CommandError(166, f"Namespace {namespace} is a view, not a collection")
        return collection
    collection = created(context, namespace)
    name = _UNIQUE[namespace]
    spec = {"v": 2, "unique": True, "key": {name: 1, "db": 1}, "name": f"{name}_1_db_1"}
    catalog_changes.create_indexes(context.txn, collection, [spec])
    return collection


def change(context: CommandContext, namespace: str, document: dict[str, Any]) -> None:
    """Replace a stored user or role."""
    collection = context.txn.collection(namespace)
    stored_now = located(context.txn, namespace, document["_id"])
    assert collection is not None and stored_now is not None
    new = encode(document)
    if new != stored_now[1]:
        context.txn.replace(collection, stored_now[0], stored_now[1], new, new)


def remove(context: CommandContext, namespace: str, identity: str) -> bool:
    """Remove a user or role. Return False if it does not exist."""
    collection = context.txn.collection(namespace)
    stored_now = located(context.txn, namespace, identity)
    if collection is None or stored_now is None:
        return False
    context.txn.delete(collection, *stored_now)
    return True
