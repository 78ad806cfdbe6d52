"""A KV transaction whose values carry checksums. A value damaged on the disk is an error, never a wrong document.

    stored   value + CRC-32C of key and value (4, little-endian)

The checksum follows the value, so that a document is still BSON from its first byte. One CRC over key and stored value
checks it: a CRC over data and its own CRC is always the same number. The key is included, so that a value under a
damaged or wrong key does not match either.

Rule: everything in the tables is read and written through this module, except `format` and `upgrade` in `meta`, which
tell whether values have checksums. Reads of keys alone check nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import add
from struct import Struct
from typing import Any, Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from headrace.errors import CommandError
from headrace.store.kv import Cursor, Table, TableKey
from headrace.values.rows import as_rows, longest

CHECKSUM_BYTES: Final = 4
RESIDUE: Final = 0x48674BC7
"""The CRC-32C of any data followed by its own CRC-32C."""
_START_AGAIN: Final = bytes.fromhex("6cd087d3")
"""These bytes, after data and its own CRC-32C, reset a CRC to its start. So the CRC of many such pieces, each followed
by these bytes, is 0. If a piece is damaged, the CRC is 0 only in one of 2^32 cases."""
DAMAGED: Final = 301
_PACK: Final = Struct("<I").pack
_LONG_BYTES: Final = 256 * 1024
_ROW_COUNT_MIN: Final = 16
"""The number of values of one length from which on they are packed as rows with their checksums."""

Describe = Callable[[Table, bytes], str]
"""Describes the thing stored under a table's key, for messages to clients."""


class DamagedValue(CommandError):
    """A stored value does not match its checksum or another table: 301 (DataCorruptionDetected). The message names
    it."""

    def __init__(self, what: str, problem: str = "does not match its checksum") -> None:
        super().__init__(DAMAGED, f"{what} {problem}: the data file is damaged")


def with_checksum(key: bytes, value: bytes) -> bytes:
    """Return a value as it is stored under a key."""
    if len(value) > _LONG_BYTES:  # putting the key before the value would copy the value
        return value + _PACK(extend(crc32c(key), value))
    return value + _PACK(crc32c(key + value))


def with_checksums(keys: Sequence[bytes], values: Sequence[bytes]) -> Iterable[bytes]:
    """Return the values as they are stored under the keys. Each is made when it is read."""
    rows = as_rows(values) if len(values) >= _ROW_COUNT_MIN else None
    if longest(rows or values) > _LONG_BYTES:
        return map(with_checksum, keys, values)
    checksums = map(crc32c, map(add, keys, values))
    if rows is not None:
        return map(Struct(f"<{rows.row_bytes}sI").pack, rows, checksums)
    return map(add, values, map(_PACK, checksums))


def is_intact(key: bytes, stored: bytes) -> bool:
    """Return whether a stored value matches its checksum."""
    if len(stored) > _LONG_BYTES:
        return bool(extend(crc32c(key), stored) == RESIDUE)
    return len(stored) >= CHECKSUM_BYTES and crc32c(key + stored) == RESIDUE


