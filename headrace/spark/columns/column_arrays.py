"""Typed columns as Arrow: the schema of a table's documents; documents as arrays, and back.

The rest is canonical Extended JSON, the shape is JSON. Both are null for a document that exactly follows the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from headrace.spark.columns.column_types import ArrayOf, ColumnType, LeafType, Primitive, StructOf
from headrace.spark.columns.document_columns import DocumentColumns
from headrace.spark.columns.text_layouts import TextLayouts
from headrace.spark.rows.extjson import dumps, loads

REST: Final = "_rest"
SHAPE: Final = "_shape"
_SCHEMA_COUNT: Final = 32
"""The number of schemas whose columns are remembered."""
_TYPES: Final[dict[str, Callable[[], pa.DataType]]] = {
    "bigint": pa.int64,
    "binary": pa.binary,
    "boolean": pa.bool_,
    "double": pa.float64,
    "float": pa.float32,
    "int": pa.int32,
    "smallint": pa.int16,
    "string": pa.string,
    "timestamp": lambda: pa.timestamp("us", "UTC"),
    "tinyint": pa.int8,
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column."""
    if isinstance(kind, LeafType):
        return _primitive(kind.stored)
    if isinstance(kind, StructOf):
        return pa.struct([(field.column, arrow_type(field.type)) for field in kind.fields if field.type is not None])
    if isinstance(kind, ArrayOf):
        return pa.list_(arrow_type(kind.item))
    return pa.map_(pa.string(), arrow_type(kind.value))


def _primitive(stored: Primitive) -> pa.DataType:
    return pa.decimal128(stored.precision, stored.scale) if stored.name == "decimal" else _TYPES[stored.name]()


class ArrowColumns:
    """Documents of one schema as Arrow columns: the schema's columns, then the rest and the shape."""

    def __init__(self, schema: StructOf) -> None:
        self.schema = schema
        self._documents = DocumentColumns(schema)
        typed = [pa.field(field.column, arrow_type(field.type)) for field in schema.fields if field.type is not None]
        self.arrow = pa.schema([*typed, pa.field(REST, pa.string()), pa.field(SHAPE, pa.string())])
        self._layouts = TextLayouts(schema, self.arrow, self.split)

    def __reduce__(self) -> tuple[Any, ...]:
        return columns_of, (self.schema,)

    def split_texts(self, texts: Sequence[str | None]) -> tuple[list[pa.Array], list[dict[str, Any]]]:
        """Return the same as `split` for the documents with these texts."""
        return self._layouts.split(texts)

    def split(self, documents: Iterable[dict[str, Any] | None]) -> tuple[list[pa.Array], list[dict[str, Any]]]:
        """Return the arrays, with a row for each document (nulls for None), and the rests that are not empty."""
        columns: list[list[Any]] = [[] for _ in self.arrow]
        rests: list[dict[str, Any]] = []
        names = self.arrow.names[:-2]
        for document in documents:
            values, rest, shape = ({}, None, None) if document is None else self._documents.split(document)
            for name, column in zip(names, columns, strict=False):
                column.append(values.get(name))
            columns[-2].append(None if rest is None else dumps(rest))
            columns[-1].append(None if shape is None else _shape_text(shape))
            if rest is not None:
                rests.append(rest)
        return [pa.array(column, field.type) for column, field in zip(columns, self.arrow, strict=True)], rests

    def joined(self, table: pa.Table) -> list[dict[str, Any]]:
        """Return the documents of a table's rows; a column that the table lacks is null."""
        names = [name for name in self.arrow.names if name in table.column_names]
        return [self.document(row) for row in table.select(names).to_pylist()]

    def document(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a row, whose values come from Arrow."""
        rest, shape = row.get(REST), row.get(SHAPE)
        return self._documents.joined(row, loads_rest(rest), None if shape is None else json.loads(shape))


@lru_cache(maxsize=_SCHEMA_COUNT)
def columns_of(schema: StructOf) -> ArrowColumns:
    """Return the columns of a schema, which remember the layouts of the documents that they have split."""
    return ArrowColumns(schema)


def loads_rest(text: str | None) -> dict[str, Any] | None:
    """Return the rest from its text."""
    rest: dict[str, Any] | None = None if text is None else loads(text)
    return rest


def _shape_text(shape: dict[str, Any]) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))


def rest_count(rests: Sequence[dict[str, Any]]) -> int:
    """Return the number of values in the rests; values in objects are counted one by one."""
    return sum(_values_in(rest) for rest in rests)


def _values_in(value: Any) -> int:
    return sum(map(_values_in, value.values())) or 1 if type(value) is dict else 1
