"""Commands of monitoring tools: connPoolStats, currentOp, getDiagnosticData, killOp, lockInfo, logApplicationMessage.

The server has no connections to other servers and no locks between threads, so these are reported as none. Operations
in progress include long reads that run in turns, waiting commands (a getMore for events, a write for a transaction),
and the command itself. A connection runs one operation at a time, so the connection's number is also the operation's.
"""

from __future__ import annotations

from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.commands.requirements import pipelines
from headrace.commands.server_info import server_status
from headrace.dispatch.arguments import Fields, boolean, number, string
from headrace.dispatch.command import Command, administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import GENERIC
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_cluster
from headrace.errors import CommandError
from headrace.execution.current_operations import operations
from headrace.query.match import parse_filter

MESSAGE: Final = string("logApplicationMessage", required=True)


def connection_pools(context: CommandContext, request: Request) -> dict[str, Any]:
    """connPoolStats: answer that there are no connections to other servers."""
    counts = ("totalInUse", "totalAvailable", "totalLeased", "totalCreated", "totalRefreshing", "totalRefreshed")
    return {
        "numClientConnections": 0, "numAScopedConnections": 0, **dict.fromkeys(counts, 0), "pools": {}, "hosts": {},
        "replicaSets": {},
    }  # fmt: skip


def diagnostic_data(context: CommandContext, request: Request) -> dict[str, Any]:
    """getDiagnosticData: answer serverStatus with its times. MongoDB answers the last data written to its files."""
    began_ms = context.clock.now_ms()
    status = server_status.run(context, request)
    return {
        "data": {
            "start": DatetimeMS(began_ms),
            "serverStatus": {"start": DatetimeMS(began_ms), **status, "end": DatetimeMS(context.clock.now_ms())},
            "end": DatetimeMS(context.clock.now_ms()),
        }
    }


def locks(context: CommandContext, request: Request) -> dict[str, Any]:
    """lockInfo: answer no locks. `currentOp` shows the writes that wait for a transaction."""
    return {"lockInfo": []}


def log_message(context: CommandContext, request: Request) -> dict[str, Any]:
    """logApplicationMessage: write the client's message to the audit log. Raise 2 if it is too long."""
    text = MESSAGE.of(request.body)
    if len(text) > limits.APPLICATION_MESSAGE_LENGTH_MAX:
        raise CommandError(2, f"the message has more than {limits.APPLICATION_MESSAGE_LENGTH_MAX} characters")
    context.engine.access.note("applicationMessage", request.client, {"msg": text}, 0)
    return {}


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
    Command("connPoolStats", connection_pools, Fields(strict=False), requires=on_cluster("connPoolStats")),
    Command(
        "currentOp", current_op, Fields(ALL, ONLY_OF_USER, strict=False), admin_only=True, requires=pipelines.CURRENT_OP
    ),
    administrative(
        "getDiagnosticData",
        diagnostic_data,
        actions=("replSetGetStatus", "serverStatus"),
    ),
    Command("killOp", kill_op, Fields(OP, strict=False), admin_only=True, requires=pipelines.KILL_OP),
    administrative("lockInfo", locks, actions=("serverStatus",)),
    administrative("logApplicationMessage", log_message, MESSAGE, strict=True, actions=("applicationMessage",)),
)
