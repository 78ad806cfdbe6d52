"""One document inserted, whatever its length, and however long it has to wait for locks."""

from __future__ import annotations

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.errors import CommandError
from headrace.execution.writes.many_entries import are_many, claimed
from headrace.execution.writes.matches import Target
from headrace.store.commit.entries_in_pieces import EntriesInPieces
from headrace.store.commit.long_insert import LongInsert
from headrace.store.identity import identified, with_timestamps
from headrace.store.indexes.prepared_change import PreparedChange, prepared
from headrace.store.write_transaction import RetryableWrite
from headrace.turns import current_turn


def insert(context: CommandContext, target: Target, document: bytes, retryable: RetryableWrite | None = None) -> bytes:
    """Insert a document that has been checked; returns it as stored. May pause. Raises what `WriteTransaction.insert`
    raises, and 175."""
    if len(document) > limits.PREPARED_BYTES:
        document = identified(document)[0]
    made = prepared(context.store, target.collection, None, document)
    many = are_many(context, target.collection, made, None, document)
    ahead: LongInsert | None = None
    entries: EntriesInPieces | None = None
    keeps = context.keeps_empty_timestamps
    if many or (len(document) > limits.LONG_DOCUMENT_BYTES and not context.has_locks):
        ahead = _put_ahead(context, target, document, None if many else made)
    if ahead is not None and made is not None and many:
        entries = _put_entries(context, target, document, made, ahead)
        ahead = ahead if entries is not None else None
    if ahead is None:
        while context.has_locks and not wait_until_unlocked(
            context, lambda txn: txn.insert(target.collection, document, made=made)
        ):
            pass
        return context.txn.insert(target.collection, document, retryable, made, keeps_empty_timestamps=keeps)
    try:
        return context.txn.insert(
            target.collection, document, retryable, made, ahead, entries, keeps_empty_timestamps=keeps
        )
    except BaseException as error:
        _give_up(context, ahead, entries, error)
        raise


def _put_ahead(
    context: CommandContext, target: Target, document: bytes, made: PreparedChange | None
) -> LongInsert | None:
    """Put a long document in a commit of its own, so that what it brings to indexes can be made ready for its record;
    None where it cannot be, or has come to nothing. Without `made` it does not matter whether there are locks."""
    turn = current_turn()
    if (
        turn is None or context.transaction is not None or not context.store.oplog_enabled
        or target.collection.capped is not None
        or (not context.keeps_empty_timestamps and with_timestamps(document, 1) is not document)
    ):  # fmt: skip
        return None
    turn.pause()  # from here on the write is the last of its group
    ahead = LongInsert(context.txn, target.collection)
    ahead.put(lambda: context.txn, document, made)
    try:
        if ahead.fits(target.collection) and (made is None or not context.has_locks):
            return ahead
    except CommandError:
        ahead.undo(context.txn)
        raise
    ahead.undo(context.txn)
    return None


def _put_entries(
    context: CommandContext, target: Target, document: bytes, made: PreparedChange, ahead: LongInsert
) -> EntriesInPieces | None:
    """Put the entries of a document that is put; None, and it is put no longer, where its collection has changed."""
    entries: EntriesInPieces | None = None
    try:
        while entries is None:
            entries = claimed(context, target.collection, ahead.record, made)
        entries.put(lambda: context.txn, target.collection)
        if ahead.fits(target.collection) and entries.fits(target.collection, None, document):
            return entries
    except BaseException as error:
        _give_up(context, ahead, entries, error)
        raise
    _give_up(context, ahead, entries, None)
    return None


def _give_up(
    context: CommandContext, ahead: LongInsert, entries: EntriesInPieces | None, error: BaseException | None
) -> None:
    if error is None or isinstance(error, CommandError):  # whose message may have taken a pause to put together
        ahead.undo(context.txn)
    else:
        ahead.fail()
    if entries is not None:
        entries.fail()
