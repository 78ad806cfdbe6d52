"""Opening a cursor on documents and cutting its first batch: the end of find, aggregate and the list commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace import limits
from headrace.cursors.document_cursor import DocumentCursor
from headrace.cursors.registry import CursorRecord, OpenCursor
from headrace.dispatch import reply
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import NO_CURSOR_TIMEOUT
from headrace.dispatch.request import Request
from headrace.dispatch.sessions import owner_of, session_id
from headrace.errors import CommandError
from headrace.values.bson import encode


def register(context: CommandContext, request: Request, cursor: OpenCursor, batch: Sequence[bytes]) -> int:
    """Register a cursor that stays open after its first batch. Return its id."""
    command = bytes(request.raw)
    if len(command) > limits.SHOWN_COMMAND_BYTES:
        command = encode({request.name: request.body[request.name], "$truncated": f"a command of {len(command)} bytes"})
    record = CursorRecord(request.client, command, len(batch))
    return context.cursors.add(cursor, record, session_id(request), owner_of(context, request))


_PREFIXES: Final = {
    "aggregate": "Executor error during aggregate command on namespace: {} :: caused by :: ",
    "find": "Executor error during find command: {} :: caused by :: ",
}
"""The beginnings of messages about errors that documents cause, not the command."""


def open_cursor(
    context: CommandContext, request: Request, namespace: str, documents: Iterator[bytes], size: int | None, *,
    single_batch: bool = False, limit: int | None = None, id_first: bool = False,
) -> bytes:  # fmt: skip
    """Return the reply with the first batch. The cursor stays open if there may be more documents.

    `id_first`: the cursor's id is the first field."""
    no_timeout = NO_CURSOR_TIMEOUT.of(request.body)
    cursor = DocumentCursor(namespace, documents, context, no_timeout=no_timeout, limit=limit)
    try:
        batch = cursor.next_batch(limits.FIRST_BATCH_COUNT if size is None else size)
    except CommandError as error:
        if type(error) is not CommandError:
            raise
        raise error.behind(_PREFIXES.get(request.name, "").format(namespace)) from None
    keep = not (cursor.exhausted or single_batch)
    if keep:
        cursor.read_ahead_bytes = cursor.held_bytes(batch)
    cursor_id = register(context, request, cursor, batch) if keep else 0
    context.outlives_command = keep
    if keep and context.memory is not None:
        context.memory.when_needed(lambda: context.cursors.kill(cursor_id))
    if context.deadline_ms is not None:
        cursor.left_ms = context.deadline_ms - context.clock.monotonic_ms()
    if cursor_id and context.transaction is not None:
        context.transaction.cursors.add(cursor_id)
    build = reply.cursor_elements_id_first if id_first else reply.cursor_elements
    return build(b"firstBatch", reply.array(batch), cursor_id, namespace.encode(), None)
