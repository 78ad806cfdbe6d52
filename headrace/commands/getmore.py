"""getMore: the next batch of a cursor; of a tailing one, when there is something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace import limits
from headrace.commands import reply
from headrace.commands.batches import batch_size
from headrace.commands.command import Command
from headrace.commands.request import Request
from headrace.commands.wait import Wait
from headrace.cursors.changes import Batch, ChangeCursor
from headrace.errors import CommandError
from headrace.values.bson import type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

UNBOUNDED: Final = 1 << 30


def run(engine: Engine, request: Request) -> bytes | Wait:
    body = request.body
    cursor_id = body["getMore"]
    if type(cursor_id) is not Int64:
        raise CommandError(
            14, f"BSON field 'getMore.getMore' is the wrong type '{type_name(cursor_id)}', expected type 'long'"
        )
    name = body.get("collection")
    if type(name) is not str:
        if name is None:
            raise CommandError(40414, "BSON field 'getMore.collection' is missing but a required field")
        raise CommandError(
            14, f"BSON field 'getMore.collection' is the wrong type '{type_name(name)}', expected type 'string'"
        )
    cursor = engine.cursors.get(cursor_id, f"{request.db}.{name}")
    size = batch_size(body, "getMore")
    if engine.failpoints.active:
        _check_out(engine, request, cursor_id)
    if cursor.is_change_stream:
        return _changes(engine, request, cursor, size)
    if not cursor.awaits and body.get("maxTimeMS") is not None and not cursor.tails:
        _check_time(body)
    try:
        batch = cursor.next_batch(size or None)
    except BaseException:
        engine.cursors.remove(cursor_id)
        raise
    if not batch and cursor.awaits and not request.time_is_up:
        return Wait(engine.store.last_position, _await_ms(body), "")
    if cursor.exhausted:
        engine.cursors.remove(cursor_id)
    namespace = cursor.namespace.encode()
    return reply.cursor_elements(
        b"nextBatch", reply.array(batch), 0 if cursor.exhausted else cursor_id, namespace, None
    )


def _check_out(engine: Engine, request: Request, cursor_id: int) -> None:
    try:
        engine.failpoints.check_out(engine, request)
    except CommandError:
        engine.cursors.remove(cursor_id)
        raise


def _check_time(body: dict[str, Any]) -> None:
    raise CommandError(2, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")


def _await_ms(body: dict[str, Any]) -> float:
    """How long a getMore may wait: `maxTimeMS`, or MongoDB's second."""
    value = body.get("maxTimeMS")
    if value is None:
        return float(limits.AWAIT_MS_DEFAULT)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limits.AWAIT_MS_MAX:
        raise CommandError(2, f"{value} value for maxTimeMS is out of range [0, {limits.AWAIT_MS_MAX}]")
    return float(value)


def _changes(engine: Engine, request: Request, cursor: ChangeCursor, size: int | None) -> bytes | Wait:
    try:
        batch = cursor.next_batch(engine, size or UNBOUNDED)
    except CommandError:
        engine.cursors.remove(cursor.id)
        raise
    if not batch.documents and not cursor.closed and not request.time_is_up and cursor.idle:
        return Wait(engine.store.last_position, _await_ms(request.body), cursor.key)
    cursor_id = cursor.id
    if cursor.closed:
        engine.cursors.remove(cursor_id)
        cursor_id = 0
    return reply.cursor_elements(b"nextBatch", encoded(batch), cursor_id, cursor.namespace_bytes, batch.token)


def encoded(batch: Batch) -> bytes:
    """The batch as a BSON array; encoded once for all watchers that got the same part of the same feed."""
    if batch.shared is None:
        return reply.array(batch.documents)
    feed, first, end = batch.shared
    if feed.cached is None or feed.cached[0] != (first, end):
        feed.cached = ((first, end), reply.array(batch.documents))
    return feed.cached[1]


COMMAND: Final = Command("getMore", run)
