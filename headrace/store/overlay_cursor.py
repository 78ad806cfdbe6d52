"""A cursor that merges a table with the keys that a client's transaction has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from headrace.store.changed_keys import ChangedKeys
from headrace.store.kv import Cursor, Table, Transaction, chunk_of

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
