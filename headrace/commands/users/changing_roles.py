"""createRole, updateRole, dropRole, dropAllRolesFromDatabase; grant and revoke of privileges and roles.

A role outside `admin` may have privileges only on its own database, and inherit only roles of its own database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName
from headrace.auth.privileges import documents_of, merged, parse_privilege
from headrace.auth.roles import inherits, roles_of
from headrace.commands.requirements import users
from headrace.commands.users.arguments import role_named, role_names
from headrace.commands.users.changing_users import (
    RESTRICTIONS,
    ROLES_REQUIRED,
    listed_roles,
    note,
    roles_after,
    set_restrictions,
)
from headrace.dispatch.access import ROLES, USERS
from headrace.dispatch.arguments import Fields, array
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_database
from headrace.errors import CommandError
from headrace.execution import user_store

INHERITED: Final = array("roles")
PRIVILEGES: Final = array("privileges", "object")
PRIVILEGES_REQUIRED: Final = array("privileges", "object", required=True)


def create(context: CommandContext, request: Request) -> dict[str, Any]:
    """createRole: create a role. Raise 51002 if it exists, 31 if an inherited role does not."""
    name, body = role_named(request), request.body
    if name.db in ("local", "$external"):
        raise CommandError(2, f"Cannot create roles in the {name.db} database")
    if builtin_roles.privileges_of(name) is not None:
        raise CommandError(2, "Cannot create roles with the same name as a built-in role")
    role: dict[str, Any] = {"_id": name.id, "role": name.role, "db": name.db, "privileges": [], "roles": []}
    _set_privileges(role, name, PRIVILEGES_REQUIRED.of(body))
    _set_roles(context, role, name, role_names(ROLES_REQUIRED.of(body), name.db))
    set_restrictions(role, body)
    if user_store.load(context, ROLES, name.id) is not None:
        raise CommandError(51002, f'Role "{name.text}" already exists')
    user_store.add(context, ROLES, role)
    note(context, request, {"role": name.role, "db": name.db, "privileges": role["privileges"], "roles": role["roles"]})
    return {}


def _set_privileges(role: dict[str, Any], name: RoleName, privileges: list[Any]) -> None:
    """Set the privileges. Raise 9 for an invalid privilege, 49 for one on another database."""
    held = merged(parse_privilege(item) for item in privileges)
    if name.db != "admin" and any(resource.partition(".")[0] != name.db for resource in held):
        raise CommandError(
            49,
            f"Roles on the '{name.db}' database cannot be granted privileges that target other databases or the "
            "cluster",
        )
    role["privileges"] = documents_of(held)


def _set_roles(context: CommandContext, role: dict[str, Any], name: RoleName, roles: list[RoleName]) -> None:
    """Set the inherited roles. Raise 31 if a role does not exist, 49 if it is in another database or inherits this
    one."""
    for item in roles:
        if item == name:
            raise CommandError(49, f"Cannot grant role {name.text} to itself.")
        if name.db not in ("admin", item.db):
            raise CommandError(49, f"Roles on the '{name.db}' database cannot be granted roles from other databases")
    try:
        user_store.require_roles(context, roles)
    except CommandError as failure:
        raise failure.behind(f"Cannot grant roles to '{name.text}': ") from None
    if any(inherits(item, name, user_store.role_loader(context)) for item in roles):
        raise CommandError(49, f"Granting roles to {name.text} would introduce a cycle in the role graph")
    role["roles"] = [item.document for item in roles]


def update(context: CommandContext, request: Request) -> dict[str, Any]:
    """updateRole: replace the given fields of a role. Raise 2 if none is given."""
    name, body = role_named(request), request.body
    if all(body.get(field) is None for field in ("authenticationRestrictions", "privileges", "roles")):
        raise CommandError(2, "Must specify at least one field to update in updateRole")
    role = _existing(context, name)
    if body.get("privileges") is not None:
        _set_privileges(role, name, PRIVILEGES.of(body))
    if body.get("roles") is not None:
        _set_roles(context, role, name, role_names(INHERITED.of(body), name.db))
    set_restrictions(role, body)
    return _changed(context, request, role)


def _changeable(request: Request) -> RoleName:
    """Return the role that a command names. Raise 2 for a built-in role."""
    name = role_named(request)
    if builtin_roles.privileges_of(name) is not None:
        raise CommandError(2, f"{name.text} is a built-in role and cannot be modified")
    return name


def _existing(context: CommandContext, name: RoleName) -> dict[str, Any]:
    """Return a user-defined role. Raise 31 if it does not exist."""
    role = user_store.load(context, ROLES, name.id)
    if role is None:
        raise CommandError(31, f"Role '{name.text}' not found")
    for field in ("privileges", "roles"):  # the document may have been edited by hand
        if type(role.get(field)) is not list:
            role[field] = []
    return role


def _changed(context: CommandContext, request: Request, role: dict[str, Any]) -> dict[str, Any]:
    user_store.change(context, ROLES, role)
    note(context, request, {name: role[name] for name in ("role", "db", "privileges", "roles")})
    return {}


def drop(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropRole: drop a role, and remove it from all users and roles that have it. Raise 31."""
    name = _changeable(request)
    _existing(context, name)
    _forget(context, lambda role: role == name)
    user_store.remove(context, ROLES, name.id)
    note(context, request, {"role": name.role, "db": name.db})
    return {}


