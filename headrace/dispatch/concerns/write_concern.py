"""`writeConcern`: the commands that take one, its fields, and the error if a set of one member cannot satisfy it.

Source: MongoDB's write concerns; its codes. An empty document is the default write concern.
"""

from __future__ import annotations

from math import isnan
from typing import Any, Final

from bson import Decimal128

from headrace.dispatch.arguments import Field, Fields, boolean, document, without_effect
from headrace.errors import CommandError, code_name
from headrace.query.expressions.numbers import double_of, to_long, truthy
from headrace.values.bson import encode, to_string, type_name

TAKEN_BY: Final = frozenset({
    "_mergeAuthzCollections", "abortTransaction", "aggregate", "applyOps", "bulkWrite", "cloneCollectionAsCapped",
    "collMod", "commitTransaction", "convertToCapped", "create", "createIndexes", "createRole", "createUser", "delete",
    "drop", "dropAllRolesFromDatabase", "dropAllUsersFromDatabase", "dropDatabase", "dropIndexes", "dropRole",
    "dropUser", "explain", "findAndModify", "grantPrivilegesToRole", "grantRolesToRole", "grantRolesToUser", "insert",
    "mapReduce", "renameCollection", "revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser",
    "setDefaultRWConcern", "setFeatureCompatibilityVersion", "update", "updateRole",
    "updateUser",
})  # fmt: skip
"""The commands that take a write concern. `aggregate` takes one if it writes; `explain` refuses it itself."""
DEFAULTS: Final = "ReadWriteConcernDefaults"
"""The name under which the defaults of `setDefaultRWConcern` are stored, as in MongoDB's `config.settings`."""
_MEMBER_COUNT_MAX: Final = 50  # MongoDB's maximum for a replica set
_TIMEOUT_MAX: Final = 2**31 - 1
_SOURCES: Final = frozenset({
    "clientSupplied", "customDefault", "getLastErrorDefaults", "implicitDefault", "internalWriteDefault",
})  # fmt: skip
_NUMBERS: Final = (int, float, Decimal128)


def _check_members(path: str, value: Any) -> None:
    if type(value) is str:
        if "\0" in value:
            raise CommandError(9, f"w has illegal embedded NUL byte, w: {value}")
    elif type(value) is dict:
        _check_tags(value)
    elif isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise CommandError(9, f"w has to be a number, string, or object; found: {type_name(value)}")
    elif isnan(double_of(value)):
        raise CommandError(9, "w cannot be NaN")
    elif not 0 <= (count := to_long(value)) <= _MEMBER_COUNT_MAX:
        raise CommandError(
            9, f"w has to be a non-negative number and not greater than {_MEMBER_COUNT_MAX}; found: {count}"
        )


def _check_tags(tags: dict[str, Any]) -> None:
    if not tags:
        raise CommandError(9, "tagged write concern requires tags")
    for name, value in tags.items():
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            raise CommandError(
                9, f"tags must be a single level document with only number values; found: {name}: {to_string(value)}"
            )


def _check_timeout(path: str, value: Any) -> None:
    if not isinstance(value, bool) and isinstance(value, _NUMBERS) and to_long(value) > _TIMEOUT_MAX:
        raise CommandError(9, "wtimeout must be a 32-bit integer")


def check_source(path: str, value: Any) -> None:
    """Raise 2 for an unknown `provenance`."""
    if value not in _SOURCES:
        raise CommandError(2, f"Enumeration value '{value}' for field '{path}' is not a valid value.")


W: Final[Field[Any]] = Field("w", "any", None, check=_check_members)
J: Final = boolean("j")
FSYNC: Final = boolean("fsync")
TIMEOUT: Final[Field[Any]] = Field("wtimeout", "any", None, check=_check_timeout)
CONCERN: Final = Fields(
    FSYNC, J, TIMEOUT, W, Field("provenance", "string", None, check=check_source),
    *without_effect("any", "getLastError", "wElectionId", "wOpTime"), path="WriteConcernOptions",
)  # fmt: skip


def _check_together(path: str, value: dict[str, Any]) -> None:
    if truthy(value.get("j")) and truthy(value.get("fsync")):
        raise CommandError(9, "fsync and j options cannot be used together")


def _refuse(path: str, value: Any) -> None:
    raise CommandError(72, "Command does not support writeConcern")


WRITE_CONCERN: Final = document("writeConcern", CONCERN, check=_check_together)
_NOT_TAKEN: Final = document("writeConcern", CONCERN, check=_refuse)


def write_concern_of(command: str) -> Field[Any]:
    """Return the declaration of `writeConcern` for a command."""
    return WRITE_CONCERN if command in TAKEN_BY else _NOT_TAKEN


def shown(concern: dict[str, Any]) -> dict[str, Any]:
    """Return a write concern as replies show it, with `w`, `j`, `wtimeout` and `fsync`."""
    members: Any = W.of(concern)
    if isinstance(members, _NUMBERS):
        members = to_long(members)
    made = {"w": 1 if members is None else members}
    if J.of(concern) or (concern.get("j") is not None and not FSYNC.of(concern)):
        made["j"] = J.of(concern)
    timeout = TIMEOUT.of(concern)
    is_number = not isinstance(timeout, bool) and isinstance(timeout, _NUMBERS)
    made["wtimeout"] = to_long(timeout) if is_number else 0
    if FSYNC.of(concern):
        made["fsync"] = True
    return made


def unsatisfied(concern: dict[str, Any], source: str = "clientSupplied") -> bytes:
    """Return the raw `writeConcernError` element if one member cannot satisfy the write concern; otherwise empty."""
    wanted = concern.get("w", 1)
    if type(wanted) is str and wanted != "majority":
        code, message = 79, f"No write concern mode named '{wanted}' found in replica set configuration"
    elif type(wanted) is dict or (isinstance(wanted, _NUMBERS) and to_long(wanted) > 1):
        code, message = 100, "Not enough data-bearing nodes"
    else:
        return b""
    error = {
        "code": code, "codeName": code_name(code), "errmsg": message,
        "errInfo": {"writeConcern": {**shown(concern), "provenance": source}},
    }  # fmt: skip
    return encode({"writeConcernError": error})[4:-1]


def require_members(concern: dict[str, Any]) -> None:
    """Raise 2 for a write concern that only a member of a replica set can satisfy."""
    wanted = W.of(concern)
    if isinstance(wanted, _NUMBERS) and to_long(wanted) > 1:
        raise CommandError(2, "cannot use 'w' > 1 when a host is not replicated")
    if type(wanted) is dict or (type(wanted) is str and wanted not in ("", "majority")):
        raise CommandError(2, f"cannot use non-majority 'w' mode {wanted} when a host is not a member of a replica set")
