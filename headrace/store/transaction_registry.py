"""All clients' transactions of a store: the open ones with their locks, and the outcome of each session's last one.

A restart keeps only committed writes. Open transactions are thereby aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.store.client_transaction import ClientTransaction, TransactionState
from headrace.store.kv import Table, TableKey
from headrace.store.overlay import write_conflict
from headrace.store.overlay_cursor import TRACKED
from headrace.store.written_keys import WrittenKeys

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction

_LOOK_COUNT: Final = 64  # the number of sessions to search for one whose transaction has ended
RECORD_START: Final = 1 << 63
NUMBER_START: Final = 1 << 31
"""The start of provisional records, and of provisional numbers of collections and indexes; see `overlay.py`."""

SETTLED: Final = "\x00settled"
"""The wake-up key of transactions that cannot start while a commit is being written to the disk."""


class Transactions:
    """The transactions of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open: dict[bytes, ClientTransaction] = {}
        """Transactions in progress, by session."""
        self.latest: dict[bytes, ClientTransaction] = {}
        """The last transaction of each session, emptied when it ends."""
        self.locks: dict[TableKey, ClientTransaction] = {}
        account = store.memory.account(
            "the keys written since the oldest transaction began", self._abort_oldest, may_close=False
        )
        self.written = WrittenKeys(account)
        self._next_record = RECORD_START
        self._last_number = NUMBER_START
        self.listeners: list[Callable[[ClientTransaction], None]] = []
        """Called with each transaction that ended."""
        self.wake_listeners: list[Callable[[str], None]] = []
        """Called with a key whose waiters may go on: an ended transaction's, or `SETTLED`."""
        self.awaited = False
        """Whether a transaction waits until the present write transaction is settled."""

    @property
    def tables(self) -> dict[str, Table]:
        """The store's tables."""
        return self._store.tables

    def start(self, session: bytes, number: int, now_ms: float) -> ClientTransaction:
        """Begin a transaction. The session's last transaction has ended, and no write transaction may be open."""
        if self._store.writing is not None:
            raise RuntimeError("a transaction may not start while a write transaction is open")
        transaction = ClientTransaction(self._store, session, number, now_ms)
        transaction.account.add(limits.OPEN_TRANSACTION_BYTES)
        self.latest.pop(session, None)  # so that the newest is last in the order
        self.open[session] = self.latest[session] = transaction
        if len(self.latest) > limits.ENDED_TRANSACTION_COUNT_MAX:
            self._forget_oldest()
        return transaction

    def _forget_oldest(self) -> None:
        """Forget the outcome of the longest idle session's transaction. Its session record still has it."""
        oldest = next((key for key, item in islice(self.latest.items(), _LOOK_COUNT) if item.has_ended), None)
        if oldest is not None:
            del self.latest[oldest]

    def end(self, transaction: ClientTransaction, state: TransactionState, now_ms: float) -> None:
        """End a transaction, release its locks and memory, and wake the commands that wait for it. An ended one is
        unchanged."""
        if transaction.has_ended:
            return
        transaction.state = state
        transaction.ended_ms = now_ms
        del self.open[transaction.session]
        for key in transaction.claims:
            if self.locks.get(key) is transaction:
                del self.locks[key]
        transaction.committing = None
        transaction.empty(self._store)
        transaction.account.close()
        transaction.snapshot.close()
        since = min((other.since for other in self.open.values()), default=self.written.sequence)
        self.written.forget(since)
        for listener in self.listeners:
            listener(transaction)
        self._wake(transaction.key)

    def _wake(self, key: str) -> None:
        for listener in self.wake_listeners:
            listener(key)

    def is_committing(self, transaction: ClientTransaction) -> bool:
        """Return whether its commit is being written to the disk. Such a transaction must not be ended."""
        return transaction.committing is not None and transaction.committing is self._store.writing

    def abort_older(self, started_before_ms: float, now_ms: float) -> int:
        """Abort the transactions that started at `started_before_ms` or earlier; return their number."""
        old = [item for item in self.open.values() if item.started_ms <= started_before_ms]
        return sum(self.abort(item, now_ms) for item in old)

    def abort(self, transaction: ClientTransaction, now_ms: float) -> bool:
        """Abort a transaction, unless its commit is being written to the disk. Return whether it was aborted."""
        if transaction.has_ended or self.is_committing(transaction):
            return False
        self.end(transaction, TransactionState.ABORTED, now_ms)
        return True

    def _abort_oldest(self) -> None:
        """Abort the oldest transaction, because the memory of the keys written since it began is needed."""
        oldest = min(self.open.values(), key=lambda item: item.since, default=None)
        if oldest is not None:
            self.abort(oldest, self._store.clock.monotonic_ms())

    def forget(self, ended_before_ms: float) -> None:
        """Forget the outcomes of transactions that ended before `ended_before_ms`."""
        unused = [key for key, item in self.latest.items() if item.has_ended and item.ended_ms < ended_before_ms]
        for session in unused:
            del self.latest[session]

    # Called by views.

    def claim(self, transaction: ClientTransaction, key: TableKey) -> None:
        """Lock a key for a transaction. Raises `Conflict` 112 if another transaction has locked it or a commit has
        changed it."""
        holder = self.locks.get(key)
        if holder is transaction:
            return
        if (holder is not None and not holder.has_ended) or self.written.has_changed(key, transaction.since):
            raise write_conflict()
        if len(transaction.claims) >= limits.TRANSACTION_KEY_COUNT_MAX:
            raise CommandError(
                257,
                "Total number of documents and keys of indexes that a transaction writes must be at most "
                f"{limits.TRANSACTION_KEY_COUNT_MAX}",
            )
        self.locks[key] = transaction
        transaction.claims.append(key)

    @property
    def writing(self) -> WriteTransaction | None:
        """The write transaction that is open or being written to the disk."""
        return self._store.writing

    def new_records(self, count: int) -> int:
        """Return the first of `count` provisional records that were never given out."""
        first = self._next_record
        self._next_record += count
        return first

    def new_number(self) -> int:
        """Return a provisional number for a collection or index. Numbers repeat after 2^31 calls."""
        self._last_number = self._last_number + 1 if self._last_number < 2 * NUMBER_START - 1 else NUMBER_START
        return self._last_number

    # Called by the store.

    def record(self, keys: Set[TableKey]) -> None:
        """Compare the keys that a write transaction will add to `keys` with those of the open transactions."""
        self.written.begin(keys, {self.tables[name] for name in TRACKED})

    def published(self, txn: WriteTransaction) -> None:
        """End the transactions that a published write transaction has committed."""
        if self.written.open and len(self.open) > len(txn.commits):  # others may conflict
            self.written.publish()
        for transaction in txn.commits:
            self.end(transaction, TransactionState.COMMITTED, self._store.clock.monotonic_ms())
        self.settled()

    def settled(self) -> None:
        """Wake transactions that waited until no write transaction is open."""
        self.written.open = frozenset()
        if self.awaited:
            self.awaited = False
            self._wake(SETTLED)

    def holder_of(self, namespace: str, txn: WriteTransaction) -> ClientTransaction | None:
        """Return an open transaction that has used or created a collection. `namespace` may be a database with its
        dot."""
        is_database = namespace.endswith(".")
        for transaction in self.open.values():
            names = (*transaction.touched, *transaction.created)
            if transaction.committing is not txn and any(
                name.startswith(namespace) if is_database else name == namespace for name in names
            ):
                return transaction
        return None
