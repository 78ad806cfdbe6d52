"""_mergeAuthzCollections: restore the users and roles of a dump, for mongorestore.

mongorestore inserts them into temporary collections, and this command merges them. An existing user or role stays
unchanged. With `drop`, it is replaced, and users and roles that are not in the dump are removed.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.auth.names import RoleName, UserName
from headrace.commands.requirements import users
from headrace.dispatch.access import ROLES, USERS
from headrace.dispatch.arguments import Fields, boolean, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_namespace
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution import user_store

DB: Final = string("db", required=True)
DROP: Final = boolean("drop")
NEW_ROLES: Final = string("tempRolesCollection")
NEW_USERS: Final = string("tempUsersCollection")


def merge(context: CommandContext, request: Request) -> dict[str, Any]:
    """_mergeAuthzCollections: merge users and roles of the database `db`; empty: of all. Raise 2 for an invalid one."""
    body = request.body
    sources = (
        (USERS, NEW_USERS.of(body), _user, ("createUser", "updateUser", "dropUser")),
        (ROLES, NEW_ROLES.of(body), _role, ("createRole", "updateRole", "dropRole")),
    )
    if not any(source for _, source, _, _ in sources):
        raise CommandError(2, 'Must provide at least one of "tempUsersCollection" and "tempRolesCollection"')
    for namespace, source, read, (created, updated, dropped) in sources:
        if not source:
            continue
        new = [read(item) for item in user_store.each(context, check_namespace(source))]
        wanted = {item["_id"]: item for item in new if DB.of(body) in ("", item["db"])}
        there = {item["_id"]: item for item in _there(context, namespace, str(DB.of(body)))}
        for identity, item in wanted.items():
            if identity not in there:
                user_store.add(context, namespace, item)
                _note(context, request, created, item)
            elif DROP.of(body):
                user_store.change(context, namespace, item)
                _note(context, request, updated, item)
        for identity in there.keys() - wanted.keys() if DROP.of(body) else ():
            user_store.remove(context, namespace, identity)
            _note(context, request, dropped, there[identity])
    return {}


def _there(context: CommandContext, namespace: str, db: str) -> list[dict[str, Any]]:
    """Return the stored users or roles of a database; empty: of all. Skip those without a string `_id`."""
    listed = user_store.each(context, namespace)
    return [item for item in listed if type(item["_id"]) is str and db in ("", item.get("db"))]


def _note(context: CommandContext, request: Request, what: str, item: dict[str, Any]) -> None:
    shown: dict[str, Any] = {name: item[name] for name in ("user", "role", "db", "roles") if name in item}
    context.engine.access.note(what, request.client, shown)


def _user(item: dict[str, Any]) -> dict[str, Any]:
    name = UserName(*_names(item, "user"))
    if type(item.get("credentials")) is not dict:
        raise CommandError(2, f"the document of the user {name.text} has no 'credentials'")
    return {**item, "_id": name.id}


def _role(item: dict[str, Any]) -> dict[str, Any]:
    name = RoleName(*_names(item, "role"))
    if type(item.get("privileges")) is not list:
        raise CommandError(2, f"the document of the role {name.text} has no 'privileges'")
    return {**item, "_id": name.id}


def _names(item: dict[str, Any], what: str) -> tuple[str, str]:
    """Return the name and the database of a user or role. Raise 2 if the document is invalid."""
    name, db = item.get(what), item.get("db")
    if type(name) is not str or not name or type(db) is not str or not db or type(item.get("roles")) is not list:
        raise CommandError(2, f"each document of a {what} needs the fields '{what}', 'db' and 'roles'")
    return name, db


COMMANDS: Final = (
    Command(
        "_mergeAuthzCollections",
        merge,
        Fields(DB, DROP, NEW_ROLES, NEW_USERS),
        writes=True,
        admin_only=True,
        requires=users.MERGE,
    ),
)
