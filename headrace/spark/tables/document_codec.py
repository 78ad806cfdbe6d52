"""How a table stores its documents: as text, or as typed columns. The rest of a table is alike.

Mirrors and histories know rows with the columns `_id`, `document`, `token` and so on, and documents as text. A codec
converts these rows to the rows of files, and back. It also names the table's own columns: beside typed columns they are
`_key`, `_token` and so on, because a document may have a field of any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from bson.datetime_ms import DatetimeMS

from headrace.spark.columns.arrow_columns import REST, SHAPE, ArrowColumns
from headrace.spark.columns.column_types import StructOf
from headrace.spark.rows.events import TYPED_COLUMNS
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.tables.progress import NotAMirror
from headrace.spark.tables.typed.table_schema import (
    COLUMNS_KEY,
    Document,
    SchemaChange,
    TableSchema,
    TypedOptions,
    TypedRows,
    commit_metadata,
)

DOCUMENT: Final = "document"


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as files store them, with the partition columns that are computed from documents."""

    table: pa.Table
    typed: TypedRows | None = None

    @property
    def change(self) -> SchemaChange:
        """The change that the rows make to the table's schema."""
        return self.typed.change if self.typed else SchemaChange.NONE

    @property
    def rest_count(self) -> int:
        """The number of values in the rest of typed documents."""
        return self.typed.rest_count if self.typed else 0

    @property
    def metadata(self) -> dict[str, str]:
        """The part of a commit's metadata that describes the schema."""
        return commit_metadata(self.typed.columns.schema) if self.typed else {}


class DocumentCodec:
    """Documents as text: the rows of files are the mirror's or history's rows, and `columns` are None."""

    prefix: str = ""
    """The prefix of the names of the table's own columns."""
    schema: TableSchema | None = None
    cluster: tuple[str, ...] = ()
    partitions: tuple[pa.Field, ...] = ()
    """Partition columns that are computed from documents."""

    def name(self, column: str) -> str:
        """Return the name of one of the table's own columns."""
        return column

    def columns(self, commit: Mapping[str, Any] | None) -> ArrowColumns | None:
        """Return the documents' columns from a commit's metadata; None stands for a new table. Raise NotAMirror."""
        return None

    def in_files(self, rows: pa.Schema, columns: ArrowColumns | None) -> pa.Schema:
        """Return the schema of files whose rows have this schema: all columns but the partition columns."""
        return rows

    def encoded(self, rows: pa.Table, columns: ArrowColumns | None) -> EncodedRows:
        """Return the rows as files store them, in a table whose documents have these columns."""
        return EncodedRows(rows)

    def decoded(self, rows: pa.Table, schema: pa.Schema, columns: ArrowColumns | None) -> pa.Table:
        """Return rows of files as rows of this schema."""
        return rows.select(schema.names)

    def converted(self, rows: pa.Table, old: ArrowColumns | None, new: ArrowColumns | None) -> pa.Table:
        """Convert rows of files from the old columns to the new ones."""
        return rows

    def committed(self, rows: EncodedRows) -> None:
        """Take note that the rows are committed."""
        if self.schema and rows.typed:
            self.schema.committed(rows.typed)


_REQUIRED: Final = frozenset({"_id", "bucket", "server", "token"})


class TypedCodec(DocumentCodec):
    """Documents as typed columns in a mirror or a history; `table` names the table in messages.

    The table's own columns (`_key`, `_token`, ...) come first, then the documents' columns, `_rest` and `_shape`.
    Partition columns that are computed from documents come last, and are in no file.
    """

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
        documents = old.joined(rows)
        made = {*old.arrow.names, *(each.name for each in self.partitions)}
        own = rows.select([name for name in rows.column_names if name not in made])
        return self._table(own, documents, new, new.split(documents)[0])

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


_SUFFIXES: Final = {REST: "Rest", SHAPE: "Shape"}


class TypedEvents(TypedCodec):
    """Documents as typed columns in a log of events. A row keeps its other columns, whatever the schema.

    `fullDocument` and `fullDocumentBeforeChange` are structs of one schema. For each, two columns with the suffixes
    `Rest` and `Shape` hold the rest and the shape of the document (`columns/`).
    """

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
