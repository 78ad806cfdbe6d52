"""currentOp and killOp: operations in progress, which are running and waiting commands, transactions and cursors.

Operations in progress include long reads that run in turns, waiting commands (a getMore for events, a write for a
transaction), and the command itself. A connection runs one operation at a time, so the connection's number is also the
operation's number.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.requirements import others
from headrace.dispatch.arguments import Fields, boolean, number
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import GENERIC
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.current_operations import operations
from headrace.query.match import parse_filter

ALL: Final = boolean("$all")
ONLY_OF_USER: Final = boolean("$ownOps")
OP: Final = number("op")
_NO_FILTER: Final = GENERIC.by_name.keys() | {"$all", "$ownOps", "currentOp"}


def current_op(context: CommandContext, request: Request) -> dict[str, Any]:
    """currentOp: answer the operations that match the command's other fields."""
    matches = parse_filter({name: value for name, value in request.body.items() if name not in _NO_FILTER})
    in_progress = operations(
        context,
        request,
        {"idleSessions": True, "idleCursors": ALL.of(request.body), "allUsers": not ONLY_OF_USER.of(request.body)},
    )
    return {"inprog": [item for item in in_progress if matches(item)]}


def kill_op(context: CommandContext, request: Request) -> dict[str, Any]:
    """killOp: end the operation with this number with error 11601. As in MongoDB, success is not reported."""
    number = OP.of(request.body)
    if number is None:
        raise CommandError(4, 'Missing expected field "op"')
    context.engine.shell.interrupt(number)
    return {"info": "attempting to kill op"}


COMMANDS: Final = (
    Command(
        "currentOp", current_op, Fields(ALL, ONLY_OF_USER, strict=False), admin_only=True, requires=others.CURRENT_OP
    ),
    Command("killOp", kill_op, Fields(OP, strict=False), admin_only=True, requires=others.KILL_OP),
)
