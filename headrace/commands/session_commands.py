"""Logical sessions as clients start, refresh and end them.

A session is an id that the client may make itself, so there is nothing to keep for one that did nothing;
what a session did (retryable writes, transactions) is kept where it was done and ends by its own time.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from bson.binary import UUID_SUBTYPE, Binary

from headrace import limits
from headrace.commands.command import Command
from headrace.commands.facts import ServerFacts
from headrace.commands.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name


def start_session(engine: ServerFacts, request: Request) -> dict[str, Any]:
    identity = Binary(uuid4().bytes, UUID_SUBTYPE)
    return {"id": {"id": identity}, "timeoutMinutes": limits.SESSION_MINUTES}


def take_list(engine: ServerFacts, request: Request) -> dict[str, Any]:
    """endSessions, refreshSessions and the kill commands: the list is checked, and nothing is kept of it."""
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
    return {}


COMMANDS: Final = (
    Command("endSessions", take_list),
    Command("killAllSessions", take_list),
    Command("killAllSessionsByPattern", take_list),
    Command("killSessions", take_list),
    Command("refreshSessions", take_list),
    Command("startSession", start_session),
)
