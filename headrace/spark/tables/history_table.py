"""A Delta table of every version of every document, with the tokens and times between which it was true.

    _id, document         the key and the document, canonical Extended JSON
    token, until          from this token on, up to this one exclusive; null: still true
    since, ended          the times inside these tokens, to the second
    operationType         what made it: insert, replace, update, snapshot
    endedBy               what ended it: delete, replace, update, drop, rename, ..., snapshot (see `versions.py`)
    current               the table's partitions: the versions still true, and the others

`WHERE current` is the collection; `WHERE token <= T AND (until > T OR until IS NULL)` is the collection at T.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from headrace.spark.rows.tokens import Token
from headrace.spark.tables.delta_commits import commit_properties, compact_small_files, progress_of
from headrace.spark.tables.delta_files import Partition, note, read_files, replace_rows, small_files
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.versions import DocumentVersion

SCHEMA: Final = pa.schema(
    [
        pa.field("_id", pa.string(), nullable=False),
        pa.field("document", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("until", pa.string()),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("ended", pa.timestamp("us", "UTC")),
        pa.field("operationType", pa.string()),
        pa.field("endedBy", pa.string()),
        pa.field("confirmed", pa.string()),
        pa.field("current", pa.bool_(), nullable=False),
    ]
)
_CURRENT: Final = [("current", "=", "true")]
_PARTITION: Final = ("current", "true")
_SAME: Final = "target.current = true and target._id = new._id and target.token = new.token"


class HistoryTable:
    """The versions, and the progress in the same commit. One writer at a time."""

    def __init__(self, path: str | Path) -> None:
        self._location = location_of(path)
        self._open_table = OpenDeltaTable(self._location)

    def __str__(self) -> str:
        return str(self._location)

    def progress(self) -> Progress:
        """As last committed; `Progress()` if there is no table yet. Raises NotAMirror."""
        return progress_of(self._open_table)

    def current(self, keys: Iterable[str] | None = None) -> dict[str, DocumentVersion]:
        """The versions that are still valid, by key: all of them, or those of `keys`."""
        wanted = None if keys is None else pa.array(list(keys), pa.large_string())
        table = None if wanted is not None and not len(wanted) else self._open_table.now()
        files = table.file_uris(file_pruning_predicate=_CURRENT) if table is not None else []
        if table is None or not files:
            return {}
        condition = None if wanted is None else pc.field("_id").cast(pa.large_string()).isin(wanted)
        names = ["_id", "document", "token", "operationType", "confirmed"]
        schema = pa.schema([SCHEMA.field(name) for name in names])
        rows = self._location.dataset(table, files, schema).to_table(filter=condition)
        columns = [column.to_pylist() for column in rows.columns]
        return {values[0]: DocumentVersion(*values) for values in zip(*columns, strict=True)}

    def commit(self, changed: list[DocumentVersion], progress: Progress) -> None:
        """Writes new and changed versions and stores the progress: both, durably, or neither."""
        properties = commit_properties(progress.text(), progress.query, progress.batch)
        rows = table_of(changed)
        table = self._open_table.now()
        if table is None:
            self._location.create()
            write_deltalake(
                self._location.url, rows, mode="append", partition_by=["current"], commit_properties=properties
            )
            return
        if not changed:
            note(table, properties)
            return
        if self._rewrite(table, rows, properties):
            compact_small_files(table, properties)
            return
        merging = table.merge(rows, _SAME, "new", "target", commit_properties=properties)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        compact_small_files(table, properties)

    def _rewrite(self, table: DeltaTable, rows: pa.Table, properties: CommitProperties) -> bool:
        """Commits the rows if the table has few that are current; False otherwise."""
        files = small_files(table, _PARTITION)
        if files is None:
            return False
        schema = pa.schema([field for field in SCHEMA if field.name != _PARTITION[0]])
        old = read_files(self._location, files, schema)
        replace_rows(
            self._location, table, replaced_versions(old, rows, "_id", "token", _PARTITION), properties,
            partition=_PARTITION,
        )  # fmt: skip
        return True

    def read(self) -> pa.Table:
        """All versions, in no order."""
        return DeltaTable(self._location.url).to_pyarrow_table().select(SCHEMA.names)


def table_of(versions: Iterable[DocumentVersion]) -> pa.Table:
    """The versions as rows of the table."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for version in versions:
        values = (
            version.key, version.document, version.token, version.until, _time(version.token), _time(version.until),
            version.operation, version.ended_by, version.confirmed, version.until is None,
        )  # fmt: skip
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return pa.table(columns, schema=SCHEMA)


def replaced_versions(
    old: pa.Table, new: pa.Table, key: str, token: str, partition: Partition
) -> list[tuple[str, pa.Table]]:
    """The current versions and the new past ones, after `new` was put in place of what is `old` of them."""
    changed = set(zip(new.column(key).to_pylist(), new.column(token).to_pylist(), strict=True))
    there = zip(old.column(key).to_pylist(), old.column(token).to_pylist(), strict=True)
    stays = old.filter(pa.array([each not in changed for each in there], pa.bool_()))
    is_current = new.column(partition[0])
    rows = new.drop_columns([partition[0]])
    current = pa.concat_tables([stays, rows.filter(is_current)])
    return [("true", current), ("false", rows.filter(pc.invert(is_current)))]


def _time(token: str | None) -> datetime | None:
    try:
        return None if token is None else datetime.fromtimestamp(Token(token).time.time, UTC)
    except ValueError:
        # A token that no server made has no time.
        return None


def at(history: pa.Table, token: str) -> pa.Table:
    """The rows of a history that are the collection as it was at `token`."""
    until = pc.field("until")
    return history.filter((pc.field("token") <= token) & (until.is_null() | (until > token)))
