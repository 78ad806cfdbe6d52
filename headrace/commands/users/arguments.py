"""Arguments of the commands about users and roles: names of users and roles in requests, and shared fields."""

from __future__ import annotations

from typing import Any

from headrace.auth.names import RoleName, UserName
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.match.value_tests import truncated_int64


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
        else:
            _check_pair(item, "role", "RoleName")
            names.append(RoleName(item["role"], item["db"]))
    return list(dict.fromkeys(names))


def user_names(asked: Any, db: str) -> list[UserName]:
    """Return the users that usersInfo requests by name. Raise 2."""
    names = []
    for item in asked if type(asked) is list else [asked]:
        if type(item) is str:
            names.append(UserName(item, db))
        else:
            _check_pair(item, "user", "UserName")
            for field in item:
                if field not in ("user", "db"):
                    raise CommandError(2, f"UserName contains an unknown field named: '{field}'")
            names.append(UserName(item["user"], item["db"]))
    return names


def _check_pair(item: Any, name: str, kind: str) -> None:
    """Raise 2 unless the item is a document with the names of a user or role and of its database."""
    if type(item) is not dict:
        raise CommandError(2, f"{kind} must be either a string or an object")
    for field in (name, "db"):
        if type(item.get(field)) is not str:
            raise CommandError(2, f"{kind} must contain a field named: {field}")


def is_database(asked: Any) -> bool:
    """Whether the argument of usersInfo or rolesInfo stands for the whole database: the number 1, cut to an integer."""
    return truncated_int64(asked) == 1
