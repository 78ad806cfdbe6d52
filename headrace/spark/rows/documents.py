"""Converts columns of BSON to columns of Spark's schema: documents as Extended JSON, as BSON, or typed.

    extjson   canonical Extended JSON, text that keeps the order of fields and every type (the default)
    bson      the bytes, without a conversion
    columns   `fullDocument` and `fullDocumentBeforeChange` as structs by `documentSchema`; fields that do not fit or
              are not in the schema as Extended JSON in `fullDocumentRest` and `fullDocumentBeforeChangeRest`

Workers convert only the requested columns. Documents of the same layout are converted all at once (`layouts.py`), the
others one by one. Rule: both ways give identical results. A mark replaces a document that Extended JSON cannot hold
(`not_held.py`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.spark.rows.events import REST, TYPED_COLUMNS, arrow_schema
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.layouts import KnownLayouts, LayoutMatch, Numbers
from headrace.spark.rows.layouts import texts as layout_texts
from headrace.spark.rows.not_held import held_or_marked
from headrace.spark.rows.typed import StructColumns, fit_struct
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import MISSING


class Shaper:
    """Converts batches of BSON columns to a Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = arrow_schema(schema)
        names = [name.removesuffix(REST) for name in self.schema.names]
        self.columns = tuple(name for name in COLUMNS if name in names)
        """The BSON columns that the schema needs, in the order of COLUMNS."""
        self._typed = {
            field.name: TypedColumns(field.dataType, self.schema.field(field.name).type)
            for field in schema.fields
            if field.name in TYPED_COLUMNS and isinstance(field.dataType, StructType)
        }
        self._texts = {name: TextColumn() for name in names}

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in Spark's schema."""
        typed: dict[str, list[pa.Array]] = {}
        arrays = [self._array(field, batch, typed) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, batch: pa.RecordBatch, typed: dict[str, list[pa.Array]]) -> pa.Array:
        name = field.name
        document = name.removesuffix(REST)
        if document in self._typed:
            if document not in typed:
                typed[document] = self._typed[document](batch.column(document))
            return typed[document][name != document]
        column = batch.column(name)
        if pa.types.is_binary(column.type) and not pa.types.is_binary(field.type):
            column = self._texts[name](column)
        return column if column.type == field.type else column.cast(field.type)


class TextColumn:
    """Converts a column of BSON documents to Extended JSON; layouts are remembered between batches."""

    def __init__(self) -> None:
        self._known = KnownLayouts()

    def __call__(self, column: pa.Array) -> pa.Array:
        (texts,) = self._known.columns(column, _fast_texts, exact_texts)
        return texts


class TypedColumns:
    """Converts a column of BSON documents to a struct and the Extended JSON of the rest; remembers layouts."""

    def __init__(self, struct: StructType, arrow: pa.DataType) -> None:
        self._fit, self._arrow = fit_struct(struct), arrow
        self._struct = StructColumns(struct, arrow)
        self._known = KnownLayouts()

    def __call__(self, column: pa.Array) -> list[pa.Array]:
        return self._known.columns(column, self._struct.columns, self.exact)

    def exact(self, column: pa.Array) -> list[pa.Array]:
        """Convert the documents one by one."""
        held: list[Any] = []
        rest: list[str | None] = []
        for data in column.to_pylist():
            value, left = (None, MISSING) if data is None else self._fit(held_or_marked(data))
            held.append(value)
            rest.append(None if left is MISSING else dumps(left))
        return [pa.array(held, self._arrow), pa.array(rest, pa.string())]


def exact_texts(column: pa.Array) -> list[pa.Array]:
    """Return the Extended JSON of a column of documents, converted one by one."""
    texts = [None if data is None else dumps(held_or_marked(data)) for data in column.to_pylist()]
    return [pa.array(texts, pa.string())]


def _fast_texts(match: LayoutMatch) -> tuple[Numbers, list[pa.Array]]:
    return match.rows, [layout_texts(match)]
