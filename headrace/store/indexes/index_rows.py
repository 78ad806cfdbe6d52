"""The stored rows of an index, also of the index on `_id`: for checks, sizes and repairs.

row = (key, value)    the key has the index's number and the record; value None: it does not match its checksum
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile

from headrace import limits
from headrace.store.catalog import Collection, Index
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.identity import identify
from headrace.store.indexes.index_entries import key_maker, stored_entries
from headrace.store.indexes.index_keys import NO_TRAITS, Traits
from headrace.store.view import View, bounded_key

Row = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class IndexRows:
    """The location of an index's rows: a table and the prefix of their keys."""

    collection: Collection
    index: Index
    table: str
    prefix: bytes

    def keys(self, view: View, after: bytes | None, count_max: int = limits.COUNT_COUNT) -> list[bytes]:
        """Return up to `count_max` keys strictly after one, or from the first."""
        prefix = self.prefix
        with view.kv.cursor(view.tables[self.table]) as cursor:
            if not cursor.set_range(prefix if after is None else after + b"\x00"):
                return []
            walk = islice(cursor.iternext(values=False), count_max)
            return list(takewhile(lambda key: key.startswith(prefix), walk))

    def piece(self, view: View, after: bytes | None, count_max: int = limits.VIEW_CHUNK_COUNT) -> list[Row]:
        """Return up to `count_max` rows strictly after a key, or from the first."""
        return [(key, _value(view, key, self.table)) for key in self.keys(view, after, count_max)]

    def record(self, row: Row) -> bytes | None:
        """Return the record that a row leads to; None if it cannot be read."""
        return row[1] if self.table == "ids" or self.index.unique else row[0][-8:]

    def expected(self, record: bytes, document: bytes) -> tuple[dict[bytes, bytes], Traits]:
        """Return the rows that a document should have, and its traits. Raises 171, 16746."""
        if self.table == "ids":
            return {bounded_key(self.prefix, identify(document)[0]): record}, NO_TRAITS
        keys, traits = key_maker(self.index).keys(document)
        if self.index.unique:
            return dict.fromkeys(keys, record), traits
        return {key + record: b"" for key in keys}, traits


class RecentRows:
    """A cache of the rows that recently read long documents should have. Such a document may have a million rows, which
    are not made again for each of them."""

    __slots__ = ("_count", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bytes], tuple[bytes, dict[bytes, bytes]]] = {}
        self._count = 0

    def expected(self, index: Index, record: bytes, document: bytes) -> dict[bytes, bytes]:
        """Return the document's rows as `stored_entries` does."""
        if len(document) <= limits.KEYS_BYTES:
            return stored_entries(index, record, document)
        key = index.number.to_bytes(4, "big"), record
        recent = self._rows.get(key)
        if recent is not None and (recent[0] is document or recent[0] == document):
            return recent[1]
        if self._count > limits.RECENT_ROW_COUNT_MAX:
            self._rows.clear()
            self._count = 0
        entries = stored_entries(index, record, document)
        self._rows[key] = document, entries
        self._count += len(entries)
        return entries


def rows_of(collection: Collection, index: Index) -> IndexRows | None:
    """Return the rows of an index; None for a kind of index without rows."""
    if index.is_of_id:
        return IndexRows(collection, index, "ids", collection.number_key)
    if not index.has_entries:
        return None
    return IndexRows(collection, index, "indexes", index.number.to_bytes(4, "big"))


def _value(view: View, key: bytes, table: str) -> bytes | None:
    try:
        return view.kv.get(key, db=view.tables[table])
    except DamagedValue:
        return None
