"""Resolved roles: the roles that they inherit, and the privileges and restrictions of all of them.

admin.system.roles   {_id: "db.role", role, db, privileges: [...], roles: [{role, db}], authenticationRestrictions?}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName
from headrace.auth.privileges import Privilege, Privileges, merged, parse_privilege
from headrace.errors import CommandError

LoadRole = Callable[[RoleName], dict[str, Any] | None]
"""Returns the document of a user-defined role, or None."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Roles with everything that they inherit."""

    roles: tuple[RoleName, ...]
    """These roles and all roles they inherit, sorted; roles that do not exist are left out."""
    privileges: Privileges
    restrictions: tuple[list[dict[str, Any]], ...]
    """The `authenticationRestrictions` of the roles that have some."""


def roles_of(document: dict[str, Any]) -> list[RoleName]:
    """Return the roles that a stored user or role was granted directly. Invalid ones, which a hand-edited document may
    have, are skipped."""
    listed = document.get("roles")
    names = []
    for item in listed if type(listed) is list else ():
        if type(item) is dict and type(item.get("role")) is str and type(item.get("db")) is str:
            names.append(RoleName(item["role"], item["db"]))
    return names


def resolve(roles: Iterable[RoleName], load: LoadRole) -> Resolved:
    """Return the roles with all roles that they inherit, their privileges and restrictions. Cycles of roles are
    allowed."""
    seen: set[RoleName] = set()
    held: list[Privilege] = []
    restrictions = []
    left = list(roles)
    while left:
        name = left.pop()
        if name in seen:
            continue
        builtin = builtin_roles.privileges_of(name)
        if builtin is not None:
            seen.add(name)
            held.extend(builtin.items())
            continue
        document = load(name)
        if document is None:
            continue
        seen.add(name)
        held.extend(stored_privileges(document))
        left.extend(roles_of(document))
        if document.get("authenticationRestrictions"):
            restrictions.append(document["authenticationRestrictions"])
    return Resolved(tuple(sorted(seen)), merged(held), tuple(restrictions))


def stored_privileges(document: dict[str, Any]) -> list[tuple[str, frozenset[str]]]:
    """Return the privileges of a stored role. An invalid privilege grants nothing."""
    listed = document.get("privileges")
    privileges = []
    for item in listed if type(listed) is list else ():
        try:
            privileges.append(parse_privilege(item))
        except (AttributeError, CommandError):
            continue
    return privileges


def inherits(role: RoleName, ancestor: RoleName, load: LoadRole) -> bool:
    """Return whether `role` is or inherits `ancestor`."""
    return ancestor in resolve([role], load).roles
