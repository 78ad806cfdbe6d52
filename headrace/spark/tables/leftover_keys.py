"""Keys of rows that a table kept after their collection was gone, and that come again as another type of number.

With the policy `keep` the rows stay after a drop, a rename or a new snapshot. A document with `_id` 1.0 in the next
collection then replaces the row 1, as in MongoDB. But the table stores keys as texts, and does not find 1 by the text
of 1.0. As long as no rows were kept this cannot happen, and nothing is looked up.

The texts of an int, a long and a double follow from the number. A Decimal128, or a number within a document, has many
texts. So such keys of the table are read once in a process, and again when more rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, SNAPSHOT_BEGIN, Row
from headrace.spark.rows.key_identity import has_numbers, is_plain_number, key_identity, number_texts
from headrace.spark.rows.server_keys import server_key, split_server_key
from headrace.spark.tables.fold import key_of
from headrace.spark.tables.position import TablePosition

_LEAVES_ROWS: Final = INVALIDATING | {SNAPSHOT_BEGIN}


class KeyedTable(Protocol):
    """A table that can list its keys."""

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of all rows, or of a history's current rows; with several servers, as in `server_keys`."""


class LeftoverKeys:
    """The keys of one table, looked up before each commit."""

    def __init__(self, table: KeyedTable, policy: str) -> None:
        self._table = table
        self._keeps = policy == "keep"
        self._many: dict[str, list[str]] | None = None
        """Keys that have many texts, by their identity."""

    def same_as(self, rows: Iterable[Row], state: TablePosition) -> set[str]:
        """Return other texts that the keys of these rows may have in the table; none if the table has kept no rows."""
        rows = list(rows)
        if self._keeps and any(row.operationType in _LEAVES_ROWS for row in rows):
            self._many = None
        elif not (state.leftovers or any(each.leftovers for each in state.servers.values())):
            return set()
        if self._many is None:
            self._many = self._read()
        same: set[str] = set()
        for row in rows:
            if row.operationType in DOCUMENT_OPERATIONS and has_numbers(key := key_of(row)):
                same |= {server_key(row.server, text) for text in number_texts(key)}
                same.update(self._many.get(server_key(row.server, key_identity(key)), ()))
        return same

    def _read(self) -> dict[str, list[str]]:
        by_identity: dict[str, list[str]] = {}
        for text in self._table.read_keys():
            server, key = split_server_key(text)
            if has_numbers(key) and not is_plain_number(key):
                by_identity.setdefault(server_key(server, key_identity(key)), []).append(text)
        return by_identity
