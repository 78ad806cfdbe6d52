"""Writes in memory over the tables: a KV transaction in which a client's statements read and write.

    a key      the write in the overlay, else what the key held at the snapshot, else what the tables hold
    a record   8 bytes from 2^63 on: provisional, sorted behind all that are stored
    a number   4 bytes from 2^31 on: that of a collection or an index which exists nowhere else yet

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
from headrace.store.changed_keys import ChangedKeys
from headrace.store.history import History
from headrace.store.indexes.index_keys import Traits
from headrace.store.kv import Cursor, Table, TableKey, Transaction
from headrace.store.overlay_cursor import OverlayCursor

if TYPE_CHECKING:
    from headrace.store.transaction_registry import Transactions
    from headrace.store.view import View

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
    """A KV transaction that reads `base` through an overlay and a history, and writes into the overlay.

    With a `history` it reads as of the sequence `snapshot`; without one, what `base` holds.
    """

    __slots__ = ("_base", "_claim", "_history", "_overlay", "_snapshot")

    def __init__(
        self, base: Transaction, overlay: Overlay, claim: Claim, history: History | None = None, snapshot: int = 0
    ) -> None:
        self._base = base
        self._overlay = overlay
        self._claim = claim
        self._history = history
        self._snapshot = snapshot

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """The value of a key, None where it is not or no longer there."""
        value: bytes | None = self._overlay.values.get((db, key), _ABSENT)
        if value is not _ABSENT:
            return value
        if self._history is not None:
            before = self._history.before((db, key), self._snapshot)
            if before is not None:
                return before[0]
        return self._base.get(key, db=db)

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
        changed = [self._overlay.changed] if self._history is None else [self._overlay.changed, self._history.changed]
        return OverlayCursor(self, self._base.cursor(db), db, changed)

    def stat(self, db: Table) -> dict[str, int]:
        """The sizes of the table without the overlay."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Not done here: `transaction_commit` writes the overlay in a write transaction."""
        raise NotImplementedError("an overlay is committed by a write transaction")

    def abort(self) -> None:
        """End the read of the tables; the overlay stays."""
        self._base.abort()


class ProvisionalCatalog(Catalog):
    """The catalog with collections and indexes that exist in a client's transaction only."""

    def __init__(self, base: Catalog, created: dict[str, Collection], claim: Claim, transactions: Transactions) -> None:
        """`created`: where the new collections are, by namespace."""
        self._tables = base._tables
        self.collections = base.collections
        self.topics = base.topics
        self.builds = {}  # what a write brings that an index cannot hold is refused here
        self.version = base.version
        self.changed = base.changed
        self._created = created
        self._claim = claim
        self._transactions = transactions

    def collection(self, namespace: str) -> Collection | None:
        """A collection or view by its namespace."""
        return self._created.get(namespace) or self.collections.get(namespace)

    def create(
        self, txn: Transaction, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None,
        *, uuid: bytes | None = None, number: int | None = None,
    ) -> Collection:  # fmt: skip
        """Add a collection to `created`; raises what stands against its name."""
        self._claim((self._tables["catalog"], namespace.encode()))
        collection = Collection(namespace, self.new_number(txn), uuid or uuids.uuid4().bytes, kind, options, [])
        if id_index is not None:
            collection.set_indexes([Index(self.new_number(txn), id_index)])
        self._created[namespace] = collection
        return collection

    def save(self, txn: Transaction, collection: Collection) -> None:
        """What was added stays in memory: there is nothing to do."""

    def save_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """What is in memory is enough, until the write is done."""

    def new_number(self, txn: Transaction) -> int:
        """A provisional number of a collection or an index."""
        return self._transactions.new_number()


class ProvisionalRecords:
    """Records for documents that a client's transaction inserts; nothing of it changes a collection's own counters."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def next_record(self, view: View, collection: Collection, count: int) -> int:
        """The first of `count` records that no other view has."""
        return self._transactions.new_records(count)

    def add(self, collection: Collection, change: int, removed: bytes | None = None) -> None:
        """The counts in memory are those of what is committed."""

    def count(self, view: View, collection: Collection) -> int:
        """How many documents the view shows."""
        return sum(1 for _ in view.records(collection))
