"""Commits of files: those that tasks wrote into a Delta table's folder, and small tables that are written anew.

A merge of deltalake plans a query over the table and costs 30 to 50 ms of CPU, however few rows there are. A job of
many collections has as many small tables, and each of its batches changes most of them. So all rows of a small table,
or of one partition, are read, changed and written.

It is one commit, as a merge is: the new files are durable before it, and the old ones are the version before. A crash
before the commit leaves files that nobody reads; upkeep removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.staged_files import StagedFile, delta_statistics
from headrace.spark.tables.table_location import TableLocation

Partition = tuple[str, str]
"""A partition column and its value."""
_DOCUMENTS: Final = frozenset({"document", "fullDocument"})
# Properties of tables that need a writer which supports them.
_STRANGE: Final = ("delta.columnMapping.mode", "delta.constraints")


def fits(table: DeltaTable, schema: pa.Schema) -> bool:
    """Whether a file with these columns can be added to the table as it is."""
    if table.metadata().partition_columns or not is_plain(table):
        return False
    there = {field.name: field.type for field in table.schema().fields}
    return all(there.get(field.name) == field.type for field in Schema.from_arrow(schema).fields)


def is_plain(table: DeltaTable) -> bool:
    """Whether the table has no properties that need another writer than this."""
    return not any(name.startswith(_STRANGE) for name in table.metadata().configuration)


def files_between(table: DeltaTable, after: str, upto: str | None) -> list[str]:
    """URIs of files that may have tokens after `after`, up to and including `upto`, by the log's statistics."""
    paths = [action["path"] for action in _bounds(table) if _overlaps(action, after, upto)]
    names = {path.rpartition("/")[2] for path in paths}
    return [uri for uri in table.file_uris() if uri.rpartition("/")[2] in names]


def _bounds(table: DeltaTable) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return actions


def _overlaps(action: dict[str, Any], after: str, upto: str | None) -> bool:
    least, most = action.get("min.token"), action.get("max.token")
    if not least or not most:
        return True
    soon_enough = upto is None or least[:TIME_END] <= upto[:TIME_END]
    return bool(soon_enough and most[:TIME_END] >= after[:TIME_END])


def add_files(
    open_table: OpenDeltaTable, files: Sequence[StagedFile], schema: pa.Schema, properties: CommitProperties
) -> None:
    """Adds the files in one commit with these properties, which creates the table if there is none."""
    now = SystemClock().now_ms()
    added = [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]
    table = open_table.now()
    if table is not None:
        table.create_write_transaction([*added], "append", table.schema(), [], commit_properties=properties)
    else:
        create_table_with_add_actions(
            open_table.location.url, Schema.from_arrow(schema), added, commit_properties=properties
        )


def small_files(table: DeltaTable, partition: Partition | None = None) -> list[str] | None:
    """The names of the table's files, or of those in the partition, if they are few and small; else None."""
    if not is_plain(table):
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    if partition is not None:
        name, value = partition
        column = actions.column(f"partition.{name}").cast(pa.string())
        actions = actions.filter(pc.equal(column, value))
    sizes = actions.column("size_bytes").to_pylist()
    if sum(sizes) > limits.REWRITTEN_BYTES_MAX or len(sizes) > limits.REWRITTEN_FILE_COUNT_MAX:
        return None
    return list(actions.column("path").to_pylist())


def read_files(location: TableLocation, names: list[str], schema: pa.Schema) -> pa.Table:
    """The rows of the files."""
    import pyarrow.dataset as ds

    if not names:
        return schema.empty_table()
    return ds.dataset(names, schema=schema, format="parquet", filesystem=location.files).to_table()


def replace_rows(
    location: TableLocation, table: DeltaTable, rows: Iterable[tuple[str | None, pa.Table]],
    properties: CommitProperties, *, partition: Partition | None = None,
) -> None:  # fmt: skip
    """Puts rows in place of those of the table, or of those in the partition, by one commit, which `table` is at then.

    Each table of `rows` becomes a file, of the partition with that value of the same column.
    """
    now = SystemClock().now_ms()
    added = [_add_file(location, partition and partition[0], value, each, now) for value, each in rows if each.num_rows]
    table.create_write_transaction(
        [*added], "overwrite", table.schema(), [partition[0]] if partition else [],
        [(partition[0], "=", partition[1])] if partition else None, commit_properties=properties,
    )  # fmt: skip
    table.update_incremental()


def note(table: DeltaTable, properties: CommitProperties) -> None:
    """A commit without rows."""
    table.create_write_transaction(
        [], "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
    )


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A durable file of the table's folder that no commit has yet, with its partition's `values`."""

    name: str
    size: int
    values: dict[str, str | None]
    stats: str

    def added(self, now_ms: int) -> AddAction:
        """The action that adds the file."""
        return AddAction(self.name, self.size, self.values, now_ms, True, self.stats)


def write_file(location: TableLocation, name: str, rows: pa.Table, values: dict[str, str | None]) -> WrittenFile:
    """Writes the rows to a new file of that name, which is durable when this returns."""
    location.create(name.rpartition("/")[0])
    pq.write_table(rows, name, compression="zstd", filesystem=location.files)
    location.sync_file(name)
    size = location.size(name)
    assert size is not None
    return WrittenFile(name, size, values, delta_statistics(rows.num_rows, _column_bounds(rows)))


def _add_file(location: TableLocation, column: str | None, value: str | None, rows: pa.Table, now_ms: int) -> AddAction:
    folder = f"{column}={value}/" if column else ""
    values: dict[str, str | None] = {column: value} if column else {}
    return write_file(location, f"{folder}part-{uuid4()}.parquet", rows, values).added(now_ms)


def _column_bounds(rows: pa.Table) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of each column that has an order, and no long texts."""
    bounds = {}
    for field in rows.schema:
        kind = field.type
        if field.name in _DOCUMENTS or not (
            pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind)
        ):
            continue
        both = pc.min_max(rows.column(field.name)).as_py()
        pair = both["min"], both["max"]
        if None not in pair and all(len(str(each)) <= limits.STATISTIC_CHARACTER_COUNT_MAX for each in pair):
            bounds[field.name] = pair
    return bounds
