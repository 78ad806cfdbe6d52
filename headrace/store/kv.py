"""The key-value interface that the store uses: transactions and cursors.

`lmdb.py` opens them on LMDB. `OverlayTransaction` wraps a transaction in the same interface. Keys and values are bytes,
keys of at most 511; a table is ordered by its keys as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NewType, Protocol, TypeAlias, overload

Table = NewType("Table", object)
"""The handle of an open table: opaque, compared by identity, valid in every transaction of its environment."""

TableKey: TypeAlias = tuple[Table, bytes]
"""A table and one of its keys. Locks, overlays and records of changes use such pairs."""


class Cursor(Protocol):
    """A position in a table. Moves return whether an item is there. Without an item `key()` is b"".

    After `delete` the cursor is on the following item, if there is one.
    """

    def __enter__(self) -> Cursor: ...

    def __exit__(self, *failure: object) -> Any: ...

    def first(self) -> bool:
        """Move to the first item."""

    def last(self) -> bool:
        """Move to the last item."""

    def next(self) -> bool:
        """Move to the next item."""

    def prev(self) -> bool:
        """Move to the previous item."""

    def set_range(self, key: bytes, /) -> bool:
        """Move to the first key that is equal to `key` or greater."""

    def key(self) -> bytes: ...

    def value(self) -> bytes: ...

    def item(self) -> tuple[bytes, bytes]:
        """Return (key, value) of the present item."""

    def delete(self) -> bool: ...

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[bytes], *, overwrite: bool = True, ascending: bool = False
    ) -> int:
        """Put the value of each key; return how many were put. Without `overwrite` existing keys keep their values.

        `ascending`: the keys are, which is quicker if they are greater than all keys in the table.
        """

    @overload
    def iternext(
        self, *, keys: Literal[True] = True, values: Literal[True] = True
    ) -> Iterator[tuple[bytes, bytes]]: ...

    @overload
    def iternext(self, *, keys: Literal[True] = True, values: Literal[False]) -> Iterator[bytes]: ...

    def iternext(self, *, keys: Literal[True] = True, values: bool = True) -> Iterator[Any]:
        """Yield (key, value), or only keys, from the present item on (included). A new cursor starts at the first
        item."""

    def iterprev(self, *, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same items backward."""

    def chunk(
        self, prefix: bytes, count_max: int, bytes_max: int, *, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return (key without the prefix, value) of the items with this prefix, from the present item on (included): at
        least one item, at most `count_max` items and `bytes_max` bytes of values. Afterwards the position is
        undefined."""


def chunk_of(
    items: Iterator[tuple[bytes, bytes]], prefix: bytes, count_max: int, bytes_max: int
) -> list[tuple[bytes, bytes]]:
    """Return `Cursor.chunk` for the items of a walk."""
    chunk: list[tuple[bytes, bytes]] = []
    size, length = 0, len(prefix)
    for key, value in items:
        if key[:length] != prefix:
            break
        size += len(value)
        if size > bytes_max and chunk:
            break
        chunk.append((key[length:], value))
        if size >= bytes_max or len(chunk) >= count_max:
            break
    return chunk


class Transaction(Protocol):
    """A consistent view of all tables. A write transaction sees its own changes."""

    def get(self, key: bytes, *, db: Table) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Return whether the value was put. Every write raises `LmdbError` if the map is full."""

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put the value unless the key exists. Return whether it was put."""

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Delete a key. Return whether it existed."""

    def drop(self, db: Table, *, delete: bool) -> None:
        """Remove all items of a table; with `delete` remove the table, too."""

    def cursor(self, db: Table) -> Cursor: ...

    def stat(self, db: Table) -> dict[str, int]:
        """Return `entries`, `psize` (bytes of a page) and the numbers of the table's pages, as LMDB counts them."""

    def commit(self) -> None:
        """Commit. On return the changes are on disk (at default settings)."""

    def abort(self) -> None: ...
