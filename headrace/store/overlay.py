"""Writes in memory over the tables: a KV transaction in which a client's statements read and write.

    a key      the write in the overlay, otherwise what the tables hold in the state that is read
    a record   8 bytes from 2^63 on: provisional, sorted after all that are stored
    a number   4 bytes from 2^31 on: that of a collection or an index which exists only here so far

`WriteTransaction` runs on it as on any other, with a catalog, records and a change log to match. What becomes of the
writes is the caller's: `client_transaction.TransactionView` stores them until the client commits, `locks.TrialView`
throws them away.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.memory_budget import Account
from headrace.store.catalog import Catalog, Collection, Index
from headrace.store.catalog_draft import CatalogDraft
from headrace.store.changed_keys import ChangedKeys
from headrace.store.indexes.index_keys import Traits
from headrace.store.kv import Cursor, Table, TableKey, Transaction
from headrace.store.overlay_cursor import OverlayCursor
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.transaction_registry import Transactions

_ABSENT: Any = object()

Claim = Callable[[TableKey], None]
"""Called before a key is written; raises what stands against it."""


class Overlay:
    """Values by table and key, None for a deletion; and the keys that are walked in order."""

    __slots__ = ("_account", "changed", "values")

    def __init__(self, tables: dict[str, Table], account: Account | None = None) -> None:
        self._account = account
        self.values: dict[TableKey, bytes | None] = {}
        self.changed = ChangedKeys(tables)

    def put(self, key: TableKey, value: bytes | None) -> None:
        """Set a key's value; None deletes it. Raises the error of the account where that has no memory for it."""
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
        """The value of a key, None where it is not or no longer there."""
        value: bytes | None = self._overlay.values.get((db, key), _ABSENT)
        return value if value is not _ABSENT else self._base.get(key, db=db)

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Claim and write a key."""
        self._claim((db, key))
        self._overlay.put((db, key), value)
        return True

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Claim and write a key that is not there."""
        return self.get(key, db=db) is None and self.put(key, value, db=db)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Claim and delete a key; False, and no claim, where it is not there."""
        exists = self.get(key, db=db) is not None
        if exists:
            self._claim((db, key))
            self._overlay.put((db, key), None)
        return exists

    def drop(self, db: Table, *, delete: bool) -> None:
        """Not done in memory: no client's transaction empties a table."""
        raise NotImplementedError("a table is not dropped in a client's transaction")

    def cursor(self, db: Table) -> Cursor:
        """A cursor over the table as this transaction sees it: one of documents, ids or indexes."""
        return OverlayCursor(self, self._base.cursor(db), db, self._overlay.changed)

    def stat(self, db: Table) -> dict[str, int]:
        """The sizes of the table without the overlay."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Not done here: `transaction_commit` writes the overlay in a write transaction."""
        raise NotImplementedError("an overlay is committed by a write transaction")

    def abort(self) -> None:
        """End the read of the tables; the overlay stays."""
        self._base.abort()


class ProvisionalCatalog(CatalogDraft):
    """The catalog with what exists in a client's transaction only. Nothing of it is published."""

    __slots__ = ("_claim", "_created", "_transactions")

    def __init__(self, base: Catalog, created: dict[str, Collection], claim: Claim, transactions: Transactions) -> None:
        """`base`: a published catalog, or a write transaction's. `created`: where the new collections are, by
        namespace."""
        super().__init__(base, transactions.tables)
        self.builds = {}  # what a write brings that an index cannot hold is refused here
        self._created = created
        self._claim = claim
        self._transactions = transactions

    def collection(self, namespace: str) -> Collection | None:
        """Return a collection or view by its namespace."""
        return self._created.get(namespace) or self.collections.get(namespace)

    def current(self, collection: Collection) -> Collection:
        """Return what a collection is now."""
        created = self._created.get(collection.namespace)
        if created is not None and created.number == collection.number:
            return created
        return self.by_number.get(collection.number, collection)

    def create(
        self, txn: Transaction, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None,
        *, uuid: bytes | None = None, number: int | None = None, indexes: tuple[Index, ...] = (),
    ) -> Collection:  # fmt: skip
        """Add a collection to `created`; raises what stands against its name."""
        self._claim((self._tables["catalog"], namespace.encode()))
        number = self.new_number(txn)
        if id_index is not None:
            indexes = (Index(self.new_number(txn), id_index), *indexes)
        collection = Collection(namespace, number, uuid or uuids.uuid4().bytes, kind, options, indexes)
        self._created[namespace] = collection
        return collection

    def save(self, txn: Transaction, collection: Collection) -> Collection:
        """Keep a collection of the transaction that has changed."""
        if collection.namespace in self._created:
            self._created[collection.namespace] = collection
        return collection

    def set_long_ids(self, txn: Transaction, collection: Collection) -> None:
        """Note it in a collection of the transaction; what is stored gets it at the commit."""
        self.save(txn, self.current(collection).changed(long_ids=True))

    def add_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """Note them in a collection of the transaction; what is stored gets them at the commit."""
        self.save(txn, self.current(collection).with_traits({index.number: traits}))

    def new_number(self, txn: Transaction) -> int:
        """Return a provisional number of a collection or an index."""
        return self._transactions.new_number()


class ProvisionalTransaction(WriteTransaction):
    """A write transaction whose writes are in an overlay: new documents have provisional records, and the counts of
    collections stay as they are."""

    __slots__ = ()

    def next_record(self, collection: Collection, count: int = 1) -> int:
        """Return the first of `count` records that no other view has."""
        return self.store.transactions.new_records(count)

    def add_count(self, collection: Collection, documents: int, size: int = 0, removed: bytes | None = None) -> None:
        """The published counts are those of what is committed."""

    def is_counted(self, collection: Collection) -> bool:
        """`count_of` need not count in pieces: `count` does so at once."""
        return True

    def count(self, collection: Collection) -> int:
        """Return how many documents the view shows."""
        return sum(1 for _ in self.records(collection))

    @property
    def makes_room(self) -> bool:
        """A capped collection is not shortened before the commit."""
        return False
