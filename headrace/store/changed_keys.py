"""The changed keys of a transaction, in order. They are sorted per collection or index, in pieces."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from typing import Final

from headrace.store.kv import Table, TableKey

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
