"""Requirements of the commands about users and roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.names import RoleName, UserName
from headrace.auth.privileges import ANY, ANY_NORMAL, CLUSTER, Privilege, parse_privilege
from headrace.commands.requirements.pipelines import FIND
from headrace.commands.users.arguments import role_names, user_names
from headrace.dispatch.access import Grants
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Needs, Requirement
from headrace.query.expressions.numbers import truthy

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine


def _one(*names: str) -> frozenset[str]:
    return frozenset(names)


_GRANT: Final = _one("grantRole")
_REVOKE: Final = _one("revokeRole")
_RESTRICT: Final = _one("setAuthenticationRestriction")
_VIEW_ROLE: Final = _one("viewRole")
_VIEW_USER: Final = _one("viewUser")


def _on_roles(request: Request, actions: frozenset[str]) -> Iterator[Privilege]:
    """Yield the actions on the database of each role in the request."""
    for role in role_names(request.body.get("roles") or [], request.db):
        yield f"{role.db}.", actions


def _on_privileges(request: Request, actions: frozenset[str]) -> Iterator[Privilege]:
    """Yield the actions on the database of each privilege; on `admin` if it covers no database or several."""
    for item in request.body.get("privileges") or []:
        resource = parse_privilege(item)[0]
        database = "" if resource in (ANY, CLUSTER) else resource.partition(".")[0]
        yield f"{database or 'admin'}.", actions


def _restrictions(request: Request) -> Iterator[Privilege]:
    if request.body.get("authenticationRestrictions"):
        yield f"{request.db}.", _RESTRICT


def _create_user(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    yield f"{request.db}.", _one("createUser")
    yield from _on_roles(request, _GRANT)
    yield from _restrictions(request)


def _update_user(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body, database = request.body, f"{request.db}."
    themselves = UserName(str(body.get(request.name)), request.db) == grants.name
    for field, action, on_self in (
        ("pwd", "changePassword", "changeOwnPassword"),
        ("customData", "changeCustomData", "changeOwnCustomData"),
    ):
        if body.get(field) is not None and not (themselves and grants.permits(database, _one(on_self))):
            yield database, _one(action)
    if body.get("mechanisms") is not None and body.get("pwd") is None:
        yield database, _one("changePassword")
    if body.get("roles") is not None:
        yield ANY_NORMAL, _REVOKE
        yield from _on_roles(request, _GRANT)
    yield from _restrictions(request)
    if body.get("authenticationRestrictions") is not None:
        yield database, _RESTRICT


def _users_info(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    asked = request.body[request.name]
    if type(asked) is dict and "forAllDBs" in asked:
        yield ANY_NORMAL, _VIEW_USER
    elif isinstance(asked, int | float) and not isinstance(asked, bool):
        yield f"{request.db}.", _VIEW_USER
    else:
        for name in user_names(asked, request.db):
            if name != grants.name or request.body.get("showCredentials"):
                yield f"{name.db}.", _VIEW_USER


def _roles_info(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    asked = request.body[request.name]
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        yield f"{request.db}.", _VIEW_ROLE
        return
    for name in role_names(asked if type(asked) is list else [asked], request.db):
        if RoleName(*name) not in grants.resolved.roles:
            yield f"{name.db}.", _VIEW_ROLE


def _create_role(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    yield f"{request.db}.", _one("createRole")
    yield from _on_roles(request, _GRANT)
    yield from _on_privileges(request, _GRANT)
    yield from _restrictions(request)


def _update_role(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    if request.body.get("privileges") is not None or request.body.get("roles") is not None:
        yield ANY_NORMAL, _REVOKE
    yield from _on_roles(request, _GRANT)
    yield from _on_privileges(request, _GRANT)
    if request.body.get("authenticationRestrictions") is not None:
        yield f"{request.db}.", _RESTRICT


def _merge(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    body = request.body
    yield ANY_NORMAL, _one("createRole", "createUser", "grantRole", "revokeRole")
    if truthy(body.get("drop")):
        yield ANY_NORMAL, _one("dropRole", "dropUser")
    for field in ("tempRolesCollection", "tempUsersCollection"):
        if type(body.get(field)) is str:
            yield body[field], FIND


def _of(listed: Callable[[Request, frozenset[str]], Iterator[Privilege]], actions: frozenset[str]) -> Needs:
    def needs(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
        wanted: list[Any] = list(listed(request, actions))
        return wanted or ((f"{request.db}.", actions),)

    return needs


CREATE_ROLE: Final = Requirement(
    "createRole on the database, grantRole on those of its roles and privileges", _create_role
)
CREATE_USER: Final = Requirement("createUser on the database, grantRole on those of its roles", _create_user)
GRANT_PRIVILEGES: Final = Requirement("grantRole on the databases of the privileges", _of(_on_privileges, _GRANT))
GRANT_ROLES: Final = Requirement("grantRole on the databases of the roles", _of(_on_roles, _GRANT))
MERGE: Final = Requirement(
    "createRole, createUser, grantRole, revokeRole (with `drop` dropRole, dropUser) everywhere; find on the sources",
    _merge,
)
REVOKE_PRIVILEGES: Final = Requirement("revokeRole on the databases of the privileges", _of(_on_privileges, _REVOKE))
REVOKE_ROLES: Final = Requirement("revokeRole on the databases of the roles", _of(_on_roles, _REVOKE))
ROLES_INFO: Final = Requirement("viewRole on the database; nothing for one's own roles", _roles_info)
UPDATE_ROLE: Final = Requirement("revokeRole on all databases, grantRole on those of what is granted", _update_role)
UPDATE_USER: Final = Requirement(
    "changePassword, changeCustomData, setAuthenticationRestriction; revokeRole and grantRole for roles", _update_user
)
USERS_INFO: Final = Requirement("viewUser on the database; nothing for oneself", _users_info)
