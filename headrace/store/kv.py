"""The key-value interface that the store uses: environments, transactions and cursors.

`lmdb.py` implements it on LMDB. `RecordingTransaction` and `OverlayTransaction`, for example, wrap a transaction in the
same interface. Keys and values are bytes, keys of at most 511; a table is ordered by its keys as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeAlias, overload

if TYPE_CHECKING:
    from headrace.store.lmdb import DataFileCopy

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


class SharedRead(Transaction, Protocol):
    """A read transaction that several readers share. Each reader aborts it once; the last abort ends it."""

    tables: dict[str, Table]
    """The tables of the data file that the transaction reads. A compaction may have replaced that file."""

    @property
    def number(self) -> int:
        """The number of the commit that the transaction reads. Each commit to the data file increments it."""

    def join(self) -> None:
        """Add a reader."""


class Environment(Protocol):
    """An open data directory."""

    temporary: bool
    """Whether `close` removes the directory. A temporary directory is never synced."""
    path: Path
    tables: dict[str, Table]
    number_base: int
    """An offset to the commit numbers of the data file, so that numbers go on after the file is replaced."""

    @property
    def files(self) -> str:
        """A name for the present data file and its lock table. Files that replace them have another one."""

    @property
    def file_bytes(self) -> int:
        """The size of the data file on disk, in bytes."""

    def is_usable(self) -> bool:
        """Return whether transactions can begin. None can after the disk has failed in the middle of a commit."""

    def forget_dead_readers(self) -> int:
        """Free the pages that killed processes, which read beside this one, still hold; return the number of
        processes."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the map up to its last used page. Pages that commits cannot reuse make it grow."""

    describe: Callable[[Table, bytes], str]
    """Describes a damaged value in an error, given its table and key."""

    def name_of(self, table: Table) -> str:
        """Return the name of a table."""

    def begin_read(self) -> SharedRead:
        """Return a read transaction on the last commit, for one reader and all that `join` it.

        Every read of a value that does not match its checksum raises `DamagedValue`.
        """

    def begin_write(self) -> Transaction:
        """Begin the write transaction in this thread, which must also end it. The caller ensures that no other is
        open."""

    def begin_write_in(self, call: Callable[[Callable[[], None]], None]) -> Transaction:
        """Begin the write transaction in this thread, which must also commit it. `call` runs a function in this thread
        and waits for it."""

    def begin_plain(self, *, write: bool = False) -> Transaction:
        """Begin a transaction that returns values as they are stored, checksums included."""

    def reading(self) -> AbstractContextManager[SharedRead]:
        """Open a read transaction for the duration of a `with`."""

    def copy_to(self, descriptor: int) -> None:
        """Write the last commit, without free pages, to an open file. May run in any thread until `close`."""

    def open_copy(self, folder: Path) -> DataFileCopy:
        """Open a copy in a folder, written by `copy_to`, to update it."""

    def exchange(self, folder: Path) -> None:
        """Replace the data file by the file in a folder, which has the same rows. No write transaction may be open.

        Open read transactions keep the old file until the last of them ends. Raises `LmdbError` or `OSError` when
        nothing has changed; otherwise `HalfExchanged`.
        """

    def close(self) -> None:
        """Close the directory and free it for other processes."""
