"""The keys that are changed, in order: by collection or index, sorted in pieces as they come.

Neither an addition nor a walk sorts many keys at once, however many there are: some milliseconds at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from heapq import merge
from typing import Final

from headrace.store.kv import Table, TableKey
from headrace.turns import PIECE_COUNT

TRACKED: Final = ("documents", "ids", "indexes")
_RUN_COUNT_MAX: Final = 8 * PIECE_COUNT


class KeyOrder:
    """A set of keys that can be walked in order.

    _new     what was added last, a piece at most
    _runs    sorted lists, each longer than the next
    _full    sorted lists that do not grow any more

    A key that is discarded stays in its list until that is sorted or trimmed again.
    """

    __slots__ = ("_full", "_is_sorted", "_keys", "_new", "_runs")

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._new: list[bytes] = []
        self._is_sorted = True
        self._runs: list[list[bytes]] = []
        self._full: deque[list[bytes]] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """Add a key, if it is not in the set."""
        if key not in self._keys:
            self._keys.add(key)
            self._new.append(key)
            self._is_sorted = False
            if len(self._new) == PIECE_COUNT:
                self._trim()
                self._begin_run()

    def discard(self, key: bytes) -> None:
        """Remove a key, if it is in the set."""
        self._keys.discard(key)

    def set_sorted(self, keys: list[bytes]) -> None:
        """The set is these keys, in their order, and does not change."""
        self._full = deque([keys])

    def walk(self, start: bytes | None, *, backward: bool) -> Iterator[bytes]:
        """The keys from `start` on, included, in order or backward; without what is added meanwhile."""
        if not self._is_sorted:
            self._new = sorted(self._new)
            self._is_sorted = True
        lists = [keys for keys in (*self._full, *self._runs, self._new) if keys]
        walks = [_walk(keys, start, backward=backward) for keys in lists]
        keys = walks[0] if len(walks) == 1 else merge(*walks, reverse=backward)
        return filter(self._keys.__contains__, keys) if self._keys else keys

    def _begin_run(self) -> None:
        """What is new becomes a run, with those that are no longer."""
        run, self._new, self._is_sorted = sorted(self._new), [], True
        while self._runs and len(self._runs[-1]) <= len(run):
            run = sorted(self._of_set(self._runs.pop()) + run)
        if len(run) < _RUN_COUNT_MAX:
            self._runs.append(run)
        else:
            self._full.append(run)

    def _trim(self) -> None:
        """One of the full lists, each in its turn, loses what was discarded; what is left of two may become one."""
        if not self._full:
            return
        keys = self._of_set(self._full.popleft())
        if len(keys) < _RUN_COUNT_MAX // 2 and self._full:
            keys = sorted(keys + self._of_set(self._full.popleft()))
        if keys:
            self._full.append(keys)

    def _of_set(self, keys: list[bytes]) -> list[bytes]:
        return list(filter(self._keys.__contains__, keys))


def _walk(keys: list[bytes], start: bytes | None, *, backward: bool) -> Iterator[bytes]:
    if backward:
        numbers = range((len(keys) if start is None else bisect_right(keys, start)) - 1, -1, -1)
    else:
        numbers = range(0 if start is None else bisect_left(keys, start), len(keys))
    return map(keys.__getitem__, numbers)


class ChangedKeys:
    """The changed keys of the tables that are tracked, in order; sorted one collection or index at a time."""

    __slots__ = ("_orders",)

    def __init__(self, tables: dict[str, Table]) -> None:
        self._orders: dict[Table, dict[bytes, KeyOrder]] = {tables[name]: {} for name in TRACKED}

    def add(self, key: TableKey) -> None:
        """Add a key, if its table is tracked."""
        orders = self._orders.get(key[0])
        if orders is not None:
            orders.setdefault(key[1][:4], KeyOrder()).add(key[1])

    def set_sorted(self, table: Table, prefix: bytes, keys: list[bytes]) -> None:
        """The keys with this prefix are these, in their order, and do not change."""
        self._orders[table].setdefault(prefix, KeyOrder()).set_sorted(keys)

    def discard(self, key: TableKey) -> None:
        """Remove a key."""
        orders = self._orders.get(key[0])
        if orders is not None:
            order = orders[key[1][:4]]
            order.discard(key[1])
            if not order:
                del orders[key[1][:4]]

    def walk(self, table: Table, start: bytes | None, *, backward: bool) -> Iterator[bytes]:
        """The keys of a table from `start` on, included, in order or backward; None: all."""
        orders = self._orders.get(table, {})
        for prefix in sorted(orders, reverse=backward):
            if start is None or (prefix <= start[:4] if backward else prefix >= start[:4]):
                order = orders.get(prefix)
                if order is not None:
                    yield from order.walk(start, backward=backward)

    def by_collection(self, table: Table) -> list[tuple[bytes, list[bytes]]]:
        """(number key, the keys in order) of each collection."""
        orders = self._orders.get(table, {})
        return [(prefix, list(order.walk(None, backward=False))) for prefix, order in orders.items()]
