"""createUser, updateUser, dropUser, dropAllUsersFromDatabase, grantRolesToUser, revokeRolesFromUser.

The credentials are derived from a password in a thread. This takes some ten milliseconds, and other clients need not
wait.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bson import Binary

from headrace.auth.names import EXTERNAL, RoleName, UserName
from headrace.auth.restrictions import check_restrictions
from headrace.auth.roles import roles_of
from headrace.auth.scram import SALT_BYTES, SHA_1
from headrace.auth.users import MECHANISMS, derive_all
from headrace.commands.requirements import users
from headrace.commands.users.arguments import role_names, user_named
from headrace.dispatch.access import USERS
from headrace.dispatch.arguments import Fields, array, boolean, document, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.requirement import on_database
from headrace.errors import CommandError
from headrace.execution import user_store
from headrace.thread_calls import call_in_thread
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

CUSTOM_DATA: Final = document("customData")
DIGEST_PASSWORD: Final = boolean("digestPassword", default=True)
MECHANISM_NAMES: Final = array("mechanisms", "string")
PASSWORD: Final = string("pwd")
RESTRICTIONS: Final = array("authenticationRestrictions")
ROLES: Final = array("roles")
ROLES_REQUIRED: Final = array("roles", required=True)


def _credentials(context: CommandContext, request: Request) -> dict[str, Any] | None:
    """Derive the credentials from a request's password; None without a password. Other commands run meanwhile. Raise
    2."""
    password = request.body.get("pwd")
    if password is None or request.db == EXTERNAL:
        return None
    if not password:
        raise CommandError(2, "Password cannot be empty")
    digested = not DIGEST_PASSWORD.of(request.body)
    mechanisms = _mechanisms(request.body) or (SHA_1,) if digested else _mechanisms(request.body) or MECHANISMS
    if digested and mechanisms != (SHA_1,):
        raise CommandError(2, "Use of SCRAM-SHA-256 requires undigested passwords")
    salts = {name: os.urandom(SALT_BYTES[name]) for name in mechanisms}
    made: dict[str, Any] = call_in_thread(derive_all, user_named(request), password, mechanisms, salts, digested)
    engine = context.engine
    if engine.restricts(request.client):  # the client's privileges may have changed, for example the first user's
        engine.access.require_again(engine, engine.commands[request.name], request)
    return made


def _mechanisms(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the mechanisms that a request names; empty: the default. Raise 2."""
    if body.get("mechanisms") is None:
        return ()
    names = MECHANISM_NAMES.of(body)
    if not names:
        raise CommandError(2, "mechanisms field must not be empty")
    for name in names:
        if name not in MECHANISMS:
            raise CommandError(2, f"Unknown auth mechanism '{name}'")
    return tuple(name for name in MECHANISMS if name in names)


def create(context: CommandContext, request: Request) -> dict[str, Any]:
    """createUser: create a user. Raise 51003 if it exists, 31 if a role does not."""
    name, body = user_named(request), request.body
    credentials = _credentials(context, request)
    _require_first(context, request)
    if name.db == "local":
        raise CommandError(2, "Cannot create users in the local database")
    if name.db == EXTERNAL and body.get("pwd") is not None:
        raise CommandError(2, "Cannot set the password for users defined on the '$external' database")
    if name.db != EXTERNAL and body.get("pwd") is None:
        raise CommandError(
            2,
            "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db",
        )
    roles = role_names(ROLES_REQUIRED.of(body), name.db)
    user_store.require_roles(context, roles)
    user: dict[str, Any] = {
        "_id": name.id, "userId": Binary.from_uuid(uuid.uuid4()), "user": name.user, "db": name.db,
        "credentials": {"external": True} if name.db == EXTERNAL else credentials,
    }  # fmt: skip
    if body.get("customData") is not None:
        user["customData"] = CUSTOM_DATA.of(body)
    user["roles"] = [role.document for role in roles]
    set_restrictions(user, body)
    if user_store.load(context, USERS, name.id) is not None:
        raise CommandError(51003, f'User "{name.text}" already exists')
    user_store.add(context, USERS, user)
    note(context, request, {"user": name.user, "db": name.db, "roles": user["roles"]})
    return {}


def _require_first(context: CommandContext, request: Request) -> None:
    """Raise 13 if no user is logged in and another client has created the first user meanwhile."""
    engine, client = context.engine, request.client
    if engine.restricts(client) and client.grants is None:
        users = context.txn.collection(USERS)
        if users is not None and next(context.txn.records(users), None) is not None:
            raise CommandError(13, f"Command {request.name} requires authentication")


def set_restrictions(document: dict[str, Any], body: dict[str, Any]) -> None:
    """Set the `authenticationRestrictions` of a user or role, if the request has them; an empty list removes them."""
    if body.get("authenticationRestrictions") is not None:
        check_restrictions(RESTRICTIONS.of(body))
        document["authenticationRestrictions"] = RESTRICTIONS.of(body)
        if not document["authenticationRestrictions"]:
            del document["authenticationRestrictions"]


