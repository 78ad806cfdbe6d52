"""The operations in progress, as `$currentOp` and `currentOp` list them, and the sessions in use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from bson import Binary, Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.cursors.change_cursor import ChangeCursor
from headrace.dispatch.access import PROGRAM, CursorOwner
from headrace.dispatch.context import CommandContext
from headrace.dispatch.profiling.profiler import KINDS_SHOWN
from headrace.dispatch.request import ClientInfo, Request, shown_body
from headrace.dispatch.server_info import host_of
from headrace.dispatch.sessions import NO_USER, lsid_of, session_id, user_digest
from headrace.store import session_records
from headrace.store.session_records import SESSION_BYTES
from headrace.values import position
from headrace.values.bson import decode


def operations(context: CommandContext, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the documents of `$currentOp`. In `spec`, `idleCursors` and `idleSessions` decide what is included."""
    everybody = not context.engine.restricts(request.client) or bool(spec.get("allUsers"))
    uid = request.client.uid
    yield _operation(context, request)
    used: set[int] = set()
    for other in context.engine.shell.waiting_requests():
        if other is request:
            continue
        cursor = _cursor_of(context, other)
        if cursor is not None:
            used.add(cursor.id)
        if everybody or other.client.uid == uid:
            yield _operation(context, other) | ({} if cursor is None else _cursor(context, cursor))
    if everybody:
        yield from _builds(context, request)
    if spec.get("idleSessions", True):
        for transaction in _transactions(context):
            if everybody or transaction["lsid"]["uid"] == uid:
                yield transaction
    if spec.get("idleCursors"):
        for cursor in context.cursors:
            owner = context.cursors.owners.get(cursor.id)
            if cursor.id not in used and (everybody or (owner is not None and user_digest(owner.name) == uid)):
                yield _idle_cursor(context, cursor, owner)


