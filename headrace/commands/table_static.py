"""The commands about the server itself and its users, by name, sorted; aliases are not listed."""

from __future__ import annotations

from typing import Final

from headrace.commands.server_info import (
    administration,
    build_info,
    connection_status,
    hello,
    monitoring,
    parameters,
    refused,
    replica_set,
    server_status,
    session_commands,
)
from headrace.commands.users import changing_roles, changing_users, logging_in, merging, showing
from headrace.dispatch.command import Command

_FAMILIES: Final = (
    administration,
    build_info,
    changing_roles,
    changing_users,
    connection_status,
    hello,
    logging_in,
    merging,
    monitoring,
    parameters,
    refused,
    replica_set,
    server_status,
    session_commands,
    showing,
)

STATIC_COMMANDS: Final[dict[str, Command]] = dict(
    sorted(((command.name, command) for family in _FAMILIES for command in family.COMMANDS), key=lambda pair: pair[0])
)
