"""Mirrors, histories and logs as tables of Spark's catalogs.

This program folds the rows and computes the versions, as for every table. Spark merges or appends them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from headrace.spark.rows.events import SCHEMA, SERVER, SNAPSHOT_KINDS
from headrace.spark.tables.catalog.catalog_table import CHANGES, CatalogTable, quoted
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.history_table import VERSION_NAMES, table_of, versions_by_key
from headrace.spark.tables.mirror_table import (
    merged_rows,
    names_of,
    same_key,
    schema,
    stale_condition,
    stored_rows_of,
    upserted,
)
from headrace.spark.tables.progress import IDENTITY, Progress, RowIdentity
from headrace.spark.tables.versions import DocumentVersion

if TYPE_CHECKING:
    import pyarrow as pa

_MERGE: Final = f"""
MERGE INTO {{name}} AS target USING {CHANGES} AS new ON {{same}}
WHEN MATCHED AND new.gone THEN DELETE
WHEN MATCHED THEN UPDATE SET document = new.document, token = new.token
WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({{columns}}) VALUES ({{values}})
"""
_STALE: Final = "WHEN NOT MATCHED BY SOURCE AND ({stale}) THEN DELETE"
MIRROR_COLUMNS: Final = "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL"
HISTORY_COLUMNS: Final = (
    "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL, until STRING, since TIMESTAMP, "
    "ended TIMESTAMP, operationType STRING, endedBy STRING, confirmed STRING, current BOOLEAN NOT NULL"
)
_SAME: Final = "target.`current` AND target._id = new._id AND target.token = new.token"


class CatalogMirror(CatalogTable[MirrorState]):
    """See `mirror_table.MirrorTable`."""

    required = MIRROR_COLUMNS
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


class CatalogHistory(CatalogTable[Progress]):
    """See `history_table.VersionTable`."""

    required = HISTORY_COLUMNS
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


class CatalogLog(CatalogTable[Progress], EventLog):
    """See `event_log.EventLog`; only the driver writes it."""

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
        rows = self.select(names, f"token >= '{since}' AND operationType IN {SNAPSHOT_KINDS}")
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
