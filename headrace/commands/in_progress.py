"""What goes on: commands that wait, transactions and cursors that are open. currentOp, killOp, and what stages show.

A command that does not wait runs to its end before the next one starts, so that what is seen in progress is what
waits (a getMore for events, a write for a transaction), and the command that asks. A connection does one thing at a
time: its number is the number of its operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bson import Binary, Int64
from bson.datetime_ms import DatetimeMS

from headrace.commands.command import Command
from headrace.commands.generic import FIELDS
from headrace.commands.hello import host_of
from headrace.commands.request import Request
from headrace.commands.retryable import NO_USER, session_id
from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.values.bson import decode, type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

_KINDS: Final = {"delete": "remove", "find": "query", "getMore": "getmore", "insert": "insert", "update": "update"}
"""`op` of the commands that have one of their own; of all others it is `command`."""
_NO_FILTER: Final = FIELDS | {"$all", "$clusterTime", "$db", "$ownOps", "$readPreference", "comment", "currentOp"}


def operations(engine: Engine, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What goes on, as `$currentOp` tells it: `spec` may ask for cursors and refuse sessions that are idle."""
    yield _operation(engine, request)
    for other in engine.waiting():
        if other is not request:
            yield _operation(engine, other)
    if spec.get("idleSessions", True):
        yield from _transactions(engine)
    if spec.get("idleCursors"):
        yield from _cursors(engine)


def _operation(engine: Engine, request: Request) -> dict[str, Any]:
    peer, body = request.peer, request.body
    now_ms = engine.clock.monotonic_ms()
    running_ms = max(0.0, now_ms - getattr(request, "since_ms", now_ms))
    name = body.get(request.name)
    found: dict[str, Any] = {
        "type": "op", "host": host_of(engine, peer), "desc": f"conn{peer.connection_id}",
        "connectionId": peer.connection_id, "client": peer.address,
    }  # fmt: skip
    if peer.client is not None:
        application = peer.client.get("application")
        if type(application) is dict and "name" in application:
            found["appName"] = application["name"]
        found["clientMetadata"] = peer.client
    if request.name == "getMore":
        name = body.get("collection")
    found |= {
        "active": True, "currentOpTime": _text(engine.clock.now_ms()), "opid": peer.connection_id,
        "secs_running": Int64(running_ms // 1000), "microsecs_running": Int64(running_ms * 1000),
        "op": _KINDS.get(request.name, "command"),
        "ns": f"{request.db}.{name}" if type(name) is str else f"{request.db}.$cmd",
        "command": {key: value for key, value in body.items() if key != "$clusterTime"},
    }  # fmt: skip
    if "lsid" in body:
        found["lsid"] = body["lsid"]
    return found


def _text(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _transactions(engine: Engine) -> Iterator[dict[str, Any]]:
    now_ms = engine.clock.monotonic_ms()
    for transaction in engine.store.transactions.open.values():
        if len(transaction.session) != 16:  # a snapshot's, which is nobody's session
            continue
        yield {
            "type": "idleSession", "desc": "inactive transaction", "active": False,
            "lsid": _lsid(transaction.session),
            "transaction": {
                "parameters": {"txnNumber": Int64(transaction.number), "autocommit": False},
                "timeOpenMicros": Int64((now_ms - transaction.started_ms) * 1000),
            },
        }  # fmt: skip


def _cursors(engine: Engine) -> Iterator[dict[str, Any]]:
    for cursor in engine.cursors:
        shown = {
            "type": "idleCursor", "ns": cursor.namespace,
            "cursor": {"cursorId": Int64(cursor.id), "noCursorTimeout": cursor.no_timeout},
        }  # fmt: skip
        if cursor.session is not None:
            shown["lsid"] = _lsid(cursor.session)
        yield shown


def _lsid(session: bytes) -> dict[str, Any]:
    return {"id": Binary(session, 4), "uid": NO_USER}


def sessions(engine: Engine, request: Request, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sessions that have something open or have written, and the one that asks, with when they were last used."""
    clock = engine.clock
    now_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()
    used: dict[bytes, int] = {}
    with engine.view.kv.cursor(engine.view.tables["sessions"]) as cursor:
        for key, record in cursor.iternext(keys=True, values=True):
            used[bytes(key)] = int(decode(record)["usedAt"])
    for item in engine.cursors:
        if item.session is not None:
            used[item.session] = int(now_ms - (monotonic_ms - item.used_ms))
    for session in engine.store.transactions.open:
        if len(session) == 16:
            used[session] = now_ms
    own = session_id(request)
    if own is not None:
        used[own] = now_ms
    for session, used_ms in used.items():
        yield {"_id": _lsid(session), "lastUse": DatetimeMS(used_ms)}


def current_op(engine: Engine, request: Request) -> dict[str, Any]:
    """The operations that match the command's other fields."""
    matches = parse_filter({name: value for name, value in request.body.items() if name not in _NO_FILTER})
    found = operations(engine, request, {"idleSessions": True, "idleCursors": bool(request.body.get("$all"))})
    return {"inprog": [item for item in found if matches(item)]}


def kill_op(engine: Engine, request: Request) -> dict[str, Any]:
    """End what waits under a number with error 11601. As MongoDB, it tells only of the attempt."""
    number = request.body.get("op")
    if number is None:
        raise CommandError(4, 'Missing expected field "op"')
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise CommandError(14, f'Expected field "op" to have numeric type, but found {type_name(number)}')
    engine.interrupt(int(number))
    return {"info": "attempting to kill op"}


COMMANDS: Final = (
    Command("currentOp", current_op, admin_only=True),
    Command("killOp", kill_op, admin_only=True),
)
