"""The keys that a client's transaction has changed, in order, and a cursor that merges a table with them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Final, TypeAlias

from headrace.store.kv import Cursor, Table, TableKey, Transaction, chunk_of

TRACKED: Final = ("documents", "ids", "indexes")
PIECE_COUNT: Final = 4096
"""The number of new keys that are sorted together."""


class KeyOrder:
    """A set of keys that can be walked in order. It has sorted lists, each longer than the next, and a list of new
    keys."""

    __slots__ = ("_is_sorted", "_keys", "_new", "_runs")

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._new: list[bytes] = []
        self._is_sorted = True
        self._runs: list[list[bytes]] = []

    def add(self, key: bytes) -> None:
        """Add a key, unless the set has it."""
        if key not in self._keys:
            self._keys.add(key)
            self._new.append(key)
            self._is_sorted = False
            if len(self._new) == PIECE_COUNT:
                self._begin_run()

    def walk(self, start: bytes | None, *, backward: bool) -> Iterator[bytes]:
        """Yield the keys from `start` on (included), in order or backward, without keys that are added meanwhile."""
        if not self._is_sorted:
            self._new = sorted(self._new)
            self._is_sorted = True
        walks = [_walk(keys, start, backward=backward) for keys in (*self._runs, self._new) if keys]
        return walks[0] if len(walks) == 1 else merge(*walks, reverse=backward)

    def _begin_run(self) -> None:
        """Make a run of the new keys and of all runs that are not longer."""
        run, self._new, self._is_sorted = sorted(self._new), [], True
        while self._runs and len(self._runs[-1]) <= len(run):
            run = sorted(self._runs.pop() + run)
        self._runs.append(run)


def _walk(keys: list[bytes], start: bytes | None, *, backward: bool) -> Iterator[bytes]:
    if backward:
        numbers = range((len(keys) if start is None else bisect_right(keys, start)) - 1, -1, -1)
    else:
        numbers = range(0 if start is None else bisect_left(keys, start), len(keys))
    return map(keys.__getitem__, numbers)


class ChangedKeys:
    """The changed keys of the tracked tables, in order. One collection or index is sorted at a time."""

    __slots__ = ("_orders",)

    def __init__(self, tables: dict[str, Table]) -> None:
        self._orders: dict[Table, dict[bytes, KeyOrder]] = {tables[name]: {} for name in TRACKED}

    def add(self, key: TableKey) -> None:
        """Add a key, unless its table is not tracked."""
        orders = self._orders.get(key[0])
        if orders is not None:
            orders.setdefault(key[1][:4], KeyOrder()).add(key[1])

    def walk(self, table: Table, start: bytes | None, *, backward: bool) -> Iterator[bytes]:
        """Yield a table's keys from `start` on (included; None: all), in order or backward."""
        orders = self._orders.get(table, {})
        for prefix in sorted(orders, reverse=backward):
            if start is None or (prefix <= start[:4] if backward else prefix >= start[:4]):
                order = orders.get(prefix)
                if order is not None:
                    yield from order.walk(start, backward=backward)

    def by_collection(self, table: Table) -> list[tuple[bytes, list[bytes]]]:
        """Return (number key, the keys in order) for each collection."""
        orders = self._orders.get(table, {})
        return [(prefix, list(order.walk(None, backward=False))) for prefix, order in orders.items()]


Item: TypeAlias = tuple[bytes, bytes | None]
"""A key and its value; None: the key does not exist."""


class OverlayCursor:
    """A cursor that merges a table with the changed keys. It holds its present item."""

    __slots__ = ("_base", "_changed_keys", "_db", "_item", "_txn")

    def __init__(self, txn: Transaction, base: Cursor, db: Table, changed_keys: ChangedKeys) -> None:
        self._txn = txn
        self._base = base
        self._db = db
        self._changed_keys = changed_keys
        self._item: tuple[bytes, bytes] | None = None

    def __enter__(self) -> Cursor:
        self._base.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._base.__exit__(*failure)

    def first(self) -> bool:
        return self._move(self._there(None))

    def last(self) -> bool:
        return self._move(self._there(None, backward=True))

    def next(self) -> bool:
        return self._item is not None and self.set_range(self._item[0] + b"\0")

    def prev(self) -> bool:
        at = self.key()
        return self._move(item for item in self._there(at, backward=True) if item[0] != at)

    def set_range(self, key: bytes, /) -> bool:
        return self._move(self._there(key))

    def key(self) -> bytes:
        return b"" if self._item is None else self._item[0]

    def value(self) -> bytes:
        return b"" if self._item is None else self._item[1]

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()

    def delete(self) -> bool:
        at = self.key()
        deleted = self._txn.delete(at, db=self._db)
        self.set_range(at)
        return deleted

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[bytes], *, overwrite: bool = True, ascending: bool = False
    ) -> int:
        """Claim and put each item. Without `overwrite` put nothing: the caller then tries the keys one by one to find
        which one is refused."""
        if not overwrite:
            return 0
        for key, value in zip(keys, values):
            self._txn.put(key, value, db=self._db)
        return len(keys)

    def iternext(self, *, keys: bool = True, values: bool = True) -> Iterator[Any]:
        items = self._there(None if self._item is None else self._item[0])
        return items if values else (key for key, _ in items)

    def iterprev(self, *, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._there(None if self._item is None else self._item[0], backward=True)

    def chunk(
        self, prefix: bytes, count_max: int, bytes_max: int, *, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return chunk_of(self.iterprev() if backward else self.iternext(), prefix, count_max, bytes_max)

    def _move(self, items: Iterator[tuple[bytes, bytes]]) -> bool:
        self._item = next(items, None)
        return self._item is not None

    def walk(self, start: bytes | None, *, backward: bool = False) -> Iterator[Item]:
        """Yield the items from `start` on (included; None: all), in order or backward. A deleted key is yielded with
        None, so that a walk over many deleted keys can pause."""
        return self._merged(walk(self._base, start, backward=backward), start, backward=backward)

    def _there(self, start: bytes | None, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return (item for item in self.walk(start, backward=backward) if item[1] is not None)  # type: ignore[misc]

    def _merged(self, stored: Iterator[Item], start: bytes | None, *, backward: bool) -> Iterator[Item]:
        """Yield the stored items, with the transaction's values of the changed keys."""
        changed = self._changed_keys.walk(self._db, start, backward=backward)
        pending = next(changed, None)
        for item in stored:
            while pending is not None and (pending > item[0] if backward else pending < item[0]):
                yield pending, self._txn.get(pending, db=self._db)
                pending = next(changed, None)
            if pending is None:
                yield item
                yield from stored
                return
            if pending == item[0]:
                yield pending, self._txn.get(pending, db=self._db)
                pending = next(changed, None)
            else:
                yield item
        while pending is not None:
            yield pending, self._txn.get(pending, db=self._db)
            pending = next(changed, None)


def walk(cursor: Cursor, start: bytes | None, *, backward: bool = False) -> Iterator[Item]:
    """Yield the items from `start` on (included; None: all), in order or backward. See `OverlayCursor.walk`."""
    if isinstance(cursor, OverlayCursor):
        return cursor.walk(start, backward=backward)
    if not backward:
        there = cursor.first() if start is None else cursor.set_range(start)
        return cursor.iternext() if there else iter(())
    if start is None or not cursor.set_range(start):
        there = cursor.last()
    else:
        there = cursor.key() == start or cursor.prev()
    return cursor.iterprev() if there else iter(())
