"""All commands by name, sorted: those about the server itself, and those about data."""

from __future__ import annotations

from typing import Final

from headrace.commands.catalog import coll_mod, create, drop, indexes, listing
from headrace.commands.maintenance import (
    backup,
    capping,
    plan_cache,
    profiling,
    query_settings,
    sizes,
    validate,
    validate_metadata,
)
from headrace.commands.reading import aggregate, arrow_changes, count, explain, find, get_more, kill_cursors
from headrace.commands.server_info import (
    api_commands,
    cluster_parameters,
    configure_fail_point,
    current_op,
    default_concerns,
)
from headrace.commands.table_static import STATIC_COMMANDS
from headrace.commands.writing import apply_ops, bulk_write, delete, end_transaction, find_and_modify, insert, update
from headrace.dispatch.command import Command
from headrace.dispatch.options import ServerOptions

_ONE: Final = (
    aggregate, apply_ops, arrow_changes, backup, bulk_write, coll_mod, create, delete, explain, find, find_and_modify,
    get_more, insert, kill_cursors, update,
)  # fmt: skip
_MANY: Final = (
    capping, cluster_parameters, count, current_op, default_concerns, drop, end_transaction, indexes, listing,
    plan_cache, profiling, query_settings, sizes, validate, validate_metadata,
)  # fmt: skip

DATA_COMMANDS: Final = sorted(
    [module.COMMAND for module in _ONE] + [command for module in _MANY for command in module.COMMANDS],
    key=lambda command: command.name,
)


def _by_name() -> dict[str, Command]:
    """Return all commands by name, with every spelling."""
    table: dict[str, Command] = {}
    for command in (*STATIC_COMMANDS.values(), *DATA_COMMANDS):
        for name in (command.name, *command.aliases):
            table[name] = command
    return dict(sorted(table.items()))


COMMANDS: Final = _by_name()
TEST_COMMANDS: Final = {command.name: command for command in (*api_commands.COMMANDS, *configure_fail_point.COMMANDS)}
"""Commands that exist only with `--enable-test-commands`."""


def commands_for(options: ServerOptions) -> dict[str, Command]:
    """Return the commands of a server with these options."""
    return COMMANDS | TEST_COMMANDS if options.enable_test_commands else COMMANDS
