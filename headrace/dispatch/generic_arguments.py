"""The fields that many commands share, checked in one place: types before the command runs, `writeConcern` after.

Rule: most requests carry none of them, and then nothing here is called.
Source: MongoDB's generic command arguments; its codes for values that a set of one member cannot satisfy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Int64

from headrace.dispatch import api_version
from headrace.dispatch.request import Request
from headrace.errors import CommandError, code_name
from headrace.query.expressions.numbers import integral
from headrace.values.bson import encode, type_name


def _object(command: str, name: str, value: Any) -> None:
    if value is not None and type(value) is not dict:
        raise CommandError(
            14, f"BSON field '{command}.{name}' is the wrong type '{type_name(value)}', expected type 'object'"
        )


def _hint(command: str, name: str, value: Any) -> None:
    if value is not None and type(value) not in (str, dict):
        raise CommandError(9, "Hint must be a string or an object")


def _time(command: str, name: str, value: Any) -> None:
    if type(value) not in (int, Int64, float):
        raise CommandError(2, f"{name} must be a number")
    milliseconds = integral(value)
    if milliseconds is None:
        raise CommandError(2, f"{name} has non-integral value")
    if not 0 <= milliseconds <= 2**31 - 1:
        raise CommandError(2, f"{milliseconds} value for {name} is out of range [0, 2147483647]")


CHECKED: Final[dict[str, Callable[[str, str, Any], None]]] = {
    "collation": _object,
    "hint": _hint,
    "let": _object,
    "lsid": _object,
    "maxTimeMS": _time,
    "readConcern": _object,
    "writeConcern": _object,
}
FIELDS: Final = frozenset(CHECKED) | api_version.FIELDS | {"autocommit", "startTransaction"}
"""A request that has any of these wants `check`."""


def check(request: Request) -> None:
    """Raise for a shared field of the wrong type or out of range: 2, 9, 14; for the stable API's: 14, 322, 323."""
    body = request.body
    if not body.keys().isdisjoint(api_version.FIELDS):
        api_version.check(request.name, body)
    for name in body.keys() & CHECKED.keys():
        CHECKED[name](request.name, name, body[name])


def check_statement(command: str, statement: dict[str, Any]) -> None:
    """The same for the fields of one statement of an update or a delete."""
    for name in ("collation", "hint"):
        if name in statement:
            CHECKED[name](command, name, statement[name])


def unsatisfied(body: dict[str, Any]) -> bytes:
    """The raw `writeConcernError` element of a write that was done, but not on as many members as asked for."""
    concern = body.get("writeConcern") or {}
    wanted = concern.get("w", 1)
    if type(wanted) is str and wanted != "majority":
        code, message = 79, f"No write concern mode named '{wanted}' found in replica set configuration"
    elif isinstance(wanted, int | float) and wanted > 1:
        code, message = 100, "Not enough data-bearing nodes"
    else:
        return b""
    error = {"code": code, "codeName": code_name(code), "errmsg": message}
    return encode({"writeConcernError": error})[4:-1]