def update(context: CommandContext, request: Request) -> dict[str, Any]:
    """updateUser: replace the given fields of a user. Raise 2 if none is given, 11 if the user does not exist."""
    name, body = user_named(request), request.body
    credentials = _credentials(context, request)
    given = [field for field in _UPDATED if body.get(field) is not None]
    if not given:
        raise CommandError(2, "Must specify at least one field to update in updateUser")
    if name.db == EXTERNAL and body.get("pwd") is not None:
        raise CommandError(2, "Cannot set the password for users defined on the '$external' database")
    user = _existing(context, name)
    if credentials is not None:
        user["credentials"] = credentials
    elif "mechanisms" in given:
        mechanisms = _mechanisms(body)
        if not set(mechanisms) <= user["credentials"].keys():
            raise CommandError(2, "mechanisms field must be a subset of previously set mechanisms")
        user["credentials"] = {item: user["credentials"][item] for item in mechanisms}
    if "customData" in given:
        user["customData"] = CUSTOM_DATA.of(body)
    if "roles" in given:
        roles = role_names(ROLES.of(body), name.db)
        user_store.require_roles(context, roles)
        user["roles"] = [role.document for role in roles]
    set_restrictions(user, body)
    user_store.change(context, USERS, user)
    note(context, request, {"user": name.user, "db": name.db, "passwordChanged": "pwd" in given})
    return {}


def _existing(context: CommandContext, name: UserName) -> dict[str, Any]:
    user = user_store.load(context, USERS, name.id)
    if user is None:
        raise CommandError(11, f"User '{name.text}' not found")
    return user


def drop(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropUser: drop a user, whose connections are logged out at their next command. Raise 11 if there is no user."""
    name = user_named(request)
    if not user_store.remove(context, USERS, name.id):
        raise CommandError(11, f"User '{name.text}' not found")
    note(context, request, {"user": name.user, "db": name.db})
    return {}


def drop_all(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropAllUsersFromDatabase: drop all users of a database, and answer their number."""
    names = [item["_id"] for item in user_store.each(context, USERS) if item.get("db") == request.db]
    for identity in names:
        user_store.remove(context, USERS, identity)
    note(context, request, {"db": request.db})
    return {"n": len(names)}


def change_roles(context: CommandContext, request: Request) -> dict[str, Any]:
    """grantRolesToUser, revokeRolesFromUser: add or remove roles, ignoring roles that the user lacks. Raise 11 or
    31."""
    name = user_named(request)
    roles, user = listed_roles(request), _existing(context, name)
    user_store.require_roles(context, roles)
    user["roles"] = roles_after(request, user, roles)
    user_store.change(context, USERS, user)
    note(context, request, {"user": name.user, "db": name.db, "roles": [role.document for role in roles]})
    return {}


def listed_roles(request: Request) -> list[RoleName]:
    """Return the roles that a request grants or revokes. Raise 2 for none."""
    roles = role_names(ROLES_REQUIRED.of(request.body), request.db)
    if not roles:
        raise CommandError(2, f'{request.name} command requires a non-empty "roles" array')
    return roles


def roles_after(request: Request, holder: dict[str, Any], roles: list[RoleName]) -> list[dict[str, Any]]:
    """Return the roles of a user or role after a request grants or revokes some."""
    held = roles_of(holder)
    grants = request.name.startswith("grant")
    left = dict.fromkeys([*held, *roles]) if grants else [role for role in held if role not in roles]
    return [role.document for role in left]


def note(context: CommandContext, request: Request, details: dict[str, Any]) -> None:
    """Report the command's changes to the listeners (the log and the audit log)."""
    context.engine.access.note(request.name, request.client, details)


_UPDATED: Final = ("authenticationRestrictions", "customData", "mechanisms", "pwd", "roles")
_USER: Final = (CUSTOM_DATA, DIGEST_PASSWORD, MECHANISM_NAMES, PASSWORD, RESTRICTIONS)

COMMANDS: Final = (
    Command(
        "createUser",
        create,
        Fields(*_USER, ROLES_REQUIRED),
        writes=True,
        pauses=True,
        requires=users.CREATE_USER,
    ),
    Command("dropAllUsersFromDatabase", drop_all, Fields(), writes=True, requires=on_database("dropUser")),
    Command("dropUser", drop, Fields(), writes=True, requires=on_database("dropUser")),
    Command("grantRolesToUser", change_roles, Fields(ROLES_REQUIRED), writes=True, requires=users.GRANT_ROLES),
    Command("revokeRolesFromUser", change_roles, Fields(ROLES_REQUIRED), writes=True, requires=users.REVOKE_ROLES),
    Command("updateUser", update, Fields(*_USER, ROLES), writes=True, pauses=True, requires=users.UPDATE_USER),
)


# Users created before any client can connect, by `headrace.Server(users=...)` and `headrace user add`.


def create_user(engine: Engine, name: str, db: str, fields: Mapping[str, Any]) -> None:
    """Create a user with the `fields` of createUser, or update an existing one. No server may be running yet.

    Raise the errors of createUser and updateUser.
    """
    try:
        _run(engine, db, {"createUser": name, **fields})
    except CommandError as error:
        if error.code != 51003:
            raise
        _run(engine, db, {"updateUser": name, **fields})


def _run(engine: Engine, db: str, body: dict[str, Any]) -> None:
    client = ClientInfo(0, "127.0.0.1:0", "")
    client.is_program = True  # no limits of the localhost exception
    request = Request(next(iter(body)), db, encode({**body, "$db": db}), {}, client)
    command = engine.commands[request.name]
    command.arguments.check(command.name, request.body)
    txn = engine.store.begin()
    answer = engine.run_write(command, request, txn)
    engine.store.commit(txn)
    assert isinstance(answer, bytes)
    reply = decode(answer)
    if reply["ok"] != 1.0:
        raise CommandError(reply["code"], reply["errmsg"])
