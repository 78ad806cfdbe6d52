"""usersInfo, rolesInfo, connectionStatus, invalidateUserCache: show users and roles, and those of the connection."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from bson import Binary, Decimal128

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName
from headrace.auth.privileges import documents_of, merged
from headrace.auth.roles import resolve, roles_of, stored_privileges
from headrace.auth.users import shown
from headrace.commands.requirements import users
from headrace.commands.users.arguments import is_database, role_names, user_names
from headrace.dispatch.access import ROLES, USERS
from headrace.dispatch.arguments import Fields, any_type, boolean, document
from headrace.dispatch.command import Command, administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE
from headrace.errors import CommandError
from headrace.execution import user_store
from headrace.hashing import sha256
from headrace.query.expressions.numbers import truthy
from headrace.query.match import parse_filter
from headrace.query.update.update_tree import element_text

FILTER: Final = document("filter")
SHOW_BUILTIN_ROLES: Final = boolean("showBuiltinRoles")
SHOW_CREDENTIALS: Final = boolean("showCredentials")
SHOW_CUSTOM_DATA: Final = boolean("showCustomData", default=True)
SHOW_PRIVILEGES: Final = boolean("showPrivileges")
SHOW_RESTRICTIONS: Final = boolean("showAuthenticationRestrictions")


def users_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """usersInfo: show one user, several, the users of a database (1), or all users (`forAllDBs`)."""
    body = request.body
    asked = body["usersInfo"]
    details = SHOW_PRIVILEGES.of(body) or SHOW_RESTRICTIONS.of(body)
    exact = False
    if is_database(asked):
        documents = [item for item in user_store.each(context, USERS) if item.get("db") == request.db]
    elif type(asked) is dict and truthy(asked.get("forAllDBs", False)):
        documents = list(user_store.each(context, USERS))
    else:
        exact = True
        loaded = (user_store.load(context, USERS, name.id) for name in user_names(asked, request.db))
        documents = [item for item in loaded if item is not None]
    if details and (not exact or body.get("filter") is not None):
        raise CommandError(20, "Privilege or restriction details require exact-match usersInfo queries")
    return {"users": _filtered(context, body, documents, details=details)}


def _filtered(
    context: CommandContext, body: dict[str, Any], documents: list[dict[str, Any]], *, details: bool
) -> list[dict[str, Any]]:
    users = []
    for item in documents:
        if type(item.get("user")) is not str or type(item.get("db")) is not str:
            continue
        user = shown(item, credentials=SHOW_CREDENTIALS.of(body))
        if not SHOW_CUSTOM_DATA.of(body):
            user.pop("customData", None)
        if details:
            user |= _details(context, roles_of(item), item, privileges=SHOW_PRIVILEGES.of(body))
        users.append(user)
    spec = FILTER.of(body)
    if not spec:
        return users
    matches = parse_filter(spec)
    return [user for user in users if matches(user)]


def _details(
    context: CommandContext, names: list[RoleName], item: dict[str, Any], *, privileges: bool
) -> dict[str, Any]:
    """Return what a user with these roles inherits, and the restrictions of its document."""
    resolved = resolve(names, user_store.role_loader(context))
    details: dict[str, Any] = {"inheritedRoles": [role.document for role in resolved.roles]}
    if privileges:
        details["inheritedPrivileges"] = documents_of(resolved.privileges)
    details["inheritedAuthenticationRestrictions"] = list(resolved.restrictions)
    details["authenticationRestrictions"] = item.get("authenticationRestrictions", [])
    return details


def roles_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """rolesInfo: show one role, several, or the roles of a database (1), with built-in ones if requested."""
    body = request.body
    asked, fragment = body["rolesInfo"], _checked_format(body)
    if is_database(asked):
        names = [
            RoleName(item["role"], item["db"])
            for item in user_store.each(context, ROLES)
            if item.get("db") == request.db and type(item.get("role")) is str
        ]
        if SHOW_BUILTIN_ROLES.of(body):
            names += builtin_roles.names_in(request.db)
    else:
        names = role_names(asked if type(asked) is list else [asked], request.db)
    if fragment:
        user_store.require_roles(context, names)
        given = {"roles": [name.document for name in names]}
        return {"userFragment": given | _details(context, names, {}, privileges=True)}
    described = (_role(context, name, body) for name in names)
    return {"roles": [role for role in described if role is not None]}


def _checked_format(body: dict[str, Any]) -> bool:
    """Whether `showPrivileges` asks for a user's document. Raise 2 unless it is a boolean, a number or that request."""
    asked = body.get("showPrivileges")
    if asked is None or isinstance(asked, bool | int | float | Decimal128):
        return False
    if asked != "asUserFragment":
        raise CommandError(
            2,
            "Failed to parse 'showPrivileges'. 'showPrivileges' should either be a boolean or the string "
            f"'asUserFragment', given: {element_text('showPrivileges', asked)}",
        )
    return True


