"""Who may write what while clients' transactions are open: the locks they hold, and what others do about them.

A key of documents, ids, indexes or the catalog that an open transaction wrote is locked until it ends.

    another transaction writes there              → `Conflict`: it is aborted, its client begins anew
    a transaction writes what others have changed
    since it started                              → `Conflict`
    a write outside transactions                  → waits: nothing of it is done before the lock is gone

For the last, the write is first tried on a `TrialView`, which throws away what is written and raises `Locked`.
Source: MongoDB's write conflicts.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from headrace.store.change_log import NO_LOG
from headrace.store.kv import TableKey
from headrace.store.overlay import Overlay, OverlayTransaction, ProvisionalCatalog, ProvisionalTransaction
from headrace.store.write_transaction import WriteTransaction


class Conflict(Exception):
    """A transaction cannot go on: error 112, or 246 where a collection is not what it was at its start."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class LockHolder(Protocol):
    """Who holds locks: a client's transaction, or `commit.EntriesInPieces`."""

    @property
    def key(self) -> str:
        """The wake-up key of those who wait for its end."""

    @property
    def number(self) -> int:
        """Of the transaction; 0: it is none."""

    @property
    def has_ended(self) -> bool:
        """Whether its locks count no more."""

    @property
    def committing(self) -> WriteTransaction | None:
        """The write transaction that ends it, and in which its locks do not count."""

    def over(self) -> bool:
        """As `has_ended`, for those who wait."""


class Locked(Exception):
    """A write outside transactions needs a key that somebody has locked."""

    def __init__(self, holder: LockHolder) -> None:
        super().__init__(f"locked by transaction {holder.number}")
        self.holder = holder


def write_conflict() -> Conflict:
    """Error 112, in MongoDB's words."""
    return Conflict(
        112,
        "WriteConflict error: this operation conflicted with another operation. Please retry your operation or "
        "multi-document transaction.",
    )


class TrialView(ProvisionalTransaction):
    """A write tried out over a write transaction `txn`. Raises `Locked` at the first key that somebody holds."""

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