class CheckedTransaction:
    """A KV transaction over another one, with checksums of values. Raises `DamagedValue` if a checksum does not match.

    LMDB's arguments are given by position, because names cost 0.3 µs a call. The arguments of `put` are key, value,
    dupdata, overwrite, append, db.
    """

    __slots__ = ("_base", "_describe", "removed", "written")

    def __init__(self, base: Any, describe: Describe) -> None:
        """`base`: LMDB's transaction."""
        self._base = base
        self._describe = describe
        self.written: set[TableKey] | None = None
        """The keys that it has written, for open client transactions and a compaction; None: they are not recorded."""
        self.removed: set[TableKey] | None = None
        """The same for the keys that its cursors have deleted: rows that no client can see."""

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """Return the value of a key."""
        stored: bytes | None = self._base.get(key, None, db)
        if stored is None:
            return None
        if crc32c(key + stored) != RESIDUE:
            raise DamagedValue(self._describe(db, key))
        return stored[:-4]

    def get_many(self, keys: list[bytes], bytes_max: int, *, db: Table) -> list[bytes | None]:
        """Return the values of keys: the first, and more up to about `bytes_max`. All checksums are compared together,
        which takes half the time."""
        get, found, size, parts = self._base.get, list[bytes | None](), 0, list[bytes]()
        for key in keys:
            stored: bytes | None = get(key, None, db)
            if stored is None:
                found.append(None)
                continue
            found.append(stored[:-4])
            parts += (key, stored, _START_AGAIN)
            size += len(stored)
            if size >= bytes_max:
                break
        if size > _LONG_BYTES or crc32c(b"".join(parts)):
            for key, stored in zip(parts[::3], parts[1::3]):
                if not is_intact(key, stored):
                    raise DamagedValue(self._describe(db, key))
        return found

    def put(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put a value with its checksum."""
        stored = value + _PACK(crc32c(key + value)) if len(value) <= _LONG_BYTES else with_checksum(key, value)
        if self.written is not None:
            self.written.add((db, key))
        return self._base.put(key, stored, True, True, False, db)  # type: ignore[no-any-return]

    def put_new(self, key: bytes, value: bytes, *, db: Table) -> bool:
        """Put a value with its checksum, unless the key exists."""
        stored = value + _PACK(crc32c(key + value))
        is_put: bool = self._base.put(key, stored, True, False, False, db)
        if is_put and self.written is not None:
            self.written.add((db, key))
        return is_put

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Delete a key, also with a damaged value. Return whether it existed."""
        if self.written is not None:
            self.written.add((db, key))
        return self._base.delete(key, b"", db)  # type: ignore[no-any-return]

    def drop(self, db: Table, *, delete: bool) -> None:
        """Remove all items of a table."""
        self._base.drop(db, delete=delete)

    def cursor(self, db: Table) -> Cursor:
        """Return a cursor that checks the values it reads, but not the values it only passes."""
        return _CheckedCursor(self._base.cursor(db), db, self._describe, self.written, self.removed)

    def stat(self, db: Table) -> dict[str, int]:
        """Return the sizes of a table, checksums included."""
        return self._base.stat(db)  # type: ignore[no-any-return]

    def commit(self) -> None:
        """Commit."""
        self._base.commit()

    def abort(self) -> None:
        """Abort."""
        self._base.abort()


class SharedTransaction(CheckedTransaction):
    """A read transaction that several readers share. It ends with the last of them."""

    __slots__ = ("_number_base", "_reader_count", "tables")

    def __init__(self, base: Any, describe: Describe, tables: dict[str, Table], number_base: int) -> None:
        self._base, self._describe = base, describe  # saves the call of `super().__init__` per commit
        self.written = self.removed = None
        self._reader_count = 1
        self.tables = tables
        """The tables of the data file that the transaction reads. A compaction may have replaced that file."""
        self._number_base = number_base

    @property
    def number(self) -> int:
        """The number of the commit that the transaction reads."""
        return self._number_base + int(self._base.id())

    def join(self) -> None:
        """Add a reader."""
        self._reader_count += 1

    def abort(self) -> None:
        """Remove a reader; the last one ends the transaction."""
        self._reader_count -= 1
        if not self._reader_count:
            self._base.abort()
            self._base = None  # it refers to a data file that may have been replaced


class ThreadTransaction(CheckedTransaction):
    """A write transaction that one thread begins, commits and aborts. Other threads may use it in between."""

    __slots__ = ("_call",)

    def __init__(self, base: Any, describe: Describe, call: Callable[[Callable[[], None]], None]) -> None:
        """`call`: runs a function in the thread and waits for it."""
        super().__init__(base, describe)
        self._call = call

    def abort(self) -> None:
        """Abort in the thread, and wait until it has done so."""
        self._call(self._base.abort)


class _CheckedCursor:
    """A cursor that checks stored values."""

    __slots__ = ("_base", "_db", "_describe", "_removed", "_written")

    def __init__(
        self, base: Cursor, db: Table, describe: Describe, written: set[TableKey] | None, removed: set[TableKey] | None
    ) -> None:
        self._base = base
        self._db = db
        self._describe = describe
        self._written = written
        self._removed = removed

    def __enter__(self) -> _CheckedCursor:
        return self

    def __exit__(self, *failure: object) -> None:
        self._base.__exit__(*failure)

    def first(self) -> bool:
        return self._base.first()

    def last(self) -> bool:
        return self._base.last()

    def next(self) -> bool:
        return self._base.next()

    def prev(self) -> bool:
        return self._base.prev()

    def set_range(self, key: bytes, /) -> bool:
        return self._base.set_range(key)

    def key(self) -> bytes:
        return self._base.key()

    def value(self) -> bytes:
        return self.item()[1]

    def item(self) -> tuple[bytes, bytes]:
        key, stored = self._base.item()
        if not key:
            return key, stored
        if crc32c(key + stored) != RESIDUE:
            raise DamagedValue(self._describe(self._db, key))
        return key, stored[:-4]

    def delete(self) -> bool:
        if self._removed is not None:
            self._removed.add((self._db, self._base.key()))
        return self._base.delete()

    def put_many(
        self, keys: Sequence[bytes], values: Sequence[bytes], *, overwrite: bool = True, ascending: bool = False
    ) -> int:
        if self._written is not None:
            self._written.update((self._db, key) for key in keys)
        append = ascending and (not self._base.last() or self._base.key() < keys[0])
        items = zip(keys, with_checksums(keys, values))  # without a list: `zip` uses one pair for all items
        _, added = self._base.putmulti(items, overwrite=overwrite, append=append)  # type: ignore[attr-defined]
        return int(added)

    def iternext(self, *, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._checked(self._base.iternext()) if values else self._base.iternext(values=False)

    def iterprev(self, *, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._checked(self._base.iterprev())

    def chunk(
        self, prefix: bytes, count_max: int, bytes_max: int, *, backward: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return a chunk. All checksums are compared together, which takes half the time."""
        parts: list[bytes] = []
        size = 0
        for item in islice(self._base.iterprev() if backward else self._base.iternext(), count_max):
            parts += item
            parts.append(_START_AGAIN)
            size += len(item[1])
            if size >= bytes_max:
                break
        if size > bytes_max and len(parts) > 3:
            size -= len(parts[-2])
            del parts[-3:]
        while parts and not parts[-3].startswith(prefix):
            del parts[-3:]
        keys, stored = parts[::3], parts[1::3]
        if size > _LONG_BYTES or crc32c(b"".join(parts)):
            for key, value in zip(keys, stored):
                if not is_intact(key, value):
                    raise DamagedValue(self._describe(self._db, key))
        length = len(prefix)
        return list(zip([key[length:] for key in keys], [value[:-4] for value in stored]))

    def _checked(self, items: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in items:
            if len(stored) > _LONG_BYTES:
                if not is_intact(key, stored):
                    raise DamagedValue(self._describe(self._db, key))
            elif crc32c(key + stored) != RESIDUE:
                raise DamagedValue(self._describe(self._db, key))
            yield key, stored[:-4]