def _operation(context: CommandContext, request: Request) -> dict[str, Any]:
    client, body = request.client, request.body
    now_ms = context.clock.monotonic_ms()
    running_ms = max(0.0, now_ms - getattr(request, "since_ms", now_ms))
    name = body.get(request.name)
    operation: dict[str, Any] = {
        "type": "op", "host": host_of(context.engine, client), "desc": f"conn{client.connection_id}",
        "connectionId": client.connection_id, "client": client.address, **_application(client),
    }  # fmt: skip
    if client.grants is not None:
        operation["effectiveUsers"] = [{"user": client.grants.name.user, "db": client.grants.name.db}]
    if request.name == "getMore":
        name = body.get("collection")
    operation |= {
        "active": True, "currentOpTime": _text(context.clock.now_ms()), "opid": client.connection_id,
        "secs_running": Int64(running_ms // 1000), "microsecs_running": Int64(running_ms * 1000),
        "op": KINDS_SHOWN.get(request.name, "command"),
        "ns": f"{request.db}.{name}" if type(name) is str else f"{request.db}.$cmd",
        "command": shown_body(request),
    }  # fmt: skip
    if "lsid" in body:
        operation["lsid"] = body["lsid"]
    return operation


def _builds(context: CommandContext, request: Request) -> Iterator[dict[str, Any]]:
    """Yield the index builds with their progress."""
    catalog = context.store.catalog
    for number, build in enumerate(catalog.builds.values()):
        collection = catalog.by_number[build.collection_number]
        total = max(context.view.count(collection) if context.view.is_counted(collection) else 0, build.done)
        yield {
            "type": "op", "host": host_of(context.engine, request.client),
            "desc": f"IndexBuildsCoordinatorMongod-{number}", "active": True,
            "currentOpTime": _text(context.clock.now_ms()), "op": "command", "ns": collection.namespace,
            "command": {
                "createIndexes": collection.name, "indexes": [index.spec for index in build.indexes],
                "buildUUID": Binary(build.uuid, 4), "$db": collection.database,
            },
            "msg": f"Index Build: scanning collection Index Build: scanning collection: {build.done}/{total}",
            "progress": {"done": build.done, "total": total},
        }  # fmt: skip


def _application(client: ClientInfo) -> dict[str, Any]:
    """Return the client's metadata and application name, as its driver sent them."""
    if client.metadata is None:
        return {}
    application = client.metadata.get("application")
    name = {"appName": application["name"]} if type(application) is dict and "name" in application else {}
    return {**name, "clientMetadata": client.metadata}


def _text(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _transactions(context: CommandContext) -> Iterator[dict[str, Any]]:
    now_ms = context.clock.monotonic_ms()
    for transaction in context.store.transactions.open.values():
        if len(transaction.session) != 16:  # of a snapshot, not of a client's session
            continue
        yield {
            "type": "idleSession", "desc": "inactive transaction", "active": False,
            "lsid": transaction.lsid or _lsid(transaction.session),
            "transaction": {
                "parameters": {"txnNumber": Int64(transaction.number), "autocommit": False},
                "timeOpenMicros": Int64((now_ms - transaction.started_ms) * 1000),
            },
        }  # fmt: skip


def _cursor_of(context: CommandContext, request: Request) -> Any:
    """Return the open cursor that a getMore reads or waits on; None for other commands."""
    if request.name != "getMore":
        return None
    return context.cursors.peek(request.cursor.id if request.cursor is not None else request.body["getMore"])


def _idle_cursor(context: CommandContext, cursor: Any, owner: CursorOwner | None) -> dict[str, Any]:
    client = cursor.record.client
    shown = {
        "type": "idleCursor", "host": host_of(context.engine, client), "ns": cursor.namespace,
        "client": client.address, **_application(client),
    }  # fmt: skip
    if owner is not None and owner.name != PROGRAM:
        shown["effectiveUsers"] = [{"user": owner.name.user, "db": owner.name.db}]
    if cursor.session is not None:
        shown["lsid"] = _lsid(cursor.session) if owner is None or owner.lsid is None else owner.lsid
    return shown | _cursor(context, cursor)


def _cursor(context: CommandContext, cursor: Any) -> dict[str, Any]:
    """Return the field `cursor` as MongoDB shows it and, for a stream, `changeStream` with its position."""
    record, now_ms, monotonic_ms = cursor.record, context.clock.now_ms(), context.clock.monotonic_ms()
    is_stream = cursor.is_change_stream
    shown: dict[str, Any] = {
        "cursor": {
            "cursorId": Int64(cursor.id),
            "createdDate": DatetimeMS(int(now_ms - (monotonic_ms - record.created_ms))),
            "lastAccessDate": DatetimeMS(int(min(now_ms, now_ms - (monotonic_ms - cursor.used_ms)))),
            "nDocsReturned": Int64(record.document_count),
            "nBatchesReturned": Int64(record.batch_count),
            "noCursorTimeout": cursor.no_timeout,
            "tailable": is_stream or cursor.tails,
            "awaitData": is_stream or cursor.awaits,
            "originatingCommand": {  # without the fields that drivers add to every command
                name: value for name, value in decode(record.command).items() if name not in ("$clusterTime", "lsid")
            },
        }
    }
    if is_stream:
        shown["changeStream"] = _progress(context, cursor, now_ms)
    return shown


def _progress(context: CommandContext, cursor: ChangeCursor, now_ms: int) -> dict[str, Any]:
    unread = cursor.unread_since(context.store.last_position)
    behind_ms = 0 if unread is None else max(0, now_ms - position.seconds(unread) * 1000)
    return {
        "reads": "oplog" if cursor.is_behind else "memory",
        "position": position.to_timestamp(cursor.position),
        "caughtUp": unread is None,
        "lagSecs": Int64(behind_ms // 1000),
        "slowStages": cursor.is_slow and cursor.record.batch_count > 1,
    }


def _lsid(session: bytes) -> dict[str, Any]:
    return {"id": Binary(session, 4), "uid": NO_USER}


def sessions(context: CommandContext, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sessions with open cursors, transactions or stored writes, and the requesting one, with `lastUse`."""
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
    everybody = not context.engine.restricts(request.client) or bool(spec.get("allUsers"))
    for session, used_ms in used.items():
        lsid = names.get(session) or _stored_lsid(context, session) or _lsid(session)
        if everybody or lsid["uid"] == request.client.uid:
            yield {"_id": lsid, "lastUse": DatetimeMS(used_ms)}


def _stored_lsid(context: CommandContext, session: bytes) -> dict[str, Any] | None:
    """Return the stored `lsid` of a session whose key is not its id, on a server with authorization; or None."""
    if not context.engine.authorizes:
        return None
    view = context.view
    record = view.kv.get(session, db=view.tables["sessions"])
    return None if record is None else decode(record).get("lsid")
