"""All commands by name, sorted: those about the server itself, and those about data."""

from __future__ import annotations

from typing import Final

from headrace.commands import (
    aggregate,
    arrow_changes,
    bulk_write,
    collmod,
    count,
    create,
    delete,
    drop,
    explain,
    failpoints,
    find,
    findandmodify,
    getmore,
    images,
    in_progress,
    indexes,
    insert,
    killcursors,
    listing,
    transactions,
    update,
)
from headrace.commands.command import Command
from headrace.commands.table_static import STATIC_COMMANDS

_ONE: Final = (
    aggregate, arrow_changes, bulk_write, collmod, create, delete, explain, find, findandmodify, getmore, insert,
    killcursors, update,
)  # fmt: skip
_MANY: Final = (count, drop, images, in_progress, indexes, listing, transactions)

DATA_COMMANDS: Final = sorted(
    [module.COMMAND for module in _ONE] + [command for module in _MANY for command in module.COMMANDS],
    key=lambda command: command.name,
)


def _by_name() -> dict[str, Command]:
    """Every spelling of every command."""
    table: dict[str, Command] = {}
    for command in (*STATIC_COMMANDS.values(), *DATA_COMMANDS):
        for name in (command.name, *command.aliases):
            table[name] = command
    return dict(sorted(table.items()))


COMMANDS: Final = _by_name()
TEST_COMMANDS: Final = {command.name: command for command in failpoints.COMMANDS}
"""Those that are only there with `--enable-test-commands`."""
