"""The locks of clients' open transactions, and their effect on other writers.

A transaction locks each key of documents, ids, indexes or the catalog that it writes, until it ends.

    another transaction writes the key            → `Conflict`: it is aborted, and its client begins again
    a transaction writes a key that a commit has
    changed since the transaction's start         → `Conflict`
    a write outside transactions                  → waits, and does nothing before the lock is released

For the last case the write is first tried on a `TrialView`, which discards its writes and raises `Locked`. Source:
MongoDB's write conflicts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.store.change_log import NO_LOG
from headrace.store.kv import TableKey
from headrace.store.overlay import Overlay, OverlayTransaction, ProvisionalCatalog, ProvisionalTransaction
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.client_transaction import ClientTransaction


class Conflict(Exception):
    """A transaction cannot go on: error 112, or 246 if a collection has changed since the transaction's start."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Locked(Exception):
    """A write outside transactions needs a key that a transaction has locked."""

    def __init__(self, holder: ClientTransaction) -> None:
        super().__init__(f"locked by transaction {holder.number}")
        self.holder = holder


def write_conflict() -> Conflict:
    """Return error 112 with MongoDB's message."""
    return Conflict(
        112,
        "WriteConflict error: this operation conflicted with another operation. Please retry your operation or "
        "multi-document transaction.",
    )


class TrialView(ProvisionalTransaction):
    """A trial of a write over a write transaction `txn`. Raises `Locked` at the first key that a transaction has
    locked."""

    is_trial = True

    __slots__ = ()

    def __init__(self, txn: WriteTransaction) -> None:
        store, claim = txn.store, partial(_check_lock, txn)
        super().__init__(
            store,
            OverlayTransaction(txn.kv, Overlay(txn.tables), claim),
            catalog=ProvisionalCatalog(txn.catalog, {}, claim, store.transactions),
            changes=NO_LOG,
        )
        self.clock_position = txn.clock_position


def _check_lock(txn: WriteTransaction, key: TableKey) -> None:
    holder = txn.store.transactions.locks.get(key)
    if holder is not None and not holder.has_ended and holder.committing is not txn:
        raise Locked(holder)
