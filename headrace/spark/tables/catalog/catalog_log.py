"""A log of events as a table of Spark's catalogs: Spark appends each batch from the driver."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SCHEMA, SERVER, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.tables.catalog.catalog_table import CatalogTable
from headrace.spark.tables.progress import IDENTITY, Progress, RowIdentity

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS: Final = ", ".join(f"'{kind}'" for kind in (SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END))


class CatalogLog(CatalogTable[Progress]):
    """See `event_log.EventLog` and `event_log.NotingLog`."""

    required = SCHEMA
    kept = Progress

    def append(self, rows: pa.Table, progress: Progress) -> None:
        if rows.num_rows:
            # Add missing columns before the rows: the commit that adds them must not say that the rows are stored.
            rows = self._fitted(rows)
        text = self.next_text(progress)
        if rows.num_rows:
            self.add_rows(rows, text)
        else:
            self.store(text)

    def note(self, progress: Progress) -> None:
        self.store(self.next_text(progress))

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        columns = self.columns
        names = [name for name in IDENTITY if name in columns]
        rows = self.select(names, f"token >= '{since}' AND operationType IN ({_KINDS})")
        values = [rows.column(name).to_pylist() if name in names else [None] * rows.num_rows for name in IDENTITY]
        return set(zip(*values, strict=True))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        """Return the rows with fields as nullable as the table's. Add the column `SERVER` to the table if it is
        missing."""
        import pyarrow as pa

        if SERVER in rows.column_names and SERVER not in self.columns:
            self.add_columns(f"{SERVER} STRING")
        columns = self.columns
        fields = [field.with_nullable(columns.get(field.name, True)) for field in rows.schema]
        return rows.cast(pa.schema(fields))
