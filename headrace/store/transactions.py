"""All clients' transactions of a store: those that are open, with their locks, and how the last of each session ended.

Nothing of this survives a restart but what a commit has written: an open transaction is aborted by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.store.buffered import NUMBER_START, RECORD_START
from headrace.store.history import History, NotingTransaction
from headrace.store.transaction import ClientTransaction, State

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.writes import WriteTransaction

SETTLED: Final = "\x00settled"
"""What those wait for who cannot start while a commit is on its way to the disk."""


class Transactions:
    """The transactions of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open: dict[bytes, ClientTransaction] = {}
        """Those in progress, by session."""
        self.latest: dict[bytes, ClientTransaction] = {}
        """The last one of each session, emptied once it has ended."""
        self.locks: dict[tuple[Any, bytes], ClientTransaction] = {}
        self.history = History(store.tables)
        self.record = RECORD_START  # the next provisional record
        self.number = NUMBER_START  # the last provisional number of a collection or index
        self.listeners: list[Callable[[ClientTransaction], None]] = []
        """Hear of each transaction that ended."""
        self.wake: Callable[[str], None] = _nobody
        """Run again what waits for a key; set by the shell."""
        self.awaited = False
        """Somebody waits for the write transaction of the moment to be settled."""

    def start(self, session: bytes, number: int, now_ms: float) -> ClientTransaction:
        """Begin one. The caller has seen to it that the session's last has ended, and that nothing is being written."""
        if self._store.writing is not None:
            raise RuntimeError("a transaction may not start while a write transaction is open")
        transaction = ClientTransaction(self._store, session, number, now_ms)
        self.open[session] = self.latest[session] = transaction
        return transaction

    def end(self, transaction: ClientTransaction, state: State, now_ms: float) -> None:
        """Let go of all it holds; those who wait for it are run again. An ended one stays as it is."""
        if transaction.has_ended:
            return
        transaction.state = state
        transaction.ended_ms = now_ms
        del self.open[transaction.session]
        for place in transaction.claims:
            del self.locks[place]
        transaction.empty(self._store)
        if self.open:
            self.history.forget(min(other.snapshot for other in self.open.values()))
        else:
            self.history.clear()
        for listener in self.listeners:
            listener(transaction)
        self.wake(transaction.key)

    def is_committing(self, transaction: ClientTransaction) -> bool:
        """Whether its commit is on its way to the disk: then nobody may end it."""
        return transaction.committing is not None and transaction.committing is self._store.writing

    def abort_older(self, started_before_ms: float, now_ms: float) -> int:
        """Abort those that have been open for too long; returns how many."""
        old = [item for item in self.open.values() if item.started_ms <= started_before_ms]
        return sum(self.abort(item, now_ms) for item in old)

    def abort(self, transaction: ClientTransaction, now_ms: float) -> bool:
        """Abort it, unless its commit is on its way to the disk."""
        if transaction.has_ended or self.is_committing(transaction):
            return False
        self.end(transaction, State.ABORTED, now_ms)
        return True

    def forget(self, ended_before_ms: float) -> None:
        """Forget how the transactions of sessions that have long been quiet ended."""
        quiet = [key for key, item in self.latest.items() if item.has_ended and item.ended_ms < ended_before_ms]
        for session in quiet:
            del self.latest[session]

    # What the store calls.

    def noting(self, kv: Any) -> NotingTransaction:
        """A KV write transaction that keeps for the open ones what it overwrites."""
        return NotingTransaction(kv, self.history, self._store.tables)

    def published(self, txn: WriteTransaction) -> None:
        """The write transaction is on disk, and with it the commits it holds."""
        for transaction in txn.commits:
            self.end(transaction, State.COMMITTED, self._store.clock.monotonic_ms())
        self.settled()

    def settled(self) -> None:
        """No write transaction is open any more: who waited for that may start."""
        if self.awaited:
            self.awaited = False
            self.wake(SETTLED)

    def holder_of(self, namespace: str, txn: WriteTransaction) -> ClientTransaction | None:
        """An open transaction that has looked at or made a collection; `namespace` may be a database with its dot."""
        whole = namespace.endswith(".")
        for transaction in self.open.values():
            names = (*transaction.touched, *transaction.created)
            if transaction.committing is not txn and any(
                name.startswith(namespace) if whole else name == namespace for name in names
            ):
                return transaction
        return None


def _nobody(key: str) -> None:
    """No shell is there, and nobody waits."""
