"""A history as a table of Spark's catalogs: this program computes the versions, and Spark merges them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SERVER
from headrace.spark.tables.catalog.catalog_table import CHANGES, CatalogTable, quoted
from headrace.spark.tables.history_table import VERSION_NAMES, table_of, versions_by_key
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.versions import DocumentVersion

if TYPE_CHECKING:
    pass

COLUMNS: Final = (
    "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL, until STRING, since TIMESTAMP, "
    "ended TIMESTAMP, operationType STRING, endedBy STRING, confirmed STRING, current BOOLEAN NOT NULL"
)
_SAME: Final = "target.`current` AND target._id = new._id AND target.token = new.token"


class CatalogHistory(CatalogTable[Progress]):
    """See `history_table.VersionTable`."""

    required = COLUMNS
    kept = Progress
    valid = "`current`"

    def current(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, DocumentVersion]:
        wanted = None if keys is None else set(keys)
        if wanted is not None and not wanted:
            return {}
        names = VERSION_NAMES + ([SERVER] if SERVER in self.columns else [])
        condition = "`current`" + (f" AND confirmed < '{confirmed_before}'" if confirmed_before else "")
        return versions_by_key(self.select(names, condition, wanted), wanted)

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        self.fit_servers(progress)
        text = self.next_text(progress)
        if not changed:
            self.store(text)
            return
        rows = table_of(changed, servers=bool(progress.servers))
        names = rows.column_names
        same = _SAME + (f" AND target.{SERVER} = new.{SERVER}" if progress.servers else "")
        values = ", ".join(f"`{name}` = new.`{name}`" for name in names)
        statement = (
            f"MERGE INTO {self.name} AS target USING {CHANGES} AS new ON {same} "
            f"WHEN MATCHED THEN UPDATE SET {values} "
            f"WHEN NOT MATCHED THEN INSERT ({quoted(names)}) VALUES ({', '.join(f'new.`{name}`' for name in names)})"
        )
        self.merge(statement, rows, text)
