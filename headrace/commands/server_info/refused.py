"""Commands of MongoDB that Headrace knows and will not answer, with the error each gets and why.

A name that is in no table at all gets error 59, as in MongoDB: so do the commands of a sharding router
(`isdbgrid`), of Atlas (`atlasVersion`), and those that release 8.2 no longer has.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError

_NO_USERS: Final = "Headrace has no users and no roles: keep its address out of reach instead"
_NO_LOGIN: Final = "Authentication failed."
_ONE_MEMBER: Final = "Headrace is a set of one member"

REFUSED: Final[dict[str, tuple[int, str]]] = {
    "authenticate": (18, _NO_LOGIN),
    "createRole": (115, _NO_USERS),
    "createUser": (115, _NO_USERS),
    "dropAllRolesFromDatabase": (115, _NO_USERS),
    "dropAllUsersFromDatabase": (115, _NO_USERS),
    "dropRole": (115, _NO_USERS),
    "dropUser": (115, _NO_USERS),
    "fsyncUnlock": (20, "fsyncUnlock called when not locked"),
    "grantPrivilegesToRole": (115, _NO_USERS),
    "grantRolesToRole": (115, _NO_USERS),
    "grantRolesToUser": (115, _NO_USERS),
    "mapReduce": (115, "mapReduce is not supported: Headrace runs no JavaScript; use an aggregation"),
    "replSetHeartbeat": (115, _ONE_MEMBER),
    "replSetRequestVotes": (115, _ONE_MEMBER),
    "replSetStepUp": (125, "Election failed."),
    "replSetUpdatePosition": (115, _ONE_MEMBER),
    "revokePrivilegesFromRole": (115, _NO_USERS),
    "revokeRolesFromRole": (115, _NO_USERS),
    "revokeRolesFromUser": (115, _NO_USERS),
    "saslContinue": (17, "No SASL session state found"),
    "saslStart": (18, _NO_LOGIN),
    "setDefaultRWConcern": (115, "The default read and write concerns cannot be changed"),
    "updateRole": (115, _NO_USERS),
    "updateUser": (115, _NO_USERS),
}


def _refuse(code: int, message: str) -> Any:
    def run(context: CommandContext, request: Request) -> dict[str, Any]:
        raise CommandError(code, message)

    run.__doc__ = f"Refused: {message}"
    return run


COMMANDS: Final = tuple(
    Command(name, _refuse(code, message), Fields(strict=False)) for name, (code, message) in REFUSED.items()
)
