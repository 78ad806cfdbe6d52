"""Commands of monitoring tools: connPoolStats, getDiagnosticData, lockInfo, logApplicationMessage.

The server has no connections to other servers and no locks between threads, so these are reported as none.
"""

from __future__ import annotations

from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.commands.server_info import server_status
from headrace.dispatch.arguments import Fields, string
from headrace.dispatch.command import Command, administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_cluster
from headrace.errors import CommandError

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


COMMANDS: Final = (
    Command("connPoolStats", connection_pools, Fields(strict=False), requires=on_cluster("connPoolStats")),
    administrative(
        "getDiagnosticData",
        diagnostic_data,
        actions=("replSetGetStatus", "serverStatus"),
    ),
    administrative("lockInfo", locks, actions=("serverStatus",)),
    administrative("logApplicationMessage", log_message, MESSAGE, strict=True, actions=("applicationMessage",)),
)