def _role(context: CommandContext, name: RoleName, body: dict[str, Any]) -> dict[str, Any] | None:
    builtin = builtin_roles.privileges_of(name)
    stored = {} if builtin is not None else user_store.load(context, ROLES, name.id)
    if stored is None:
        return None
    direct = roles_of(stored)
    resolved = resolve([name], user_store.role_loader(context))
    role: dict[str, Any] = {
        "_id": name.id, "role": name.role, "db": name.db, "isBuiltin": builtin is not None,
        "roles": [item.document for item in direct],
        "inheritedRoles": [item.document for item in resolved.roles if item != name],
    }  # fmt: skip
    if body.get("showPrivileges"):
        direct_privileges = builtin if builtin is not None else merged(stored_privileges(stored))
        role["privileges"] = documents_of(direct_privileges)
        role["inheritedPrivileges"] = documents_of(resolved.privileges)
    if SHOW_RESTRICTIONS.of(body):
        role["authenticationRestrictions"] = stored.get("authenticationRestrictions", [])
        role["inheritedAuthenticationRestrictions"] = list(resolved.restrictions)
    return role


def connection_status(context: CommandContext, request: Request) -> dict[str, Any]:
    """connectionStatus: show the connection's user, all roles including inherited ones, and privileges if requested."""
    grants = context.engine.access.grants(request.client)
    information: dict[str, Any] = {"authenticatedUsers": [], "authenticatedUserRoles": []}
    if grants is not None:
        information["authenticatedUsers"] = [{"user": grants.name.user, "db": grants.name.db}]
        information["authenticatedUserRoles"] = [role.document for role in grants.resolved.roles]
    if SHOW_PRIVILEGES.of(request.body):
        information["authenticatedUserPrivileges"] = [] if grants is None else documents_of(grants.privileges)
    return {"authInfo": information, "uuid": _uuid_of(context, request)}


def _uuid_of(context: CommandContext, request: Request) -> Binary:
    """Return the UUID of the connection: the same for each command on it, another after a restart."""
    seed = context.engine.process_id.binary + request.client.connection_id.to_bytes(8, "big")
    return Binary.from_uuid(UUID(bytes=sha256(seed)[:16], version=4))


def invalidate(context: CommandContext, request: Request) -> dict[str, Any]:
    """invalidateUserCache: make each connection look up its user again."""
    context.engine.access.invalidate()
    return {}


_USERS_INFO: Final = Fields(FILTER, SHOW_CREDENTIALS, SHOW_CUSTOM_DATA, SHOW_PRIVILEGES, SHOW_RESTRICTIONS)

COMMANDS: Final = (
    Command("connectionStatus", connection_status, Fields(SHOW_PRIVILEGES), requires=ANYONE),
    administrative("invalidateUserCache", invalidate, strict=True),
    Command(
        "rolesInfo",
        roles_info,
        Fields(SHOW_BUILTIN_ROLES, any_type("showPrivileges"), SHOW_RESTRICTIONS),
        requires=users.ROLES_INFO,
    ),
    Command("usersInfo", users_info, _USERS_INFO, requires=users.USERS_INFO),
)
