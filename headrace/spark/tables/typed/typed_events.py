"""Documents as typed columns in the rows of a log of events.

`fullDocument` and `fullDocumentBeforeChange` are structs of one schema. For each, two columns with the suffixes `Rest`
and `Shape` hold the rest and the shape of the document (`columns/`). All other columns are as in a log with documents
as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson.datetime_ms import DatetimeMS

from headrace.spark.columns.column_arrays import REST, SHAPE, ArrowColumns
from headrace.spark.rows.events import TYPED_COLUMNS
from headrace.spark.rows.extjson import dumps
from headrace.spark.tables.document_codec import EncodedRows
from headrace.spark.tables.typed.table_schema import Document
from headrace.spark.tables.typed.typed_codec import TypedCodec

_SUFFIXES: Final = {REST: "Rest", SHAPE: "Shape"}


class TypedEvents(TypedCodec):
    """See `DocumentCodec`. A row keeps the columns that it comes with, whatever the schema."""

    prefix = ""

    def name(self, column: str) -> str:
        return column

    def encoded(self, rows: pa.Table, columns: ArrowColumns | None) -> EncodedRows:
        assert columns
        typed = self.schema.planned(columns.schema, _all_texts(rows))
        return EncodedRows(self._with_partitions(rows, _with_arrays(rows, typed.columns, typed.arrays)), typed)

    def decoded(self, rows: pa.Table, schema: pa.Schema, columns: ArrowColumns | None) -> pa.Table:
        assert columns
        made: dict[str, Any] = {}
        for name in rows.column_names:
            base = name.removesuffix("Rest").removesuffix("Shape")
            if base in TYPED_COLUMNS:
                made[base] = pa.array(_documents(rows, base, columns), pa.string())
            elif name not in {each.name for each in self.partitions}:
                made[name] = rows.column(name)
        return pa.table(made)

    def converted(self, rows: pa.Table, old: ArrowColumns | None, new: ArrowColumns | None) -> pa.Table:
        assert new
        texts = self.decoded(rows, rows.schema, old)
        return self._with_partitions(texts, _with_arrays(texts, new, new.split_texts(_all_texts(texts))[0]))

    def _with_partitions(self, rows: pa.Table, typed: pa.Table) -> pa.Table:
        """Return the typed rows with their partition columns."""
        for partition in self.schema.options.partitions:
            values = [partition.value(row) for row in _event_values(rows, partition.path[0])]
            typed = typed.append_column(partition.name, pa.array(values, partition.type))
        return typed


def _all_texts(rows: pa.Table) -> list[str | None]:
    """Return the texts of all document columns, one column after the other."""
    names = [name for name in rows.column_names if name in TYPED_COLUMNS]
    return [text for name in names for text in rows.column(name).to_pylist()]


def _with_arrays(rows: pa.Table, columns: ArrowColumns, arrays: Sequence[pa.Array]) -> pa.Table:
    """Return the rows with structs in place of documents; `arrays` has the documents as in `_all_texts`."""
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


def _documents(table: pa.Table, name: str, columns: ArrowColumns) -> list[str | None]:
    """Return the documents, as text, from a struct column, its rest and its shape."""
    rests, shapes = (table.column(name + suffix).to_pylist() for suffix in _SUFFIXES.values())
    # The struct column is missing if no document had a typed field.
    empty: list[Any] = [None if rest is None else {} for rest in rests]
    held = table.column(name).to_pylist() if name in table.column_names else empty
    return [
        None if values is None else dumps(columns.document({**values, REST: rest, SHAPE: shape}))
        for values, rest, shape in zip(held, rests, shapes, strict=True)
    ]


def _event_values(rows: pa.Table, name: str) -> list[Document]:
    """Return a column of the events as documents with this one field, for partition columns."""
    if name not in rows.column_names:
        return [{}] * rows.num_rows
    values = rows.column(name).to_pylist()
    if pa.types.is_timestamp(rows.schema.field(name).type):
        values = [None if value is None else DatetimeMS(round(value.timestamp() * 1000)) for value in values]
    return [{name: value} for value in values]
