"""A history as a table of Spark's catalogs: this program computes the versions, and Spark merges them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SERVER
from headrace.spark.tables.catalog.catalog_table import CHANGES, CatalogTable, quoted
from headrace.spark.tables.history_table import VERSION_NAMES, table_of, versions_by_key
from headrace.spark.tables.mirror_table import key_texts
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.versions import DocumentVersion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

COLUMNS: Final = (
    "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL, until STRING, since TIMESTAMP, "
    "ended TIMESTAMP, operationType STRING, endedBy STRING, confirmed STRING, current BOOLEAN NOT NULL"
)
_SAME: Final = "target.`current` AND target._id = new._id AND target.token = new.token"


class CatalogHistory:
    """See `history_table.VersionTable`."""

    def __init__(self, name: str, get_session: Callable[[], SparkSession], using: str = "") -> None:
        self._table = CatalogTable(name, COLUMNS, get_session, using)

    def __str__(self) -> str:
        return self._table.name

    def progress(self) -> Progress:
        text = self._table.state_text()
        return Progress.of(text) if text else Progress()

    def current(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, DocumentVersion]:
        wanted = None if keys is None else set(keys)
        if wanted is not None and not wanted:
            return {}
        names = VERSION_NAMES + ([SERVER] if SERVER in self._table.columns else [])
        condition = "`current`" + (f" AND confirmed < '{confirmed_before}'" if confirmed_before else "")
        return versions_by_key(self._table.select(names, condition, wanted), wanted)

    def read_keys(self) -> Iterator[str]:
        names = [name for name in (SERVER, "_id") if name in self._table.columns]
        return key_texts(self._table.select(names, "`current`"))

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        if progress.servers:
            columns = f"{SERVER} STRING NOT NULL, {COLUMNS}"
            self._table.need_column(SERVER, ", and the job reads several servers", columns)
        text = self._table.next_text(json.loads(progress.text()))
        if not changed:
            self._table.store(text)
            return
        rows = table_of(changed, servers=bool(progress.servers))
        names = rows.column_names
        same = _SAME + (f" AND target.{SERVER} = new.{SERVER}" if progress.servers else "")
        values = ", ".join(f"`{name}` = new.`{name}`" for name in names)
        statement = (
            f"MERGE INTO {self._table.name} AS target USING {CHANGES} AS new ON {same} "
            f"WHEN MATCHED THEN UPDATE SET {values} "
            f"WHEN NOT MATCHED THEN INSERT ({quoted(names)}) VALUES ({', '.join(f'new.`{name}`' for name in names)})"
        )
        self._table.merge(statement, rows, text)

    def read(self) -> pa.Table:
        return self._table.select(self._table.columns)