def drop_all(context: CommandContext, request: Request) -> dict[str, Any]:
    """dropAllRolesFromDatabase: drop all roles of a database, and answer their number."""
    names = [item["_id"] for item in user_store.each(context, ROLES) if item.get("db") == request.db]
    mine = set(names)
    _forget(context, lambda role: role.id in mine)
    for identity in names:
        user_store.remove(context, ROLES, identity)
    note(context, request, {"db": request.db})
    return {"n": len(names)}


def _forget(context: CommandContext, dropped: Callable[[RoleName], bool]) -> None:
    """Remove dropped roles from all users and roles that have them."""
    for namespace in (USERS, ROLES):
        for item in list(user_store.each(context, namespace)):
            roles = roles_of(item)
            if any(dropped(role) for role in roles):
                item["roles"] = [role.document for role in roles if not dropped(role)]
                user_store.change(context, namespace, item)


def grant_privileges(context: CommandContext, request: Request) -> dict[str, Any]:
    """grantPrivilegesToRole: add actions to the role's actions on a resource."""
    given, name = _privileges(request), _changeable(request)
    _set_privileges({}, name, given)
    role = _existing(context, name)
    _set_privileges(role, name, [*role["privileges"], *given])
    return _changed(context, request, role)


def _privileges(request: Request) -> list[Any]:
    privileges = PRIVILEGES_REQUIRED.of(request.body)
    if not privileges:
        raise CommandError(2, f'{request.name} command requires a non-empty "privileges" array')
    return privileges


def revoke_privileges(context: CommandContext, request: Request) -> dict[str, Any]:
    """revokePrivilegesFromRole: remove actions on exactly this resource. Privileges on a wider resource stay."""
    privileges, name = _privileges(request), _changeable(request)
    removed = [parse_privilege(item) for item in privileges]
    role = _existing(context, name)
    left = merged(parse_privilege(item) for item in role["privileges"])
    for resource, actions in removed:
        left[resource] = left.get(resource, frozenset()) - actions
    role["privileges"] = documents_of({resource: actions for resource, actions in left.items() if actions})
    return _changed(context, request, role)


def change_roles(context: CommandContext, request: Request) -> dict[str, Any]:
    """grantRolesToRole, revokeRolesFromRole: make the role inherit other roles, or no longer inherit them."""
    roles, name = listed_roles(request), _changeable(request)
    if request.name == "grantRolesToRole":
        _set_roles(context, {}, name, roles)
    role = _existing(context, name)
    role["roles"] = roles_after(request, role, roles)
    return _changed(context, request, role)


COMMANDS: Final = (
    Command(
        "createRole",
        create,
        Fields(ROLES_REQUIRED, PRIVILEGES_REQUIRED, RESTRICTIONS),
        writes=True,
        requires=users.CREATE_ROLE,
    ),
    Command("dropAllRolesFromDatabase", drop_all, Fields(), writes=True, requires=on_database("dropRole")),
    Command("dropRole", drop, Fields(), writes=True, requires=on_database("dropRole")),
    Command(
        "grantPrivilegesToRole",
        grant_privileges,
        Fields(PRIVILEGES_REQUIRED),
        writes=True,
        requires=users.GRANT_PRIVILEGES,
    ),
    Command("grantRolesToRole", change_roles, Fields(ROLES_REQUIRED), writes=True, requires=users.GRANT_ROLES),
    Command(
        "revokePrivilegesFromRole",
        revoke_privileges,
        Fields(PRIVILEGES_REQUIRED),
        writes=True,
        requires=users.REVOKE_PRIVILEGES,
    ),
    Command("revokeRolesFromRole", change_roles, Fields(ROLES_REQUIRED), writes=True, requires=users.REVOKE_ROLES),
    Command("updateRole", update, Fields(INHERITED, PRIVILEGES, RESTRICTIONS), writes=True, requires=users.UPDATE_ROLE),
)
