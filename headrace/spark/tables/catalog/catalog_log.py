"""A log of events as a table of Spark's catalogs: Spark appends each batch from the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SCHEMA, SERVER, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.tables.catalog.catalog_table import CatalogTable
from headrace.spark.tables.progress import IDENTITY, Progress, RowIdentity

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_KINDS: Final = ", ".join(f"'{kind}'" for kind in (SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END))


class CatalogLog:
    """See `event_log.EventLog` and `event_log.NotingLog`."""

    def __init__(self, name: str, get_session: Callable[[], SparkSession], using: str = "") -> None:
        self._table = CatalogTable(name, SCHEMA, get_session, using)

    def __str__(self) -> str:
        return self._table.name

    def progress(self) -> Progress:
        text = self._table.state_text()
        return Progress.of(text) if text else Progress()

    def append(self, rows: pa.Table, progress: Progress) -> None:
        if rows.num_rows:
            # Add missing columns before the rows: the commit that adds them must not say that the rows are stored.
            rows = self._fitted(rows)
        text = self._table.next_text(json.loads(progress.text()))
        if rows.num_rows:
            self._table.append(rows, text)
        else:
            self._table.store(text)

    def note(self, progress: Progress) -> None:
        self._table.store(self._table.next_text(json.loads(progress.text())))

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        columns = self._table.columns
        names = [name for name in IDENTITY if name in columns]
        rows = self._table.select(names, f"token >= '{since}' AND operationType IN ({_KINDS})")
        values = [rows.column(name).to_pylist() if name in names else [None] * rows.num_rows for name in IDENTITY]
        return set(zip(*values, strict=True))

    def read(self) -> pa.Table:
        return self._table.select(self._table.columns)

    def _fitted(self, rows: pa.Table) -> pa.Table:
        """Return the rows with fields as nullable as the table's. Add the column `SERVER` to the table if it is
        missing."""
        import pyarrow as pa

        if SERVER in rows.column_names and SERVER not in self._table.columns:
            self._table.add_columns(f"{SERVER} STRING")
        columns = self._table.columns
        fields = [field.with_nullable(columns.get(field.name, True)) for field in rows.schema]
        return rows.cast(pa.schema(fields))
