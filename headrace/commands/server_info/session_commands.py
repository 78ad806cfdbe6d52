"""Logical sessions as clients start, refresh and end them.

A session is an id that the client may make itself, so nothing is stored for one that has not written;
records of retryable writes and transactions are stored with the writes and expire by themselves.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from bson.binary import UUID_SUBTYPE, Binary

from headrace import limits
from headrace.dispatch.arguments import Fields, array
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request


def start_session(context: CommandContext, request: Request) -> dict[str, Any]:
    """startSession: a new session id and the timeout in minutes."""
    identity = Binary(uuid4().bytes, UUID_SUBTYPE)
    return {"id": {"id": identity}, "timeoutMinutes": limits.SESSION_MINUTES}


def _listed(request: Request) -> list[dict[str, Any]]:
    """The documents that the command's own field lists."""
    documents: list[dict[str, Any]] = request.body[request.name]
    return documents


def _listing(name: str) -> Fields:
    return Fields(array(name, "object", required=True), strict=False)


def refresh(context: CommandContext, request: Request) -> dict[str, Any]:
    """refreshSessions: checked only; what a session has open has timeouts of its own."""
    return {}


def end(context: CommandContext, request: Request) -> dict[str, Any]:
    """endSessions, killSessions: abort what these sessions have open, and close their cursors."""
    context.engine.end_sessions(_ids(_listed(request)))
    return {}


def end_all(context: CommandContext, request: Request) -> dict[str, Any]:
    """killAllSessions and ...ByPattern: the sessions that patterns name; as there are no users, any other means all."""
    named = [pattern["lsid"] for pattern in _listed(request) if type(pattern.get("lsid")) is dict]
    context.engine.end_sessions(_ids(named) if named else None)
    return {}


def _ids(sessions: list[dict[str, Any]]) -> list[bytes]:
    identities = [session.get("id") for session in sessions]
    return [bytes(item) for item in identities if type(item) is Binary and item.subtype == UUID_SUBTYPE]


COMMANDS: Final = (
    Command("endSessions", end, _listing("endSessions"), pauses=True),
    Command("killAllSessions", end_all, _listing("killAllSessions"), pauses=True),
    Command("killAllSessionsByPattern", end_all, _listing("killAllSessionsByPattern"), pauses=True),
    Command("killSessions", end, _listing("killSessions"), pauses=True),
    Command("refreshSessions", refresh, _listing("refreshSessions")),
    Command("startSession", start_session, Fields(strict=False)),
)
