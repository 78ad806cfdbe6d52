"""Documents as typed columns in the rows of a mirror or a history: the documents' columns, `_rest` and `_shape`.

The table's own columns (`_key`, `_token`, ...) come first. Partition columns that are computed from documents come
last, and are in no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.spark.columns.column_arrays import ArrowColumns
from headrace.spark.columns.column_types import LeafType, StructOf
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.tables.document_codec import DOCUMENT, DocumentCodec, EncodedRows
from headrace.spark.tables.position import NotAMirror
from headrace.spark.tables.typed.table_schema import COLUMNS_KEY, Document, TableSchema, TypedOptions

_CASTS: Final = frozenset(
    [(old, new) for old in ("int", "bigint") for new in ("bigint", "double", "decimal", "string")]
    + [("float", "double"), ("decimal", "decimal")]
)  # fmt: skip
"""Casts between types that keep every value; a cast that would lose one fails."""
_REQUIRED: Final = frozenset({"_id", "bucket", "server", "token"})


class TypedCodec(DocumentCodec):
    """See `DocumentCodec`. `table` names the table in messages."""

    prefix = "_"
    schema: TableSchema

    def __init__(self, options: TypedOptions, table: str) -> None:
        self._table_name = table
        self.schema = TableSchema(options, f"The columns of the {table}.")
        self.cluster = options.cluster
        self.partitions = tuple(pa.field(each.name, each.type) for each in options.partitions)

    def name(self, column: str) -> str:
        return "_key" if column == "_id" else f"_{column}"

    def columns(self, commit: Mapping[str, Any] | None) -> ArrowColumns:
        if commit is None:
            return ArrowColumns(StructOf(()))
        if COLUMNS_KEY not in commit:
            raise NotAMirror(
                f"the {self._table_name} has documents as text: a sink with a schema needs a table of its own, or "
                "`headrace pipeline reset --data`"
            )
        return ArrowColumns(self.schema.of(str(commit[COLUMNS_KEY])))

    def in_files(self, rows: pa.Schema, columns: ArrowColumns | None) -> pa.Schema:
        assert columns
        return pa.schema([*self._own(rows), *columns.arrow])

    def encoded(self, rows: pa.Table, columns: ArrowColumns | None) -> EncodedRows:
        assert columns
        texts = rows.column(DOCUMENT).to_pylist()
        typed = self.schema.planned(columns.schema, texts)
        documents = [loads(text) for text in texts] if self.partitions else []
        own = pa.table(rows.drop_columns([DOCUMENT]).columns, schema=pa.schema(self._own(rows.schema)))
        return EncodedRows(self._table(own, documents, typed.columns, typed.arrays), typed)

    def decoded(self, rows: pa.Table, schema: pa.Schema, columns: ArrowColumns | None) -> pa.Table:
        assert columns
        documents = pa.array([dumps(document) for document in columns.joined(rows)], pa.string())
        arrays = [documents if name == DOCUMENT else rows.column(self.name(name)) for name in schema.names]
        return pa.table(arrays, schema=schema)

    def converted(self, rows: pa.Table, old: ArrowColumns | None, new: ArrowColumns | None) -> pa.Table:
        assert old and new
        arrays = None if self.partitions else _cast(rows, old, new)
        documents = [] if arrays else old.joined(rows)
        made = {*old.arrow.names, *(each.name for each in self.partitions)}
        own = rows.select([name for name in rows.column_names if name not in made])
        return self._table(own, documents, new, arrays or new.split(documents)[0])

    def _own(self, rows: pa.Schema) -> list[pa.Field]:
        return [
            field.with_name(self.name(field.name)).with_nullable(field.name not in _REQUIRED)
            for field in rows
            if field.name != DOCUMENT
        ]

    def _table(
        self, own: pa.Table, documents: Sequence[Document], columns: ArrowColumns, arrays: Sequence[pa.Array]
    ) -> pa.Table:
        made = [
            pa.array([partition.value(document) for document in documents], partition.type)
            for partition in self.schema.options.partitions
        ]
        schema = pa.schema([*own.schema, *columns.arrow, *self.partitions])
        return pa.table([*own.columns, *arrays, *made], schema=schema)


def _cast(rows: pa.Table, old: ArrowColumns, new: ArrowColumns) -> list[pa.Array] | None:
    """Return the new columns as casts of the old ones; None if single values must be inspected."""
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
