"""What others see of keys that the commit of a large transaction is changing piece by piece: what they held before.

    a key that it changes        its value before the first piece, None: nothing
    a record that it inserts     nothing: the records of its documents are one range in each collection
    any other key                what the tables hold

The keys are locked by the transaction, so that no other write changes them meanwhile. Once the last piece is on disk
the tables show it to new readers; readers that began before keep the before-images until they end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.store.changed_keys import TRACKED, ChangedKeys
from headrace.store.kv import Cursor, Table, TableKey, Transaction
from headrace.store.overlay_cursor import Item, OverlayCursor, walk

if TYPE_CHECKING:
    from headrace.store.store import Store

_ABSENT: Final[Any] = object()


class BeforeImages:
    """The keys of one transaction's commit, and what they held before. Does not change once others read through it."""

    __slots__ = ("changed", "documents", "hidden", "values")

    def __init__(self, store: Store) -> None:
        self.documents = store.tables["documents"]
        self.values: dict[TableKey, bytes | None] = {}
        self.changed = ChangedKeys(store.tables)
        self.hidden: dict[bytes, tuple[bytes, bytes]] = {}
        """(the first hidden key, the first behind them) of documents, by the key of the collection's number."""

    def before(self, key: TableKey) -> tuple[bytes | None] | None:
        """(what the key held before the commit); None where the commit does not change it."""
        value = self.values.get(key, _ABSENT)
        if value is not _ABSENT:
            return (value,)
        return (None,) if key[0] is self.documents and self.range_of(key[1]) is not None else None

    def range_of(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The hidden range that a key of a document is in."""
        hidden = self.hidden.get(key[:4])
        return hidden if hidden is not None and hidden[0] <= key < hidden[1] else None


class BeforeImageTransaction:
    """A KV transaction that reads changed keys as they were before, by the oldest commit, and writes to the tables."""

    __slots__ = ("_base", "_layers", "_tracked")

    def __init__(self, base: Transaction, layers: Sequence[BeforeImages], tables: dict[str, Table]) -> None:
        self._base = base
        self._layers = layers
        self._tracked = {tables[name] for name in TRACKED}

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """The value of a key."""
        for layer in self._layers:
            before = layer.before((db, key))
            if before is not None:
                return before[0]
        return self._base.get(key, db=db)

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put into the tables."""
        return self._base.put(key, value, db=db)

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put into the tables, unless the key is there, or was there before."""
        for layer in self._layers:
            before = layer.before((db, key))
            if before is not None and before[0] is not None:
                return False
        return self._base.put_new(key, value, db=db)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Delete from the tables."""
        return self._base.delete(key, db=db)

    def drop(self, db: Table, *, delete: bool) -> None:
        """Remove all items of a table, also what a commit in pieces has there."""
        self._base.drop(db, delete=delete)

    def cursor(self, db: Table) -> Cursor:
        """A cursor over the table with changed keys as they were before."""
        base = self._base.cursor(db)
        return _BeforeImageCursor(self, base, db, self._layers) if db in self._tracked else base

    def stat(self, db: Table) -> dict[str, int]:
        """The sizes of the table as it is."""
        return self._base.stat(db)

    def commit(self) -> None:
        """Commit."""
        self._base.commit()

    def abort(self) -> None:
        """Abort."""
        self._base.abort()


class _BeforeImageCursor(OverlayCursor):
    """A cursor that jumps over hidden documents, and has for other changed keys what they held before."""

    __slots__ = ("_ranges",)

    def __init__(self, txn: BeforeImageTransaction, base: Cursor, db: Table, layers: Sequence[BeforeImages]) -> None:
        super().__init__(txn, base, db, [layer.changed for layer in layers])
        self._ranges = [layer for layer in layers if layer.hidden and layer.documents is db]

    def putmulti(
        self, items: list[tuple[bytes, bytes]], *, overwrite: bool = True, append: bool = False, checked: bool = False
    ) -> tuple[int, int]:
        return self._base.putmulti(items, overwrite=overwrite, append=append, checked=checked)

    def _stored(self, start: bytes | None, *, backward: bool) -> Iterator[Item]:
        return self._jumping(start, backward=backward) if self._ranges else super()._stored(start, backward=backward)

    def _jumping(self, start: bytes | None, *, backward: bool) -> Iterator[Item]:
        while True:
            for item in walk(self._base, start, backward=backward):
                hidden = self._range_at(item[0])
                if hidden is not None:
                    break
                yield item
            else:
                return
            start = _before(hidden[0]) if backward else hidden[1]

    def _range_at(self, key: bytes) -> tuple[bytes, bytes] | None:
        for layer in self._ranges:
            hidden = layer.range_of(key)
            if hidden is not None:
                return hidden
        return None


def _before(key: bytes) -> bytes:
    """The last key of this length before it."""
    return (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")
