"""Who may write what while clients' transactions are open: the locks they hold, and how others find them.

A place (a key of documents, ids, indexes or the catalog) that an open transaction wrote is locked until it ends.

    another transaction writes there              → `Conflict`: it is aborted, its client begins anew
    a transaction writes what others have changed
    since it started                              → `Conflict`
    a write outside transactions                  → waits: nothing of it is done before the lock is gone

For the last, the write is first tried on a `TrialView`, which throws away what is written and raises `Locked`.
Source: MongoDB's write conflicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.store.buffered import BufferedView, Overlay
from headrace.store.writes import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.transaction import ClientTransaction


class Conflict(Exception):
    """A transaction cannot go on: error 112, or 246 where a collection is not what it was at its start."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Locked(Exception):
    """A write outside transactions met what an open transaction wrote."""

    def __init__(self, holder: ClientTransaction) -> None:
        super().__init__(f"locked by transaction {holder.number}")
        self.holder = holder


def write_conflict() -> Conflict:
    return Conflict(
        112,
        "WriteConflict error: this operation conflicted with another operation. Please retry your operation or "
        "multi-document transaction.",
    )


class TrialView(BufferedView):
    """A write tried out inside a write transaction. Raises `Locked` at the first key that somebody holds."""

    __slots__ = ("_txn",)

    def __init__(self, txn: WriteTransaction) -> None:
        super().__init__(txn, Overlay(txn.tables))
        self._txn = txn

    def claim(self, place: tuple[Any, bytes]) -> None:
        holder = self.store.transactions.locks.get(place)
        if holder is not None and holder.committing is not self._txn:
            raise Locked(holder)
