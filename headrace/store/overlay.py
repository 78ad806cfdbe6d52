"""Writes in memory over the tables: the KV transaction in which a client's statements read and write; and the locks.

    a key      the value in the overlay, otherwise the value in the tables of the state that is read
    a record   8 bytes from 2^63 on: provisional, sorted after all stored records
    a number   4 bytes from 2^31 on: a collection or an index that exists only in the overlay

`WriteTransaction` runs on it as on any KV transaction, with a provisional catalog, records and change log. The caller
decides about the writes: `client_transaction.TransactionView` keeps them until the client commits, `TrialView` discards
them.

A transaction locks each key of documents, ids, indexes or the catalog that it writes, until it ends.

    another transaction writes the key            → `Conflict`: it is aborted, and its client begins again
    a transaction writes a key that a commit has
    changed since the transaction's start         → `Conflict`
    a write outside transactions                  → waits, and does nothing before the lock is released

For the last case the write is first tried on a `TrialView`, which raises `Locked`. Source: MongoDB's write conflicts.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.memory_budget import Account
from headrace.store.catalog import Catalog, Collection, Index
from headrace.store.catalog_draft import CatalogDraft
from headrace.store.change_log import NO_LOG
from headrace.store.indexes.index_keys import Traits
from headrace.store.kv import Cursor, Table, TableKey, Transaction
from headrace.store.overlay_cursor import ChangedKeys, OverlayCursor
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.client_transaction import ClientTransaction
    from headrace.store.transaction_registry import Transactions


_ABSENT: Any = object()

Claim = Callable[[TableKey], None]
"""Called before a key is written; raises an error if the write is not allowed."""


class Overlay:
    """Values by table and key (None: deleted), and the same keys in order."""

    __slots__ = ("_account", "changed", "values")

    def __init__(self, tables: dict[str, Table], account: Account | None = None) -> None:
        self._account = account
        self.values: dict[TableKey, bytes | None] = {}
        self.changed = ChangedKeys(tables)

    def put(self, key: TableKey, value: bytes | None) -> None:
        """Set a key's value; None deletes it. Raises the account's error if there is not enough memory."""
        before = self.values.get(key, _ABSENT)
        self.values[key] = value
        self.changed.add(key)
        if self._account is not None:
            size = 0 if value is None else len(value)
            self._account.add(size + limits.VERSION_BYTES if before is _ABSENT else size - len(before or b""))


class OverlayTransaction:
    """A KV transaction that reads `base` through an overlay, and writes into the overlay."""

    __slots__ = ("_base", "_claim", "_overlay")

    def __init__(self, base: Transaction, overlay: Overlay, claim: Claim) -> None:
        self._base = base
        self._overlay = overlay
        self._claim = claim

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """Return the value of a key; None if it does not exist or is deleted."""
        value: bytes | None = self._overlay.values.get((db, key), _ABSENT)
        return value if value is not _ABSENT else self._base.get(key, db=db)

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Claim and write a key."""
        self._claim((db, key))
        self._overlay.put((db, key), value)
        return True

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Claim and write a key that does not exist."""
        return self.get(key, db=db) is None and self.put(key, value, db=db)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Claim and delete a key. Return False, without a claim, if it does not exist."""
        exists = self.get(key, db=db) is not None
        if exists:
            self._claim((db, key))
            self._overlay.put((db, key), None)
        return exists

    def drop(self, db: Table, *, delete: bool) -> None:
        """Not supported: no client's transaction empties a table."""
        raise NotImplementedError("a table is not dropped in a client's transaction")

    def cursor(self, db: Table) -> Cursor:
        """Return a cursor over the documents, ids or indexes as this transaction sees them."""
        return OverlayCursor(self, self._base.cursor(db), db, self._overlay.changed)

    def stat(self, db: Table) -> dict[str, int]:
        """Return the sizes of the table without the overlay."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Not supported: `transaction_commit` writes the overlay in a write transaction."""
        raise NotImplementedError("an overlay is committed by a write transaction")

    def abort(self) -> None:
        """End the read of the tables. The overlay remains."""
        self._base.abort()


class ProvisionalCatalog(CatalogDraft):
    """The catalog with objects that exist only in a client's transaction. They are never published."""

    __slots__ = ("_claim", "_created", "_transactions")

    def __init__(self, base: Catalog, created: dict[str, Collection], claim: Claim, transactions: Transactions) -> None:
        """`base`: a published catalog, or a write transaction's. `created`: the dict that receives the new collections,
        by namespace."""
        super().__init__(base, transactions.tables)
        self.builds = {}  # a key that an index cannot hold is refused in this catalog
        self._created = created
        self._claim = claim
        self._transactions = transactions

    def collection(self, namespace: str) -> Collection | None:
        """Return a collection or view by its namespace."""
        return self._created.get(namespace) or self.collections.get(namespace)

    def current(self, collection: Collection) -> Collection:
        """Return the present version of a collection."""
        created = self._created.get(collection.namespace)
        if created is not None and created.number == collection.number:
            return created
        return self.by_number.get(collection.number, collection)

    def definition_bytes(self, txn: Transaction) -> int:
        """Return the bytes of the long definitions, with all that exist only here."""
        return super().definition_bytes(txn) + sum(len(made.record()) for made in self._created.values())

    def create(
        self, txn: Transaction, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None,
        *, uuid: bytes | None = None, number: int | None = None, indexes: tuple[Index, ...] = (),
    ) -> Collection:  # fmt: skip
        """Add a collection to `created`. Raises an error if its name cannot be claimed."""
        self._claim((self._tables["catalog"], namespace.encode()))
        number = self.new_number(txn)
        if id_index is not None:
            indexes = (Index(self.new_number(txn), id_index), *indexes)
        collection = Collection(namespace, number, uuid or uuids.uuid4().bytes, kind, options, indexes)
        self._created[namespace] = collection
        return collection

    def save(self, txn: Transaction, collection: Collection) -> Collection:
        """Keep a changed collection of the transaction."""
        if collection.namespace in self._created:
            self._created[collection.namespace] = collection
        return collection

    def set_long_ids(self, txn: Transaction, collection: Collection) -> None:
        """Note a long `_id` in a collection of the transaction. The commit notes it in stored collections."""
        self.save(txn, self.current(collection).changed(long_ids=True))

    def add_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """Note traits in a collection of the transaction. The commit notes them in stored collections."""
        self.save(txn, self.current(collection).with_traits({index.number: traits}))

    def new_number(self, txn: Transaction) -> int:
        """Return a provisional number for a collection or an index."""
        return self._transactions.new_number()


class ProvisionalTransaction(WriteTransaction):
    """A write transaction whose writes are in an overlay. New documents have provisional records, and the published
    counts do not change."""

    __slots__ = ()

    def next_record(self, collection: Collection, count: int = 1) -> int:
        """Return the first of `count` records that no other view has."""
        return self.store.transactions.new_records(count)

    def add_count(self, collection: Collection, documents: int, size: int = 0, removed: bytes | None = None) -> None:
        """Do nothing: the published counts include committed documents only."""

    def is_counted(self, collection: Collection) -> bool:
        """Return True: `count` counts at once, so `count_on` need not count in pieces."""
        return True

    def count(self, collection: Collection) -> int:
        """Return the number of documents that the view shows."""
        return sum(1 for _ in self.records(collection))

    @property
    def makes_room(self) -> bool:
        """Return False: a capped collection is shortened at the commit."""
        return False


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
