"""A mirror as a table of Spark's catalogs: this program folds the rows, as for every mirror, and Spark merges them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.spark.tables.catalog.catalog_table import CHANGES, CatalogTable
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import (
    merged_rows,
    names_of,
    same_key,
    schema,
    stale_condition,
    stored_rows_of,
    upserted,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MERGE: Final = f"""
MERGE INTO {{name}} AS target USING {CHANGES} AS new ON {{same}}
WHEN MATCHED AND new.gone THEN DELETE
WHEN MATCHED THEN UPDATE SET document = new.document, token = new.token
WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({{columns}}) VALUES ({{values}})
"""
_STALE: Final = "WHEN NOT MATCHED BY SOURCE AND ({stale}) THEN DELETE"
COLUMNS: Final = "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL"


class CatalogMirror(CatalogTable[MirrorState]):
    """See `mirror_table.MirrorTable`."""

    required = COLUMNS
    kept = MirrorState

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        if not wanted:
            return {}
        return stored_rows_of(self.select(names_of(self.columns), keys=wanted), wanted)

    def commit(self, changes: MirrorChanges) -> None:
        self.fit_servers(changes.state)
        text = self.next_text(changes.state)
        if changes.clear:
            self.overwrite(upserted(changes), text)
        elif changes.upserts or changes.deletes or stale_condition(changes):
            self._merge(changes, text)
        if not (changes.upserts or changes.deletes):
            # The merge may have had nothing to do and made no commit. If it made one, this stores the same state again.
            self.store(text)

    def read(self) -> pa.Table:
        return self.select(names_of(self.columns))

    def _merge(self, changes: MirrorChanges, text: str) -> None:
        stale = stale_condition(changes)
        names = schema(servers=bool(changes.state.servers)).names
        statement = _MERGE.format(
            name=self.name, same=same_key(changes), columns=", ".join(names),
            values=", ".join(f"new.{name}" for name in names),
        )  # fmt: skip
        self.merge(statement + (_STALE.format(stale=stale) if stale else ""), merged_rows(changes), text)
