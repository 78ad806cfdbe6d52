"""Logical sessions as clients start, refresh and end them.

A session is an id that the client may make itself, so there is nothing to keep for one that did nothing;
what a session did (retryable writes, transactions) is kept where it was done and ends by its own time.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from bson.binary import UUID_SUBTYPE, Binary

from headrace import limits
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name


def start_session(context: CommandContext, request: Request) -> dict[str, Any]:
    identity = Binary(uuid4().bytes, UUID_SUBTYPE)
    return {"id": {"id": identity}, "timeoutMinutes": limits.SESSION_MINUTES}


def _listed(request: Request) -> list[dict[str, Any]]:
    """The documents that the command's own field lists; raises 14 for anything else."""
    field = next(iter(request.body))
    sessions = request.body[field]
    if not isinstance(sessions, list):
        raise CommandError(
            14, f"BSON field '{field}.{field}' is the wrong type '{type_name(sessions)}', expected type 'array'"
        )
    for index, session in enumerate(sessions):
        if not isinstance(session, dict):
            raise CommandError(
                14,
                f"BSON field '{field}.{index}' is the wrong type '{type_name(session)}', expected type 'object'",
            )
    return sessions


def refresh(context: CommandContext, request: Request) -> dict[str, Any]:
    """What a session has open ends by its own time, so there is nothing to put off."""
    _listed(request)
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
    Command("endSessions", end),
    Command("killAllSessions", end_all),
    Command("killAllSessionsByPattern", end_all),
    Command("killSessions", end),
    Command("refreshSessions", refresh),
    Command("startSession", start_session),
)
