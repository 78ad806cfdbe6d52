"""The backlog of a change stream, read by a reader process until the stream is near the end of the oplog.

The reader opens the stream after the cursor's token and returns one batch. The cursor in this process then moves to the
batch's token. So the reader keeps no state of the stream, and nothing is lost if the reader dies.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.cursors.change_cursor import ChangeCursor
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.reader_calls import NotAnswered, ask, made_request, may_ask
from headrace.values.bson import decode, find_element, iter_elements

_START: Final = frozenset({"resumeAfter", "startAfter", "startAtOperationTime"})


def asked_batch(
    context: CommandContext, request: Request, cursor: ChangeCursor, count_max: int
) -> tuple[int, bytes, bytes] | None:
    """Let a reader read the next batch of a stream that lags. Return the number of events, the events as a BSON array,
    and the token after them. None: the cursor must read by itself.

    Raise 237 if the cursor was killed meanwhile."""
    end = context.store.last_position
    may = cursor.unread_since(end) is not None and may_ask(context, request.db)
    opened = _opened_after(cursor, count_max) if may else None
    if opened is None:
        cursor.lags = False
        return None
    cursor.is_read_elsewhere = True
    try:
        answer = ask(context, made_request(request.client, opened))
    except NotAnswered:
        return None
    finally:
        cursor.is_read_elsewhere = False
    if answer.cursor is not None:
        answer.cursor.close()
    if cursor.closed:
        raise CommandError(237, f"cursor id {cursor.id} was killed while its next batch was read")
    token = _field_of(answer.reply, b"postBatchResumeToken")
    if token == cursor.token:
        return None
    cursor.move(token, closes=answer.cursor is None)
    cursor.lags &= cursor.position < end
    events, count = _field_of(answer.reply, b"firstBatch"), answer.document_count
    if answer.cursor is None:
        count = sum(1 for _ in iter_elements(events))
    return count, events, token


def _opened_after(cursor: ChangeCursor, count_max: int) -> dict[str, Any] | None:
    """Return the command that opens the stream after its token; None if the original command was too long to keep."""
    body = decode(cursor.record.command)
    if "$truncated" in body:
        return None
    (stage, *stages), token = body["pipeline"], decode(cursor.token)
    options = {name: value for name, value in stage["$changeStream"].items() if name not in _START}
    pipeline = [{"$changeStream": {**options, "resumeAfter": token}}, *stages]
    return {**body, "pipeline": pipeline, "cursor": {"batchSize": count_max}}


def _field_of(reply: bytes, name: bytes) -> bytes:
    """Return a raw field of the `cursor` in a reply."""
    cursor = find_element(reply, b"cursor")
    field = None if cursor is None else find_element(reply, name, cursor[1])
    assert field is not None
    return reply[field[1] : field[2]]
