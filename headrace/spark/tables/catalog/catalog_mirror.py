"""A mirror as a table of Spark's catalogs: this program folds the rows, as for every mirror, and Spark merges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SERVER
from headrace.spark.tables.catalog.catalog_table import CHANGES, CatalogTable
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import (
    key_texts,
    merged_rows,
    names_of,
    same_key,
    schema,
    stale_condition,
    state_fields,
    state_of,
    stored_rows_of,
    upserted,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MERGE: Final = f"""
MERGE INTO {{name}} AS target USING {CHANGES} AS new ON {{same}}
WHEN MATCHED AND new.gone THEN DELETE
WHEN MATCHED THEN UPDATE SET document = new.document, token = new.token
WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({{columns}}) VALUES ({{values}})
"""
_STALE: Final = "WHEN NOT MATCHED BY SOURCE AND ({stale}) THEN DELETE"
COLUMNS: Final = "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL"


class CatalogMirror:
    """See `mirror_table.MirrorTable`."""

    def __init__(self, name: str, get_session: Callable[[], SparkSession], using: str = "") -> None:
        self._table = CatalogTable(name, COLUMNS, get_session, using)

    def __str__(self) -> str:
        return self._table.name

    def state(self) -> MirrorState:
        text = self._table.state_text()
        return state_of(text) if text else MirrorState()

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        if not wanted:
            return {}
        return stored_rows_of(self._table.select(names_of(self._table.columns), keys=wanted), wanted)

    def read_keys(self) -> Iterator[str]:
        return key_texts(self._table.select([name for name in (SERVER, "_id") if name in self._table.columns]))

    def commit(self, changes: MirrorChanges) -> None:
        if changes.state.servers:
            columns = f"{SERVER} STRING NOT NULL, {COLUMNS}"
            self._table.need_column(SERVER, ", and the job reads several servers", columns)
        text = self._table.next_text(state_fields(changes.state))
        if changes.clear:
            self._table.overwrite(upserted(changes), text)
        elif changes.upserts or changes.deletes or stale_condition(changes):
            self._merge(changes, text)
        if not (changes.upserts or changes.deletes):
            # The merge may have had nothing to do and made no commit. If it made one, this stores the same state again.
            self._table.store(text)

    def read(self) -> pa.Table:
        return self._table.select(names_of(self._table.columns))

    def _merge(self, changes: MirrorChanges, text: str) -> None:
        stale = stale_condition(changes)
        names = schema(servers=bool(changes.state.servers)).names
        statement = _MERGE.format(
            name=self._table.name, same=same_key(changes), columns=", ".join(names),
            values=", ".join(f"new.{name}" for name in names),
        )  # fmt: skip
        self._table.merge(statement + (_STALE.format(stale=stale) if stale else ""), merged_rows(changes), text)
