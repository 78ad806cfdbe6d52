"""The stored rows of all tables. Each faulty value is reported once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bson.errors import BSONError

from headrace.store.catalog import Catalog, load, rows_of
from headrace.store.checksums.names import describe
from headrace.store.checksums.transaction import CHECKSUM_BYTES, is_intact
from headrace.store.checksums.upgrade import PLAIN_KEYS
from headrace.store.kv import Table, Transaction
from headrace.values.bson import decode


class Rows:
    """A plain transaction on a data directory, and the problems found in it."""

    def __init__(
        self, kv: Transaction, tables: dict[str, Table], *, checksums: bool, advance: Callable[[str, int, int], object]
    ) -> None:
        self._kv = kv
        self._tables = tables
        self._checksums = checksums
        self._advance = advance
        self._row_count = sum(kv.stat(table)["entries"] for table in tables.values())
        self._seen_count = 0
        self.catalog = Catalog()
        """Empty until `load_catalog`."""
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        """The number of rows in each table that was walked."""

    def load_catalog(self, kv: Transaction) -> None:
        """Read the catalog through `kv`. Raises an error if it cannot be read."""
        self.catalog = load(rows_of(kv, self._tables))

    def name(self, table: str, key: bytes) -> str:
        """Return a description of the thing stored under a key."""
        return describe(self.catalog, table, key)

    def walk(self, table: str, first: bytes = b"", last: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the rows whose values match their checksums; report the other rows as problems.

        The walk is from `first` to `last`, both inclusive. A walk through a whole table counts its rows.
        """
        with self._kv.cursor(self._tables[table]) as cursor:
            if not (cursor.set_range(first) if first else cursor.first()):
                return
            for key, stored in cursor.iternext():
                if last is not None and key > last:
                    return
                if not first:
                    self.counts[table] += 1
                    self._seen_count += 1
                    self._advance("rows", self._seen_count, self._row_count)
                if not self._checksums or (table == "meta" and key in PLAIN_KEYS):
                    yield key, stored
                elif is_intact(key, stored):
                    yield key, stored[:-CHECKSUM_BYTES]
                elif not first:
                    self.problems.append(f"{self.name(table, key)} does not match its checksum")

    def keys(self, table: str, first: bytes, last: bytes) -> Iterator[bytes]:
        """Yield the keys from `first` to `last`, both inclusive."""
        with self._kv.cursor(self._tables[table]) as cursor:
            if not cursor.set_range(first):
                return
            for key in cursor.iternext(keys=True, values=False):
                if key > last:
                    return
                yield key

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row whose key is `key` or less; a damaged value is returned unchanged."""
        with self._kv.cursor(self._tables[table]) as cursor:
            moved = cursor.set_range(key)
            if not (cursor.last() if not moved else cursor.key() == key or cursor.prev()):
                return None
            at, stored = cursor.item()
            return at, stored[:-CHECKSUM_BYTES] if self._checksums else stored

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a value, intact or not; None if the key does not exist."""
        stored = self._kv.get(key, db=self._tables[table])
        return stored if stored is None or not self._checksums else stored[:-CHECKSUM_BYTES]

    def document(self, table: str, key: bytes, value: bytes) -> dict[str, Any] | None:
        """Return a BSON value decoded, or report a problem and return None."""
        try:
            return decode(value)
        except BSONError:
            self.problems.append(f"{self.name(table, key)} is not BSON")
            return None
