"""The commands that start, refresh and end logical sessions.

A session is an id that the client may make itself, so nothing is stored for a session without writes. Records of
retryable writes and transactions are stored with the writes and expire by themselves.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final
from uuid import uuid4

from bson.binary import UUID_SUBTYPE, Binary

from headrace import limits
from headrace.auth.names import UserName
from headrace.auth.privileges import CLUSTER
from headrace.dispatch.arguments import Fields, document, documents, string, uuid, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import SESSION
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE, LOGGED_IN, on_cluster
from headrace.dispatch.sessions import session_id, session_key, user_digest
from headrace.errors import CommandError


def start_session(context: CommandContext, request: Request) -> dict[str, Any]:
    """startSession: answer a new session id and the timeout in minutes."""
    identity = Binary(uuid4().bytes, UUID_SUBTYPE)
    return {"id": {"id": identity}, "timeoutMinutes": limits.SESSION_MINUTES}


def _listed(request: Request) -> list[dict[str, Any]]:
    """Return the documents in the command's own field."""
    documents: list[dict[str, Any]] = request.body[request.name]
    return documents


_UID: Final = without_effect("binData", "uid")
_USER: Final = Fields(string("db", required=True), string("user", required=True))
_ROLE: Final = Fields(string("db", required=True), string("role", required=True))
_NAMED: Final = Fields(uuid("id", required=True), *_UID)
_PATTERN: Final = Fields(document("lsid", _NAMED), *_UID, documents("roles", _ROLE), documents("users", _USER))


def _listing(name: str, fields: Fields, *, strict: bool = False) -> Fields:
    return Fields(documents(name, fields, required=True), strict=strict)


def refresh(context: CommandContext, request: Request) -> dict[str, Any]:
    """refreshSessions: only check the request. Open cursors and transactions have their own timeouts."""
    return {}


def end(context: CommandContext, request: Request) -> dict[str, Any]:
    """endSessions, killSessions: abort the transactions and close the cursors of these sessions. killSessions also ends
    their running commands, with error 11601.

    They must be sessions of the client's own user. killSessions may name another user's `uid` if the user has the
    privilege. Raise 13 otherwise.
    """
    any_user = request.name == "killSessions" and _may_kill_any(request)
    if request.client.uid is not None or not context.engine.restricts(request.client):  # without a login: none
        sessions = _ids(request, _listed(request), any_user=any_user)
        if request.name == "killSessions":
            _interrupt(context, sessions, _running(context, request))
        context.engine.end_sessions(sessions)
    return {}


def _running(context: CommandContext, request: Request) -> list[tuple[Request, bytes]]:
    """Return the unanswered commands with a session, and their sessions, except the given one."""
    others = (other for other in context.engine.shell.waiting_requests() if other is not request)
    return [(other, session) for other in others if (session := session_id(other)) is not None]


def _interrupt(context: CommandContext, sessions: Container[bytes], running: list[tuple[Request, bytes]]) -> None:
    for other, session in running:
        if session in sessions:
            context.engine.shell.interrupt(other.client.connection_id)


def _may_kill_any(request: Request) -> bool:
    grants = request.client.grants
    return grants is not None and grants.permits(CLUSTER, _KILL_ANY_SESSION)


def end_all(context: CommandContext, request: Request) -> dict[str, Any]:
    """killAllSessions, killAllSessionsByPattern: end the sessions that patterns name, directly or by user, with their
    running commands; without patterns, all. A pattern names a user by the digest `uid`, or by `users`."""
    patterns = _listed(request)
    named = [pattern["lsid"] for pattern in patterns if pattern.get("lsid") is not None]
    listed = [item for pattern in patterns for item in pattern.get("users") or [pattern] if "user" in item]
    users = [user_digest(UserName(item["user"], item["db"])) for item in listed]
    users += [bytes(pattern["uid"]) for pattern in patterns if pattern.get("uid") is not None]
    running = _running(context, request)
    if not named and not users:
        _interrupt(context, [session for _, session in running], running)
        context.engine.end_sessions(None)
        return {}
    ended = _ids(request, named, any_user=True)
    for transaction in list(context.store.transactions.open.values()):
        if transaction.lsid is not None and transaction.lsid["uid"] in users:
            ended.append(transaction.session)
    for cursor in context.cursors:
        owner = context.cursors.owners.get(cursor.id)
        if owner is not None and cursor.session is not None and user_digest(owner.name) in users:
            ended.append(cursor.session)
    ended += [session for other, session in running if other.client.uid in users]
    _interrupt(context, ended, running)
    context.engine.end_sessions(ended)
    return {}


def _ids(request: Request, sessions: list[dict[str, Any]], *, any_user: bool) -> list[bytes]:
    """Return the sessions' keys: see `session_id`. Raise 13 for another user's session unless `any_user`."""
    ids = []
    for session in sessions:
        identity, uid = session["id"], session.get("uid")
        user = request.client.uid
        if user is not None and isinstance(uid, bytes) and uid != user:
            if not any_user:
                raise CommandError(13, "Unauthorized to set user digest in LogicalSessionId")
            user = bytes(uid)[: len(user)]
        ids.append(bytes(identity) if user is None else session_key(bytes(identity), user))
    return ids


_KILL_ANY_SESSION: Final = frozenset({"killAnySession"})

COMMANDS: Final = (
    Command("endSessions", end, _listing("endSessions", SESSION, strict=True), pauses=True, requires=ANYONE),
    Command(
        "killAllSessions",
        end_all,
        _listing("killAllSessions", _USER),
        pauses=True,
        requires=on_cluster("killAnySession"),
    ),
    Command(
        "killAllSessionsByPattern",
        end_all,
        _listing("killAllSessionsByPattern", _PATTERN),
        pauses=True,
        requires=on_cluster("killAnySession"),
    ),
    Command("killSessions", end, _listing("killSessions", SESSION), pauses=True, requires=LOGGED_IN),
    Command("refreshSessions", refresh, _listing("refreshSessions", SESSION, strict=True), requires=LOGGED_IN),
    Command("startSession", start_session, Fields(strict=False), requires=LOGGED_IN),
)
