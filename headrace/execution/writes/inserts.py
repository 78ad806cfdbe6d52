"""Insert one document, after waiting for locks if necessary."""

from __future__ import annotations

from functools import partial

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unlocked
from headrace.execution.writes.matches import Target
from headrace.store.catalog import Collection
from headrace.store.identity import with_id_first
from headrace.store.write_transaction import RetryableWrite, WriteTransaction


def insert(context: CommandContext, target: Target, document: bytes, retryable: RetryableWrite | None = None) -> bytes:
    """Insert a checked document and return it as stored. Raise the errors of `WriteTransaction.insert`, or 175."""
    if len(document) > limits.INSERT_BYTES:
        document = with_id_first(document)
    while context.has_locks and not wait_until_unlocked(context, partial(_try, target.collection, document)):
        pass
    keeps = context.keeps_empty_timestamps
    return context.txn.insert(target.collection, document, retryable, keeps_empty_timestamps=keeps)


def _try(collection: Collection, document: bytes, txn: WriteTransaction) -> None:
    txn.insert(collection, document)
