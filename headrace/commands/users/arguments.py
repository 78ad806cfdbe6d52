"""Arguments of the commands about users and roles: names of users and roles in requests, and shared fields."""

from __future__ import annotations

from typing import Any

from headrace.auth.names import RoleName, UserName
from headrace.dispatch.request import Request
from headrace.errors import CommandError


def named(request: Request) -> str:
    """Return the name in the command's own field. Raise 2 for an empty name, 14 if it is no string."""
    name = request.body[request.name]
    if type(name) is not str:
        raise CommandError(14, f"BSON field '{request.name}.{request.name}' is the wrong type, expected type 'string'")
    if not name or "\x00" in name:
        raise CommandError(2, f"{request.name}: the name must not be empty")
    return name


def user_named(request: Request) -> UserName:
    """Return the user that a command names, in the command's database."""
    return UserName(named(request), request.db)


def role_named(request: Request) -> RoleName:
    """Return the role that a command names, in the command's database."""
    return RoleName(named(request), request.db)


def role_names(listed: list[Any], db: str) -> list[RoleName]:
    """Return the roles of a request, given as names in its database or as documents. Raise 2."""
    names = []
    for item in listed:
        if type(item) is str and item:
            names.append(RoleName(item, db))
        elif _is_pair(item, "role"):
            names.append(RoleName(item["role"], item["db"]))
        else:
            raise CommandError(2, "Role names must be either strings or objects with the fields 'role' and 'db'")
    return list(dict.fromkeys(names))


def user_names(asked: Any, db: str) -> list[UserName]:
    """Return the users that usersInfo requests by name. Raise 2."""
    names = []
    for item in asked if type(asked) is list else [asked]:
        if type(item) is str:
            names.append(UserName(item, db))
        elif _is_pair(item, "user"):
            names.append(UserName(item["user"], item["db"]))
        else:
            raise CommandError(2, "User names must be either strings or objects with the fields 'user' and 'db'")
    return names


def _is_pair(item: Any, name: str) -> bool:
    return type(item) is dict and type(item.get(name)) is str and type(item.get("db")) is str
