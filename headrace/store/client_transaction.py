"""A client's transaction: its writes in memory, its snapshot, and the view through which its statements run.

    IN_PROGRESS ── commit is on disk ──▶ COMMITTED
         └──────── abort, conflict, error, time ──▶ ABORTED

Statements run like reads: they write nothing into the tables. The commit (`transaction_commit.py`) is one write with
one oplog entry, or a chain of entries. Source: MongoDB's multi-document transactions, read concern snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from bson import Binary

from headrace import limits
from headrace.errors import CommandError
from headrace.store import entries
from headrace.store.catalog import Catalog, Collection, Index
from headrace.store.indexes.index_keys import NO_TRAITS, Traits
from headrace.store.kv import TableKey, Transaction
from headrace.store.overlay import (
    Claim,
    Conflict,
    Overlay,
    OverlayTransaction,
    ProvisionalCatalog,
    ProvisionalTransaction,
)
from headrace.store.view import HeldState
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.store.store import Store


class TransactionState(Enum):
    """The state of a client's transaction."""

    IN_PROGRESS = "in progress"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class AppliedOperation:
    """One change: its raw element of `applyOps`, the namespace for the oplog's index, and its pre-image if one is
    stored."""

    item: bytes
    topic: str
    image: tuple[Collection, bytes] | None = None


class ClientTransaction:
    """One transaction of one session."""

    __slots__ = (
        "account", "bytes", "catalog_version", "claims", "committing", "created", "cursors", "ended_ms", "key",
        "long_ids", "lsid", "number", "operations", "overlay", "session", "since", "snapshot", "started_ms",
        "state", "touched", "traits",
    )  # fmt: skip

    def __init__(self, store: Store, session: bytes, number: int, now_ms: float) -> None:
        self.session = session
        self.number = number
        self.lsid: dict[str, Any] | None = None
        """The session's `lsid` as other users see it, if a user began the session on a server with authorization."""
        self.state = TransactionState.IN_PROGRESS
        self.started_ms = now_ms
        self.ended_ms = now_ms
        self.key = f"\x00transaction {session.hex()} {number}"
        """The wake-up key of commands that wait for the transaction's end."""
        self.committing: WriteTransaction | None = None
        """The write transaction that commits these writes. They count once it is published."""
        self.snapshot = HeldState(store)
        self.since = store.transactions.written.sequence
        self.catalog_version = store.catalog.version
        self.cursors: set[int] = set()
        self.account = store.memory.account(
            f"transaction {number}",
            lambda: self._abort(store),
            _too_large,
        )
        """Counts the memory of the transaction's writes."""
        self.empty(store)

    def empty(self, store: Store) -> None:
        """Discard all changes of the transaction."""
        self.overlay = Overlay(store.tables, self.account)
        self.operations: list[AppliedOperation] = []
        self.bytes = 0
        self.claims: list[TableKey] = []
        self.created: dict[str, Collection] = {}
        self.touched: dict[str, bytes] = {}  # namespace → number key, of all collections it has used
        self.traits: dict[int, Traits] = {}  # added by its documents, by the index's number
        self.long_ids: set[int] = set()  # the numbers of collections into which it inserted a long `_id`

    def _abort(self, store: Store) -> None:
        """Abort, because the memory budget needs the transaction's memory."""
        store.transactions.abort(self, store.clock.monotonic_ms())

    @property
    def has_ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self.state is not TransactionState.IN_PROGRESS

    def over(self) -> bool:
        """Return `has_ended`, for commands that wait."""
        return self.has_ended


def _too_large() -> CommandError:
    """Return the error of a transaction that was aborted to free its memory."""
    return CommandError(257, "the transaction was aborted: it has written more than the server has memory for")


class TransactionView(ProvisionalTransaction):
    """The view of one statement of a transaction. The view ends with the statement; the changes remain."""

    __slots__ = ()

    def __init__(self, store: Store, transaction: ClientTransaction) -> None:
        claim = partial(store.transactions.claim, transaction)
        super().__init__(
            store,
            OverlayTransaction(transaction.snapshot.kv, transaction.overlay, claim),
            catalog=TransactionCatalog(store, transaction, claim),
            changes=TransactionLog(transaction),
        )


