"""Commands about the connection: ping, whatsmyuri."""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE


def ping(context: CommandContext, request: Request) -> bytes:
    """ping: answer. A change stream opened now would start at the reply's operationTime."""
    return b""


def whats_my_uri(context: CommandContext, request: Request) -> dict[str, Any]:
    """whatsmyuri: answer the client's address."""
    return {"you": request.client.address}


COMMANDS: Final = (
    Command("ping", ping, Fields(), requires=ANYONE),
    Command("whatsmyuri", whats_my_uri, Fields(strict=False), requires=ANYONE),
)
