"""Repeated getMores of change streams, recognised by their bytes, so that only the first one is decoded.

A getMore is recognised only on the same connection and with the same grants as the one that was checked. A commit that
changes users or roles sets the grants of all to `CHANGED`. So authorization adds no cost to a repeated getMore.

If a stream is caught up, its feed has the answer (`from_feed`), and no command runs.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from headrace.dispatch import reply
from headrace.dispatch.request import ClientInfo, RepeatedBody, Request, UnreadRequest
from headrace.dispatch.wait import Wait, only_others
from headrace.errors import AnsweredError

if TYPE_CHECKING:
    from headrace.cursors.change_cursor import ChangeCursor
    from headrace.dispatch.engine import Engine

BEGIN: Final = b"\x12getMore\x00"
"""The first bytes of the body after its size."""
CHANGED: Final = object()
"""The value of `grants` for a getMore that must be checked again."""
_CURSOR_ID = Struct("<q").unpack_from
_INT64 = Struct("<q").pack


class RepeatedGetMore(RepeatedBody):
    """The last getMore of a cursor, parsed."""

    __slots__ = ("count_max", "db", "grants", "wait", "wait_for_others", "wait_ms")

    def __init__(self, request: Request, key: str, count_max: int, wait_ms: float, grants: Any = None) -> None:
        """`key`: the key of the waits."""
        super().__init__(request.raw)
        self.db = request.db
        self.count_max = count_max
        """The maximum number of events in a batch."""
        self.wait_ms = wait_ms
        """How long the getMore waits for the first event."""
        self.wait = Wait(wait_ms, key)
        self.wait_for_others = Wait(wait_ms, key, only_others)
        """The `Wait` of a stream that has more to read: it lets other commands run first."""
        self.grants = grants
        """The privileges of the getMore's user at the last check; None: no user; `CHANGED`: check again."""


def recognised(engine: Engine, body: bytes, client: ClientInfo) -> Request | None:
    """Return the request if the body repeats the last getMore of an open stream; otherwise None.

    Always None while fail points or profiling are active."""
    if len(body) < 21 or engine.fail_points.active or engine.profiler.active:
        return None
    cursor = engine.cursors.peek(_CURSOR_ID(body, 13)[0])
    if cursor is None or not cursor.is_change_stream:
        return None
    repeated = cursor.repeated_getmore
    if repeated is None or repeated.grants is not client.grants or not repeated.is_repeated_by(body):
        return None
    request = UnreadRequest("getMore", repeated.db, body, client)
    request.cursor = cursor
    return request


def from_feed(engine: Engine, request: Request) -> bytes | Wait | None:
    """Return the answer to a change stream's getMore from its feed; None: run the command.

    The command must run if the cursor lags or is gone, on an error, while fail points are set, and if the user may
    have lost a privilege since the getMore was recognised.
    """
    cursor: ChangeCursor = request.cursor
    repeated = cursor.repeated_getmore
    if repeated.grants is not request.client.grants or engine.fail_points.active:
        return None
    try:
        batch = cursor.next_from_feed(repeated.count_max)  # None for a closed cursor, which has left its feed
    except AnsweredError:
        return None  # the command raises the error again
    if batch is None:
        return None
    cursor_id = _id_or_wait(engine, request, len(batch.documents))
    if type(cursor_id) is Wait:
        return cursor_id
    position = engine.store.last_position
    shared = batch.shared_reply
    if shared is None or shared[0] != position:
        shared = batch.shared_reply = (
            position,
            *reply.document_halves(
                *_envelope(cursor, reply.array(batch.documents), batch.token), reply.closing(position)
            ),
        )
    _, before, behind = shared
    return b"".join((before, _INT64(cursor_id), behind))


def answer(engine: Engine, request: Request, count: int, array: bytes, token: bytes) -> bytes | Wait:
    """Return the reply of a change stream's getMore with a BSON array of `count` events.

    Without events, return a `Wait`: for the next commit or, if there is more to read, for the next turn."""
    cursor_id = _id_or_wait(engine, request, count)
    if type(cursor_id) is Wait:
        return cursor_id
    before, behind = _envelope(request.cursor, array, token)
    return b"".join((before, _INT64(cursor_id), behind))


def _id_or_wait(engine: Engine, request: Request, count: int) -> Any:
    """Return the cursor's id for the reply (0 if the cursor is closed), or the `Wait`."""
    cursor = request.cursor
    closed = cursor.closed
    cursor.used_ms = engine.clock.monotonic_ms()
    if not count and not closed and not request.time_is_up:
        repeated = cursor.repeated_getmore
        cursor.used_ms += repeated.wait_ms  # a cursor is not idle while its client waits
        return repeated.wait if cursor.idle else repeated.wait_for_others
    cursor.record.count(count)
    if closed:
        engine.cursors.remove(cursor.id)
        return 0
    return cursor.id


def _envelope(cursor: ChangeCursor, array: bytes, token: bytes) -> tuple[bytes, bytes]:
    return reply.cursor_envelope(b"nextBatch", array, cursor.namespace_bytes, token, invalidated=cursor.closed)
