"""What typed mirrors and histories share: a Delta table of own columns and those of documents, changed in one commit.

Own columns (`_key`, `_token`, ...) come first. A commit merges; new columns come with the merge. Where a column's type
must be another one, the table is written anew in that commit, the rows one batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from headrace import limits
from headrace.spark.columns.column_arrays import ArrowColumns
from headrace.spark.columns.column_types import LeafType, StructOf
from headrace.spark.rows.events import SERVER
from headrace.spark.tables.delta_commits import byte_count, cluster_columns, commit_properties, newest_commit
from headrace.spark.tables.delta_files import Partition, small_files
from headrace.spark.tables.mirror_table import STATE_KEY, NotAMirror, key_texts
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.typed.table_schema import (
    COLUMNS_KEY,
    Document,
    SchemaChange,
    TableSchema,
    TypedRows,
    commit_metadata,
)

_CASTS: Final = frozenset(
    [(old, new) for old in ("int", "bigint") for new in ("bigint", "double", "decimal", "string")]
    + [("float", "double"), ("decimal", "decimal")]
)  # fmt: skip
"""Types whose values, cast, are what the other type stores of them; a cast that would lose one fails."""

Reshape = Callable[[pa.Table], pa.Table]


def _as_they_are(rows: pa.Table) -> pa.Table:
    return rows


class TypedDelta:
    """The table at a location; `base` are its own columns, `partition_by` those of them that partition it."""

    def __init__(
        self, location: TableLocation, schema: TableSchema, base: pa.Schema, partition_by: Sequence[str] = ()
    ) -> None:
        self.location, self.schema, self.base = location, schema, base
        self._open_table = OpenDeltaTable(location)
        self._partitions = schema.options.partitions
        self._partition_by = [*partition_by, *(each.name for each in self._partitions)]

    def now(self) -> DeltaTable | None:
        """The table as it is now; None while there is none."""
        return self._open_table.now()

    def commit_of(self, table: DeltaTable) -> dict[str, Any]:
        """The metadata of the table's newest commit. Raises NotAMirror if it is none of a typed table."""
        commit = newest_commit(table)
        if commit is None:
            raise NotAMirror(f"the Delta table {self.location} has no commit of a typed table")
        if COLUMNS_KEY not in commit:
            raise NotAMirror(
                f"the Delta table {self.location} has documents as text: a sink with a schema needs a table of its "
                "own, or `headrace pipeline reset --data`"
            )
        return commit

    def stored_schema(self, table: DeltaTable | None) -> StructOf:
        """The schema of the table's rows."""
        return StructOf(()) if table is None else self.schema.of(str(self.commit_of(table)[COLUMNS_KEY]))

    def columns(self, table: DeltaTable) -> ArrowColumns:
        """The columns of the table's documents."""
        return ArrowColumns(self.stored_schema(table))

    def arrow(self, columns: ArrowColumns) -> pa.Schema:
        """The schema of the files: all but partition columns."""
        return pa.schema([*self.base, *columns.arrow])

    def read_keys(self, table: DeltaTable, files: Sequence[str]) -> Iterator[str]:
        """The keys of the rows in these files of the table."""
        names = [field.name for field in table.schema().fields if field.name in {f"_{SERVER}", "_key"}]
        if files:
            schema = pa.schema([pa.field(name, pa.string()) for name in names])
            for batch in self.location.dataset(table, files, schema).to_batches():
                yield from key_texts(batch)

    def rows(self, base: list[pa.Array], documents: Sequence[Document | None], typed: TypedRows) -> pa.Table:
        """The rows of a commit, with their partition columns. A document that is None has null in each column."""
        return self._table(base, documents, typed.columns, typed.arrays)

    def write(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Makes the table of these rows, in place of what it has."""
        self.location.create()
        write_deltalake(
            self.now() or self.location.url, rows, mode="overwrite", schema_mode="overwrite",
            partition_by=self._partition_by or None, commit_properties=properties,
        )  # fmt: skip

    def rewrite(
        self, table: DeltaTable, remaining: Reshape, rows: pa.Table, columns: ArrowColumns,
        properties: CommitProperties, finished: Reshape = _as_they_are,
    ) -> None:  # fmt: skip
        """Writes the remaining rows by the new columns, and the new rows, in one commit.

        `remaining` are the rows of a batch that stay, `finished` adds columns that `rows` have besides.
        """
        old = self.columns(table)
        dataset = self.location.dataset(table, table.file_uris(), self.arrow(old))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in dataset.to_batches():
                stay = remaining(pa.Table.from_batches([batch]))
                if stay.num_rows:
                    yield from finished(self._converted(stay, old, columns)).cast(rows.schema).to_batches()
            yield from rows.to_batches()

        reader = pa.RecordBatchReader.from_batches(rows.schema, batches())
        write_deltalake(
            table, reader, mode="overwrite", schema_mode="overwrite", partition_by=self._partition_by or None,
            commit_properties=properties,
        )  # fmt: skip

    def extend(self, table: DeltaTable, typed: TypedRows, rows: pa.Schema) -> DeltaTable:
        """The table with all columns of the rows, by a commit that changes nothing else, if they are nested ones.

        A merge of deltalake that adds a field to a struct drops the structs of the rows that it copies.
        """
        if typed.change is not SchemaChange.NESTED:
            return table
        commit = self.commit_of(table)
        others = {name: str(value) for name, value in commit.items() if name.startswith("headrace.")}
        properties = commit_properties(str(commit[STATE_KEY]), "", -1, others | commit_metadata(typed.columns.schema))
        write_deltalake(table, rows.empty_table(), mode="append", schema_mode="merge", commit_properties=properties)
        now = self.now()
        assert now is not None
        return now

    def small_files(self, table: DeltaTable, typed: TypedRows, partition: Partition | None = None) -> list[str] | None:
        """As `delta_files.small_files`; None as well if the rows need other columns than the table has."""
        if typed.change is not SchemaChange.NONE or self._partitions or self.schema.options.cluster:
            return None
        return small_files(table, partition)

    def compact(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Puts small files together, sorted by the columns that the job names; a large table upkeep sorts."""
        cluster = cluster_columns(table, self.schema.options.cluster)
        if cluster and byte_count(table) <= limits.COMPACT_BYTES:
            table.optimize.z_order(cluster, commit_properties=properties)
        else:
            table.optimize.compact(commit_properties=properties)

    def _table(
        self, base: list[pa.Array], documents: Sequence[Document | None], columns: ArrowColumns, arrays: list[pa.Array]
    ) -> pa.Table:
        partitions = [
            pa.array([None if each is None else column.value(each) for each in documents], column.type)
            for column in self._partitions
        ]
        fields = [pa.field(column.name, column.type) for column in self._partitions]
        schema = pa.schema([*self.base, *columns.arrow, *fields])
        return pa.table([*base, *arrays, *partitions], schema=schema)

    def _converted(self, rows: pa.Table, old: ArrowColumns, new: ArrowColumns) -> pa.Table:
        """Rows by the old columns as rows by the new ones."""
        base = [rows.column(name).combine_chunks() for name in self.base.names]
        arrays = None if self._partitions else _cast(rows, old, new)
        if arrays is None:
            documents = old.joined(rows)
            arrays, _ = new.split(documents)
            return self._table(base, documents, new, arrays)
        return self._table(base, (), new, arrays)


def _cast(rows: pa.Table, old: ArrowColumns, new: ArrowColumns) -> list[pa.Array] | None:
    """The new columns as casts of the old ones; None if a value has to be looked at."""
    before = {field.path: field for field in old.schema.fields if field.type is not None}
    arrays = {}
    for field in new.schema.fields:
        was = before.pop(field.path, None)
        if field.type is None or was is None:
            continue
        arrays[field.column] = rows.column(was.column)
        if was.type == field.type:
            continue
        if not (isinstance(was.type, LeafType) and isinstance(field.type, LeafType)):
            return None
        cast = (was.type.stored.name, field.type.stored.name)
        if cast not in _CASTS or was.type.natural != field.type.natural:
            return None
    if before:
        return None
    try:
        return [
            (arrays[each.name] if each.name in arrays else rows.column(each.name)).combine_chunks().cast(each.type)
            if each.name in arrays or each.name in rows.column_names
            else pa.nulls(rows.num_rows, each.type)
            for each in new.arrow
        ]
    except pa.ArrowInvalid:
        return None