class TransactionCatalog(ProvisionalCatalog):
    """The catalog as of a transaction's start, with the collections that the transaction has created."""

    def __init__(self, store: Store, transaction: ClientTransaction, claim: Claim) -> None:
        super().__init__(store.catalog, transaction.created, claim, store.transactions)
        self._store = store
        self._transaction = transaction

    def collection(self, namespace: str) -> Collection | None:
        """Return a collection or view. Raises `Conflict` 246 if it has changed since the transaction's start."""
        transaction = self._transaction
        created = transaction.created.get(namespace)
        if created is not None:
            return created
        # Use the newest catalog instead of the statement's: other clients may have changed the collection while the
        # statement paused.
        newest = self._store.catalog
        if newest.changed.get(namespace, 0) > transaction.catalog_version or self._is_changing(newest, namespace):
            raise Conflict(
                246,
                "Unable to read from a snapshot due to pending collection catalog changes to collection "
                f"'{namespace}'; please retry the operation.",
            )
        collection = newest.collections.get(namespace)
        if collection is not None:
            transaction.touched[namespace] = collection.number_key
            if transaction.traits:
                collection = collection.with_traits(transaction.traits)
            if collection.number in transaction.long_ids and not collection.long_ids:
                collection = collection.changed(long_ids=True)
        return collection

    def _is_changing(self, newest: Catalog, namespace: str) -> bool:
        """Return whether the unpublished write transaction changes which collection the namespace means, its options,
        its indexes, or which indexes are ready. That transaction did not check what this one is about to use."""
        writing = self._transactions.writing
        if writing is None:
            return False
        now, then = newest.collections.get(namespace), writing.catalog.collections.get(namespace)
        if now is None or then is None or now is then:
            return now is not then
        if now.number != then.number or now.options != then.options:
            return True
        return {(index.number, index.building) for index in now.maintained} != {
            (index.number, index.building) for index in then.maintained
        }

    def add_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """Note the traits of a document of the transaction. The commit saves them."""
        if collection.namespace in self._created:
            super().add_traits(txn, collection, index, traits)
            return
        known = self._transaction.traits
        known[index.number] = known.get(index.number, NO_TRAITS) | traits

    def set_long_ids(self, txn: Transaction, collection: Collection) -> None:
        """Note that the transaction has inserted a long `_id`. The commit saves it."""
        self._transaction.long_ids.add(collection.number)
        super().set_long_ids(txn, collection)


class TransactionLog:
    """A change log that collects the elements of the transaction's `applyOps`."""

    def __init__(self, transaction: ClientTransaction) -> None:
        self._transaction = transaction

    def insert(
        self, txn: WriteTransaction, collection: Collection, document: bytes, key: bytes, position: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        self._add(AppliedOperation(entries.operation(collection.insert_head, document, None), collection.namespace))

    def insert_many(
        self, txn: WriteTransaction, collection: Collection, documents: list[bytes], keys: list[bytes], first: int,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        for position, (document, key) in enumerate(zip(documents, keys), first):
            self.insert(txn, collection, document, key, position, retryable)

    def change(
        self, txn: WriteTransaction, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        image = (collection, old) if collection.images else None
        self._add(AppliedOperation(entries.operation(head, o, o2), collection.namespace, image))

    def command(
        self, txn: WriteTransaction, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None,
        also: tuple[str, ...],
    ) -> int:  # fmt: skip
        item: dict[str, Any] = {"op": "c", "ns": f"{database}.$cmd"}
        if uuid is not None:
            item["ui"] = Binary(uuid, 4)
        self._add(AppliedOperation(encode({**item, "o": o}), f"{database}.$cmd"))
        return 0

    def _add(self, operation: AppliedOperation) -> None:
        transaction = self._transaction
        transaction.bytes += len(operation.item)
        if transaction.bytes > limits.TRANSACTION_BYTES_MAX:
            raise CommandError(
                257,
                "Total size of all transaction operations must be less than server parameter "
                f"'transactionSizeLimitBytes' = {limits.TRANSACTION_BYTES_MAX}",
            )
        transaction.operations.append(operation)
        transaction.account.add(limits.VERSION_BYTES + len(operation.item))
