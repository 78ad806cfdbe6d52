"""Changes of small Delta tables: all rows of a table, or of one partition, are read, changed and written anew.

A merge of deltalake plans a query over the table and costs 30 to 50 ms of CPU, however few rows there are. A job of
many collections has as many small tables, and each of its batches changes most of them.

It is one commit, as a merge is: the new files are durable before it, and the old ones are the version before. A crash
before the commit leaves files that nobody reads; upkeep removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.tables.delta_files import is_plain
from headrace.spark.tables.staged_files import delta_statistics
from headrace.spark.tables.table_location import TableLocation

Partition = tuple[str, str]
"""A partition column and its value."""
_DOCUMENTS: Final = frozenset({"document", "fullDocument"})


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
    """Puts rows in place of those of the table, or of those in the partition, by one commit.

    Each table of `rows` becomes a file, of the partition with that value of the same column.
    """
    now = SystemClock().now_ms()
    added = [_add_file(location, partition and partition[0], value, each, now) for value, each in rows if each.num_rows]
    table.create_write_transaction(
        [*added], "overwrite", table.schema(), [partition[0]] if partition else [],
        [(partition[0], "=", partition[1])] if partition else None, commit_properties=properties,
    )  # fmt: skip


def note(table: DeltaTable, properties: CommitProperties) -> None:
    """A commit without rows."""
    table.create_write_transaction(
        [], "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
    )


def _add_file(location: TableLocation, column: str | None, value: str | None, rows: pa.Table, now_ms: int) -> AddAction:
    folder = f"{column}={value}/" if column else ""
    location.create(folder)
    name = f"{folder}part-{uuid4()}.parquet"
    pq.write_table(rows, name, compression="zstd", filesystem=location.files)
    location.sync_file(name)
    size = location.size(name)
    assert size is not None
    values: dict[str, str | None] = {column: value} if column else {}
    return AddAction(name, size, values, now_ms, True, delta_statistics(rows.num_rows, _bounds(rows)))


def _bounds(rows: pa.Table) -> dict[str, tuple[Any, Any]]:
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
