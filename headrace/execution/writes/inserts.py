"""One document inserted, whatever its length, and however long it has to wait for locks."""

from __future__ import annotations

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.errors import CommandError
from headrace.execution.writes.matches import Target
from headrace.store.commit.long_insert import LongInsert
from headrace.store.identity import identified, with_timestamps
from headrace.store.indexes.prepared_change import PreparedChange, prepared
from headrace.store.write_transaction import RetryableWrite
from headrace.turns import current_turn


def insert(context: CommandContext, target: Target, document: bytes, retryable: RetryableWrite | None = None) -> None:
    """Insert a document that has been checked. May pause. Raises what `WriteTransaction.insert` raises, and 175."""
    if len(document) > limits.PREPARED_BYTES:
        document = identified(document)[0]
    made = prepared(context.store, target.collection, None, document)
    ahead: LongInsert | None = None
    if len(document) > limits.LONG_DOCUMENT_BYTES or (made is not None and made.count > limits.READY_KEY_COUNT):
        ahead = _put_ahead(context, target, document, made)
    while context.has_locks and not wait_until_unlocked(
        context, lambda txn: txn.insert(target.collection, document, made=made)
    ):
        pass
    if ahead is None:
        context.txn.insert(target.collection, document, retryable, made)
        return
    try:
        context.txn.insert(target.collection, document, retryable, made, ahead)
    except CommandError:  # to put its message together may take a pause
        ahead.undo(context.txn)
        raise
    except BaseException:
        ahead.fail()
        raise


def _put_ahead(
    context: CommandContext, target: Target, document: bytes, made: PreparedChange | None
) -> LongInsert | None:
    """Put a long document in a commit of its own, so that what it brings to indexes can be made ready for its record;
    None where it cannot be, or has come to nothing."""
    turn = current_turn()
    if (
        turn is None or context.transaction is not None or context.has_locks or not context.store.oplog_enabled
        or target.collection.capped is not None or with_timestamps(document, 1) is not document
    ):  # fmt: skip
        return None
    turn.pause()  # from here on the write is the last of its group
    ahead = LongInsert(context.txn, target.collection)
    ahead.put(lambda: context.txn, document, made)
    try:
        if ahead.fits(target.collection) and not context.has_locks:
            return ahead
    except CommandError:
        ahead.undo(context.txn)
        raise
    ahead.undo(context.txn)
    return None
