"""getMore: the next batch of a cursor. A cursor that awaits data waits until there are documents."""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.commands.requirements import pipelines
from headrace.cursors.change_cursor import ChangeCursor
from headrace.cursors.document_cursor import DocumentCursor
from headrace.dispatch import reply
from headrace.dispatch.arguments import Field, Fields, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import BATCH_SIZE, MAX_TIME_MS, QUERY_STATS
from headrace.dispatch.repeated_getmore import CHANGED, RepeatedGetMore, answer
from headrace.dispatch.request import Request
from headrace.dispatch.transactions import check_cursor
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError, CommandError, HandedOver
from headrace.execution.reader_calls import NotAnswered, ReaderCall, ReaderCursor, ask, made_request, may_ask
from headrace.values.bson import decode, find_element, iter_elements

UNBOUNDED: Final = 1 << 30

GET_MORE: Final = Field("getMore", "long", 0, required=True)


def _check_collection(path: str, value: str) -> None:
    if not value:
        raise CommandError(73, "Collection names cannot be empty")


COLLECTION: Final = Field("collection", "string", "", required=True, check=_check_collection)
FIELDS: Final = Fields(
    BATCH_SIZE, COLLECTION, GET_MORE, *QUERY_STATS, *without_effect("number", "term"),
    *without_effect("object", "lastKnownCommittedOpTime"),
)  # fmt: skip


def run(context: CommandContext, request: Request) -> bytes | Wait:
    """getMore: answer the next batch, or wait if the cursor awaits data. Raise 43 for an unknown cursor, 237 for a
    killed one."""
    if context.engine.authorizes and (request.wait_until_ms is not None or request.cursor is not None):
        _require_again(context, request)
    if request.cursor is not None and context.cursors.peek(request.cursor.id) is request.cursor:
        return _changes(context, request, request.cursor)
    body = request.body
    cursor_id = body["getMore"]
    if request.wait_until_ms is not None and context.cursors.peek(cursor_id) is None:
        raise CommandError(237, f"cursor id {cursor_id} was killed while its next batch was waited for")
    cursor = context.cursors.get(cursor_id, f"{request.db}.{body['collection']}")
    if context.store.transactions.open:
        check_cursor(context, cursor_id)
    size = BATCH_SIZE.of(body)
    if context.engine.fail_points.active:
        _check_out(context, request, cursor)
    if cursor.is_change_stream:
        cursor.repeated_getmore = RepeatedGetMore(
            request, cursor.key, size or UNBOUNDED, _await_ms(body), _grants(context, request)
        )
        request.cursor = cursor
        return _changes(context, request, cursor)
    if type(cursor) is ReaderCursor:
        raise HandedOver(ReaderCall(request, cursor))
    if not cursor.awaits and body.get("maxTimeMS") is not None:
        raise CommandError(2, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
    store, position = context.store, context.store.last_position
    batch = _documents(context, cursor, size or None)
    if not batch and cursor.awaits and not request.time_is_up:  # a commit during a pause wakes no wait
        return Wait(_await_ms(body), cursor.key, over=lambda: store.last_position != position)
    if cursor.exhausted:
        context.cursors.remove(cursor_id)
    namespace = cursor.namespace.encode()
    return reply.cursor_elements(
        b"nextBatch", reply.array(batch), 0 if cursor.exhausted else cursor_id, namespace, None
    )


PREFIX: Final = "Executor error during getMore :: caused by :: "
"""The beginning of messages about errors that a cursor's documents or events cause, not the getMore."""


def _grants(context: CommandContext, request: Request) -> Any:
    """Return the grants with which the getMore was checked; `CHANGED` if they have changed since."""
    grants = request.client.grants
    if grants is None or not context.engine.authorizes or grants.generation == context.engine.access.generation:
        return grants
    return CHANGED


def _require_again(context: CommandContext, request: Request) -> None:
    """Raise 13 if the user has lost a required privilege since the getMore arrived."""
    if request.client.is_program:
        return
    access, cursor = context.engine.access, request.cursor
    owner = None if cursor is None else context.cursors.owners.get(cursor.id)
    if not access.still_owns(request.client, owner):
        access.require_again(context.engine, COMMAND, request)


def _documents(context: CommandContext, cursor: DocumentCursor, count_max: int | None) -> list[bytes]:
    """Return the next batch, read through the context of the cursor's own command. A failure closes the cursor."""
    if cursor.in_use:
        raise CommandError(143, f"cursor id {cursor.id} is already in use")
    clock, reader = context.clock, cursor.context
    deadline_ms = None if cursor.left_ms is None else clock.monotonic_ms() + cursor.left_ms
    cursor.in_use = True
    try:
        reader.resume(context, deadline_ms)
        batch = cursor.next_batch(count_max)
    except CommandError as error:
        context.cursors.remove(cursor.id)
        if type(error) is not CommandError:
            raise
        raise error.behind(PREFIX) from None
    except BaseException:
        context.cursors.remove(cursor.id)
        raise
    finally:
        cursor.in_use = False
        reader.pause()
    context.cursors.count_read_ahead(cursor, cursor.held_bytes(batch))
    if context.cursors.peek(cursor.id) is not cursor:
        raise CommandError(237, f"cursor id {cursor.id} was killed while its next batch was read")
    cursor.record.count(len(batch))
    if deadline_ms is not None:
        cursor.left_ms = deadline_ms - clock.monotonic_ms()
    return batch


def _check_out(context: CommandContext, request: Request, cursor: Any) -> None:
    has_deadline = not cursor.is_change_stream and cursor.left_ms is not None
    try:
        context.engine.fail_points.after_cursor_checkout(context.engine, request, has_deadline=has_deadline)
    except CommandError:
        context.cursors.remove(cursor.id)
        raise


def _await_ms(body: dict[str, Any]) -> float:
    """Return how long a getMore may wait, in ms: `maxTimeMS`, or MongoDB's default of a second."""
    value = MAX_TIME_MS.of(body)
    return float(limits.AWAIT_MS_DEFAULT if value is None else value)


def _changes(context: CommandContext, request: Request, cursor: ChangeCursor) -> bytes | Wait:
    if cursor.is_read_elsewhere:
        raise CommandError(143, f"cursor id {cursor.id} is already in use")
    count_max = cursor.repeated_getmore.count_max
    try:
        made = asked_batch(context, request, cursor, count_max) if cursor.lags else None
        if made is None:
            batch = cursor.next_batch(context, count_max)
            made = len(batch.documents), reply.array(batch.documents), batch.token
    except AnsweredError as error:
        context.cursors.remove(cursor.id)
        if type(error) is CommandError and not error.message.startswith(PREFIX):
            raise error.behind(PREFIX) from None
        raise
    return answer(context.engine, request, *made)


def asked_batch(
    context: CommandContext, request: Request, cursor: ChangeCursor, count_max: int
) -> tuple[int, bytes, bytes] | None:
    """Let a reader read the next batch of a stream that lags. Return the number of events, the events as a BSON array,
    and the token after them. None: the cursor must read by itself.

    The reader opens the stream after the cursor's token, and the cursor here moves to the token of the batch. So the
    reader keeps no state of the stream, and nothing is lost if the reader dies.

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


COMMAND: Final = Command("getMore", run, FIELDS, pauses=True, requires=pipelines.GET_MORE)


_START: Final = frozenset({"resumeAfter", "startAfter", "startAtOperationTime"})
