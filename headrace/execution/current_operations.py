"""What is in progress, as `$currentOp` and `currentOp` list it, and the sessions that have something open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from bson import Binary, Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.dispatch.access import CursorOwner
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request, shown_body
from headrace.dispatch.server_info import host_of
from headrace.dispatch.sessions import NO_USER, lsid_of, session_id, user_digest
from headrace.store import session_records
from headrace.store.session_records import SESSION_BYTES
from headrace.values.bson import decode

_KINDS: Final = {"delete": "remove", "find": "query", "getMore": "getmore", "insert": "insert", "update": "update"}
"""`op` of the commands that have one of their own; of all others it is `command`."""


def operations(context: CommandContext, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of `$currentOp`: `idleCursors` and `idleSessions` of `spec` decide what is included."""
    everybody = not context.engine.authorizes or bool(spec.get("allUsers"))
    uid = request.client.uid
    yield _operation(context, request)
    for other in context.engine.shell.waiting_requests():
        if other is not request and (everybody or other.client.uid == uid):
            yield _operation(context, other)
    if spec.get("idleSessions", True):
        for transaction in _transactions(context):
            if everybody or transaction["lsid"]["uid"] == uid:
                yield transaction
    if spec.get("idleCursors"):
        for cursor, owner in _cursors(context):
            if everybody or (owner is not None and user_digest(owner.name) == uid):
                yield cursor


def _operation(context: CommandContext, request: Request) -> dict[str, Any]:
    client, body = request.client, request.body
    now_ms = context.clock.monotonic_ms()
    running_ms = max(0.0, now_ms - getattr(request, "since_ms", now_ms))
    name = body.get(request.name)
    operation: dict[str, Any] = {
        "type": "op", "host": host_of(context.engine, client), "desc": f"conn{client.connection_id}",
        "connectionId": client.connection_id, "client": client.address,
    }  # fmt: skip
    if client.metadata is not None:
        application = client.metadata.get("application")
        if type(application) is dict and "name" in application:
            operation["appName"] = application["name"]
        operation["clientMetadata"] = client.metadata
    if client.grants is not None:
        operation["effectiveUsers"] = [{"user": client.grants.name.user, "db": client.grants.name.db}]
    if request.name == "getMore":
        name = body.get("collection")
    operation |= {
        "active": True, "currentOpTime": _text(context.clock.now_ms()), "opid": client.connection_id,
        "secs_running": Int64(running_ms // 1000), "microsecs_running": Int64(running_ms * 1000),
        "op": _KINDS.get(request.name, "command"),
        "ns": f"{request.db}.{name}" if type(name) is str else f"{request.db}.$cmd",
        "command": shown_body(request),
    }  # fmt: skip
    if "lsid" in body:
        operation["lsid"] = body["lsid"]
    return operation


def _text(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _transactions(context: CommandContext) -> Iterator[dict[str, Any]]:
    now_ms = context.clock.monotonic_ms()
    for transaction in context.store.transactions.open.values():
        if len(transaction.session) != 16:  # a snapshot's, which is nobody's session
            continue
        yield {
            "type": "idleSession", "desc": "inactive transaction", "active": False,
            "lsid": transaction.lsid or _lsid(transaction.session),
            "transaction": {
                "parameters": {"txnNumber": Int64(transaction.number), "autocommit": False},
                "timeOpenMicros": Int64((now_ms - transaction.started_ms) * 1000),
            },
        }  # fmt: skip


def _cursors(context: CommandContext) -> Iterator[tuple[dict[str, Any], CursorOwner | None]]:
    for cursor in context.cursors:
        shown = {
            "type": "idleCursor", "ns": cursor.namespace,
            "cursor": {"cursorId": Int64(cursor.id), "noCursorTimeout": cursor.no_timeout},
        }  # fmt: skip
        owner = context.cursors.owners.get(cursor.id)
        if cursor.session is not None:
            shown["lsid"] = _lsid(cursor.session) if owner is None else owner.lsid
        yield shown, owner


def _lsid(session: bytes) -> dict[str, Any]:
    return {"id": Binary(session, 4), "uid": NO_USER}


def sessions(context: CommandContext, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sessions that have something open or have written, and the one that asks, with when they were last used."""
    clock = context.clock
    now_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()
    used: dict[bytes, int] = {}
    start: bytes | None = b""
    while start is not None:
        times, following = session_records.used(context.view, start, limits.PRUNE_COUNT_MAX)
        used |= {key: used_ms for key, used_ms in times.items() if len(key) == SESSION_BYTES}
        start = following or None
    names: dict[bytes, dict[str, Any] | None] = {}
    for item in context.cursors:
        if item.session is not None:
            used[item.session] = int(now_ms - (monotonic_ms - item.used_ms))
            owner = context.cursors.owners.get(item.id)
            names[item.session] = None if owner is None else owner.lsid
    for session, transaction in context.store.transactions.open.items():
        if len(session) == SESSION_BYTES:
            used[session] = now_ms
            names[session] = transaction.lsid
    requesting = session_id(request)
    if requesting is not None:
        used[requesting] = now_ms
        names[requesting] = lsid_of(request)
    everybody = not context.engine.authorizes or bool(spec.get("allUsers"))
    for session, used_ms in used.items():
        lsid = names.get(session) or _stored_lsid(context, session) or _lsid(session)
        if everybody or lsid["uid"] == request.client.uid:
            yield {"_id": lsid, "lastUse": DatetimeMS(used_ms)}


def _stored_lsid(context: CommandContext, session: bytes) -> dict[str, Any] | None:
    """The `lsid` of a session whose key is not its id: of a user's, on a server with authorization."""
    if not context.engine.authorizes:
        return None
    view = context.view
    record = view.kv.get(session, db=view.tables["sessions"])
    return None if record is None else decode(record).get("lsid")
