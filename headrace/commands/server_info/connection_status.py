"""Commands about the connection and its user: ping, connectionStatus, whatsmyuri, logout, usersInfo, rolesInfo.

Headrace has no users: whoever reaches the socket may do everything, and everybody is logged out.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields, boolean
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request

SHOW_PRIVILEGES: Final = boolean("showPrivileges")


def ping(context: CommandContext, request: Request) -> bytes:
    """Answers; the reply's operationTime is where a stream would start now."""
    return b""


def connection_status(context: CommandContext, request: Request) -> dict[str, Any]:
    """connectionStatus: nobody is authenticated, as there are no users."""
    information: dict[str, Any] = {"authenticatedUsers": [], "authenticatedUserRoles": []}
    if SHOW_PRIVILEGES.of(request.body):
        information["authenticatedUserPrivileges"] = []
    return {"authInfo": information}


def whats_my_uri(context: CommandContext, request: Request) -> dict[str, Any]:
    """whatsmyuri: the client's end of the connection."""
    return {"you": request.client.address}


def logout(context: CommandContext, request: Request) -> dict[str, Any]:
    """logout: succeeds; there is no authentication."""
    return {}


def users_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """usersInfo: no users."""
    return {"users": []}


def roles_info(context: CommandContext, request: Request) -> dict[str, Any]:
    """rolesInfo: no roles."""
    return {"roles": []}


COMMANDS: Final = (
    Command("connectionStatus", connection_status, Fields(SHOW_PRIVILEGES, strict=False)),
    Command("logout", logout, Fields(strict=False)),
    Command("ping", ping, Fields(strict=False)),
    Command("rolesInfo", roles_info, Fields(strict=False)),
    Command("usersInfo", users_info, Fields(strict=False)),
    Command("whatsmyuri", whats_my_uri, Fields(strict=False)),
)
