"""All commands by name, sorted: those about the server itself, and those about data."""

from __future__ import annotations

from typing import Final

from headrace.commands.catalog import coll_mod, create, drop, indexes, listing
from headrace.commands.maintenance import backup, capping, plan_cache, profiling, query_settings, sizes, validate
from headrace.commands.reading import aggregate, arrow_changes, count, explain, find, get_more, kill_cursors
from headrace.commands.server_info import (
    administration,
    build_info,
    cluster_parameters,
    configure_fail_point,
    hello,
    monitoring,
    parameters,
    refused,
    replica_set,
    server_status,
    session_commands,
)
from headrace.commands.users import changing_roles, changing_users, logging_in, merging, showing
from headrace.commands.writing import apply_ops, bulk_write, delete, end_transaction, find_and_modify, insert, update
from headrace.dispatch.command import Command
from headrace.dispatch.options import ServerOptions

_ONE: Final = (
    aggregate, apply_ops, arrow_changes, backup, bulk_write, coll_mod, create, delete, explain, find, find_and_modify,
    get_more, insert, kill_cursors, update,
)  # fmt: skip
_MANY: Final = (
    capping, cluster_parameters, count, drop, end_transaction, indexes, listing, plan_cache, profiling, query_settings,
    sizes, validate,
)  # fmt: skip

_OF_THE_SERVER: Final = (
    administration, build_info, changing_roles, changing_users, hello, logging_in, merging,
    monitoring, parameters, refused, replica_set, server_status, session_commands, showing,
)  # fmt: skip

STATIC_COMMANDS: Final = {command.name: command for module in _OF_THE_SERVER for command in module.COMMANDS}
"""The commands about the server itself and its users."""


def _by_name() -> dict[str, Command]:
    """Return all commands by name, with every spelling."""
    of_data = [module.COMMAND for module in _ONE] + [command for module in _MANY for command in module.COMMANDS]
    every = (*STATIC_COMMANDS.values(), *of_data)
    return dict(sorted((name, command) for command in every for name in (command.name, *command.aliases)))


COMMANDS: Final = _by_name()
TEST_COMMANDS: Final = {command.name: command for command in configure_fail_point.COMMANDS}
"""Commands that exist only with `--enable-test-commands`."""


def commands_for(options: ServerOptions) -> dict[str, Command]:
    """Return the commands of a server with these options."""
    return COMMANDS | TEST_COMMANDS if options.enable_test_commands else COMMANDS
