"""The key-value interface that the store is written against: what it asks of an environment and its transactions.

`lmdb.py` opens the real one; `RecordingTransaction` and `OverlayTransaction`, for example, wrap a transaction in the
same interface. Keys and values are bytes, keys of at most 511; a table is ordered by its keys as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeAlias, overload

if TYPE_CHECKING:
    from headrace.store.lmdb import DataFileCopy

Table = NewType("Table", object)
"""The handle of an open table: opaque, compared by identity, good for every transaction of its environment."""

TableKey: TypeAlias = tuple[Table, bytes]
"""A table and a key of it: what is locked, overlaid and recorded."""


class Cursor(Protocol):
    """A position in a table. Moves answer whether there is an item there; without one `key()` is b"".

    After `delete` it is on the item that followed, if there is one.
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
        """Move to the item before."""

    def set_range(self, key: bytes, /) -> bool:
        """Move to the first key that is `key` or greater."""

    def key(self) -> bytes: ...

    def value(self) -> bytes: ...

    def item(self) -> tuple[bytes, bytes]:
        """(key, value) of the item it is on."""

    def delete(self) -> bool: ...

    def putmulti(
        self, items: list[tuple[bytes, bytes]], *, overwrite: bool = True, append: bool = False
    ) -> tuple[int, int]:
        """Put many: (items read, items added). Without `overwrite` keys that are there stay as they are.

        `append`: the keys are ascending, and all greater than the table's last.
        """

    @overload
    def iternext(
        self, *, keys: Literal[True] = True, values: Literal[True] = True
    ) -> Iterator[tuple[bytes, bytes]]: ...

    @overload
    def iternext(self, *, keys: Literal[True] = True, values: Literal[False]) -> Iterator[bytes]: ...

    def iternext(self, *, keys: Literal[True] = True, values: bool = True) -> Iterator[Any]:
        """(key, value), or keys alone, from the item it is on, included; from the first, if it was not moved yet."""

    def iterprev(self, *, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """The same backward."""

    def chunk(
        self, prefix: bytes, count_max: int, bytes_max: int, *, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """(key without the prefix, value) of the items with this prefix from the one it is on, included: at least one,
        and at most this number of items and bytes of values. Where it stands afterwards is not defined."""


def chunk_of(
    items: Iterator[tuple[bytes, bytes]], prefix: bytes, count_max: int, bytes_max: int
) -> list[tuple[bytes, bytes]]:
    """`Cursor.chunk` of the items of a walk."""
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
    """A consistent view of all tables; a write transaction sees its own changes."""

    def get(self, key: bytes, *, db: Table) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Return whether the value was put. Raise `LmdbError` where the map is full, as every other write does."""

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put, unless the key is there: whether it was put."""

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Whether the key was there."""

    def drop(self, db: Table, *, delete: bool) -> None:
        """Remove all items of a table; with `delete` the table too."""

    def cursor(self, db: Table) -> Cursor: ...

    def stat(self, db: Table) -> dict[str, int]:
        """`entries`, `psize` (bytes of a page) and the numbers of the table's pages, as LMDB counts them."""

    def commit(self) -> None:
        """When it returns, the changes are on disk (at default settings)."""

    def abort(self) -> None: ...


class SharedRead(Transaction, Protocol):
    """A read transaction of several readers, each of which aborts it once; it ends with the last of them."""

    tables: dict[str, Table]
    """The tables of the data file that it reads, which may have been replaced since."""

    @property
    def number(self) -> int:
        """The number of the commit that it reads. Each commit to the data file has the next one."""

    def join(self) -> None:
        """Count one more reader."""


class Environment(Protocol):
    """An open data directory."""

    temporary: bool
    """Removed by `close`, and never synced."""
    path: Path
    tables: dict[str, Table]
    number_base: int
    """Added to the number of a commit in the data file, so that numbers go on where the file is replaced."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the data file on disk."""

    def is_usable(self) -> bool:
        """Return whether transactions can begin, which none can after the disk has failed in the middle of a commit."""

    def forget_dead_readers(self) -> int:
        """Free the pages that processes hold which read beside this one and were killed; return how many did."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the map up to its last used page: pages that commits cannot use again make it grow."""

    describe: Callable[[Table, bytes], str]
    """Says in an error what a damaged value is, by its table and key."""

    def name_of(self, table: Table) -> str:
        """The name of a table."""

    def begin_read(self) -> SharedRead:
        """Return a read transaction on the last commit, for one reader and all that `join` it.

        Whatever reads a value that does not match its checksum raises `DamagedValue`.
        """

    def begin_write(self) -> Transaction:
        """Begin the write transaction in this thread, which also ends it. The caller sees to it that there is one."""

    def begin_write_in(self, call: Callable[[Callable[[], None]], None]) -> Transaction:
        """Begin the write transaction in this thread, which also commits it. `call`: calls a function in this thread,
        and waits for it."""

    def begin_plain(self, *, write: bool = False) -> Transaction:
        """A transaction that shows values as they are stored, checksums included."""

    def reading(self) -> AbstractContextManager[SharedRead]:
        """A read transaction for the length of a `with`."""

    def copy_to(self, descriptor: int) -> None:
        """Write the last commit to an open file, without free pages; in any thread, while it is not closed."""

    def open_copy(self, folder: Path) -> DataFileCopy:
        """Open a copy of the data file that `copy_to` has written to a folder, to bring it up to date."""

    def exchange(self, folder: Path) -> None:
        """Put the file in a folder, which holds the same, in the place of the data file. No write transaction is open.

        Open read transactions keep the old file, which goes with the last of them. Raises `LmdbError` and `OSError`,
        and nothing has changed; or `HalfExchanged`.
        """

    def close(self) -> None:
        """Close the directory and free it for other processes."""
