"""A log of events as a Delta table whose documents are structs of typed columns.

`fullDocument` and `fullDocumentBeforeChange` are structs of one schema; for each there are two columns with the
suffixes `Rest` and `Shape`, the rest and the shape of the document (`columns/`). All other columns are as in a log with
documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson.datetime_ms import DatetimeMS
from deltalake import CommitProperties, DeltaTable, write_deltalake

from headrace.spark.columns.column_arrays import REST, SHAPE, ArrowColumns, rest_count
from headrace.spark.columns.column_types import StructOf
from headrace.spark.columns.infer import ColumnRules, grown
from headrace.spark.rows.events import TYPED_COLUMNS
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.tables.delta_commits import commit_properties, compact_small_files, newest_commit
from headrace.spark.tables.delta_files import add_files, fits
from headrace.spark.tables.delta_log import DeltaLog
from headrace.spark.tables.mirror_table import NotAMirror
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.staged_files import ColumnsNeeded, Convert, StagedFile
from headrace.spark.tables.typed.table_schema import (
    COLUMNS_KEY,
    Document,
    SchemaChange,
    TableSchema,
    TypedOptions,
    commit_metadata,
)

_SUFFIXES: Final = {REST: "Rest", SHAPE: "Shape"}


class TypedLog(DeltaLog):
    """See `event_log.SharedLog`; its rows come as every log's do, with documents as text.

    Tasks write the rows of a batch once the table has the columns that all of them need.
    """

    converts = True

    def __init__(self, path: str | Path, options: TypedOptions) -> None:
        super().__init__(path)
        self.schema = TableSchema(options, f"The columns of the documents in {self.location}.")

    def append(self, rows: pa.Table, progress: Progress) -> None:
        table = self._open_table.now()
        stored = self._stored_schema(table)
        typed = self.schema.planned(stored, _all_documents(rows))
        properties = self._commit_properties(progress, typed.columns)
        new = self._with_partitions(rows, _with_arrays(rows, typed.columns, typed.arrays))
        partitions = [each.name for each in self.schema.options.partitions] or None
        if table is None:
            self.location.create()
            write_deltalake(
                self.location.url, new, mode="append", partition_by=partitions, commit_properties=properties
            )
        elif typed.change is SchemaChange.REWRITTEN:
            self._rewrite(table, ArrowColumns(stored), typed.columns, new, properties)
        else:
            write_deltalake(table, new, mode="append", schema_mode="merge", commit_properties=properties)
        self.schema.committed(typed)
        compact_small_files(self._table(), properties)

    def note(self, progress: Progress) -> None:
        table = self._table()
        nothing = pa.schema(table.schema().to_arrow()).empty_table()
        columns = ArrowColumns(self._stored_schema(table))
        write_deltalake(table, nothing, mode="append", commit_properties=self._commit_properties(progress, columns))

    def takes(self, schema: pa.Schema) -> bool:
        table = self._open_table.now()
        if table is None or self.schema.options.partitions:
            return False
        stored = self._stored_schema(table)
        return self.schema.settled(stored) and fits(table, _typed(schema.empty_table(), ArrowColumns(stored)).schema)

    def converter(self) -> Convert | None:
        return EventConverter(self._stored_schema(self._table()), self.schema.options.rules)

    def append_files(self, files: Sequence[StagedFile], schema: pa.Schema, progress: Progress) -> None:
        table = self._table()
        properties = self._commit_properties(progress, ArrowColumns(self._stored_schema(table)))
        add_files(self._open_table, files, schema, properties)
        compact_small_files(self._table(), properties)

    def read(self) -> pa.Table:
        """All rows, in no order, with documents as text."""
        table = self._table()
        return self._as_text(table.to_pyarrow_table(), ArrowColumns(self._stored_schema(table)))

    def _stored_schema(self, table: DeltaTable | None) -> StructOf:
        if table is None:
            return StructOf(())
        commit = newest_commit(table) or {}
        if COLUMNS_KEY not in commit:
            raise NotAMirror(
                f"the Delta table {self.location} has documents as text: a sink with a schema needs a table of its "
                "own, or `headrace pipeline reset --data`"
            )
        return self.schema.of(str(commit[COLUMNS_KEY]))

    def _commit_properties(self, progress: Progress, columns: ArrowColumns) -> CommitProperties:
        return commit_properties(progress.text(), progress.query, progress.batch, commit_metadata(columns.schema))

    def _with_partitions(self, rows: pa.Table, typed: pa.Table) -> pa.Table:
        """The typed rows, with their partition columns."""
        for partition in self.schema.options.partitions:
            values = [partition.value(row) for row in _event_values(rows, partition.path[0])]
            typed = typed.append_column(partition.name, pa.array(values, partition.type))
        return typed

    def _as_text(self, table: pa.Table, columns: ArrowColumns) -> pa.Table:
        """Rows of the table as they came."""
        made: dict[str, Any] = {}
        for name in table.column_names:
            base = name.removesuffix("Rest").removesuffix("Shape")
            if base in TYPED_COLUMNS:
                made[base] = pa.array(_documents(table, base, columns), pa.string())
            elif name not in {each.name for each in self.schema.options.partitions}:
                made[name] = table.column(name)
        return pa.table(made)

    def _rewrite(
        self, table: DeltaTable, old: ArrowColumns, new: ArrowColumns, rows: pa.Table, properties: CommitProperties
    ) -> None:
        dataset = table.to_pyarrow_dataset()
        names = rows.schema.names
        more = [field for field in dataset.schema if field.name not in names and field.name in dataset.schema.names]
        more = [field for field in more if field.name.removesuffix("Rest").removesuffix("Shape") not in TYPED_COLUMNS]
        schema = pa.schema([*rows.schema, *more])

        def batches() -> Any:
            for batch in dataset.to_batches():
                text = self._as_text(pa.Table.from_batches([batch]), old)
                yield from _filled(self._with_partitions(text, _typed(text, new)), schema).to_batches()
            yield from _filled(rows, schema).to_batches()

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        partitions = [each.name for each in self.schema.options.partitions] or None
        write_deltalake(
            table, reader, mode="overwrite", schema_mode="overwrite", partition_by=partitions,
            commit_properties=properties,
        )  # fmt: skip


@dataclass(frozen=True)
class EventConverter:
    """Makes typed rows of a schema of the source's: for tasks, which get it pickled."""

    schema: StructOf
    rules: ColumnRules

    def __call__(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """Return the rows, and how many values are in the rest. Raises ColumnsNeeded."""
        columns = ArrowColumns(self.schema)
        arrays, rests = columns.split(_all_documents(rows))
        if any(grown(self.schema, rest, self.rules) is not self.schema for rest in rests):
            raise ColumnsNeeded
        return _with_arrays(rows, columns, arrays), rest_count(rests)


def _typed(rows: pa.Table, columns: ArrowColumns) -> pa.Table:
    """The rows with their documents as columns."""
    return _with_arrays(rows, columns, columns.split(_all_documents(rows))[0])


def _all_documents(rows: pa.Table) -> list[Document | None]:
    """The documents of one column of the rows after those of the other."""
    names = [name for name in rows.column_names if name in TYPED_COLUMNS]
    return [None if text is None else loads(text) for name in names for text in _texts(rows, name)]


def _with_arrays(rows: pa.Table, columns: ArrowColumns, arrays: Sequence[pa.Array]) -> pa.Table:
    """The rows with structs of these arrays, in which those of `_all_documents` are, in place of documents."""
    made: dict[str, pa.Array] = {}
    start = 0
    for name in rows.column_names:
        if name not in TYPED_COLUMNS:
            made[name] = rows.column(name)
            continue
        own = [array.slice(start, rows.num_rows) for array in arrays]
        start += rows.num_rows
        if len(own) > len(_SUFFIXES):
            missing = pc.is_null(rows.column(name)).combine_chunks()
            fields = list(columns.arrow)[: -len(_SUFFIXES)]
            made[name] = pa.StructArray.from_arrays(own[: -len(_SUFFIXES)], fields=fields, mask=missing)
        for suffix, array in zip(_SUFFIXES.values(), own[-len(_SUFFIXES) :], strict=True):
            made[name + suffix] = array
    return pa.table(made)


def _texts(rows: pa.Table, name: str) -> list[str | None]:
    texts: list[str | None] = rows.column(name).to_pylist() if name in rows.column_names else []
    return texts


def _documents(table: pa.Table, name: str, columns: ArrowColumns) -> list[str | None]:
    """The documents of a struct column, its rest and its shape, as text."""
    rests, shapes = (table.column(name + suffix).to_pylist() for suffix in _SUFFIXES.values())
    # Without a column no document of any row had a field that is typed.
    empty: list[Any] = [None if rest is None else {} for rest in rests]
    held = table.column(name).to_pylist() if name in table.column_names else empty
    return [
        None if values is None else dumps(columns.document({**values, REST: rest, SHAPE: shape}))
        for values, rest, shape in zip(held, rests, shapes, strict=True)
    ]


def _event_values(rows: pa.Table, name: str) -> list[Document]:
    """A column of the events as documents with this field, for partition columns."""
    if name not in rows.column_names:
        return [{}] * rows.num_rows
    values = rows.column(name).to_pylist()
    if pa.types.is_timestamp(rows.schema.field(name).type):
        values = [None if value is None else DatetimeMS(round(value.timestamp() * 1000)) for value in values]
    return [{name: value} for value in values]


def _filled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)
