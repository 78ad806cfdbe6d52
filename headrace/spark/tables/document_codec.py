"""How a table has its documents: as text, or as typed columns (`typed/typed_codec.py`). All else of the table is alike.

Mirrors and histories know rows with the columns `_id`, `document`, `token` and so on, and documents as text. A codec
makes of these the rows of files, and the other way round. It names the table's own columns, too: beside typed columns
they are `_key`, `_token` and so on, since a document may have a field of any name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.spark.tables.typed.table_schema import SchemaChange, TableSchema, TypedRows, commit_metadata

if TYPE_CHECKING:
    from headrace.spark.columns.column_arrays import ArrowColumns

DOCUMENT: Final = "document"


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as files have them, with partition columns that are made of documents."""

    table: pa.Table
    typed: TypedRows | None = None

    @property
    def change(self) -> SchemaChange:
        """Return what the rows do to the schema of those that there are."""
        return self.typed.change if self.typed else SchemaChange.NONE

    @property
    def metadata(self) -> dict[str, str]:
        """The part of a commit about the schema."""
        return commit_metadata(self.typed.columns.schema) if self.typed else {}


class DocumentCodec:
    """Documents as text: the rows of files are the rows. `columns`, of typed documents, are None."""

    prefix: str = ""
    """The beginning of the names of the table's own columns."""
    schema: TableSchema | None = None
    cluster: tuple[str, ...] = ()
    partitions: tuple[pa.Field, ...] = ()
    """Partition columns that are made of documents."""

    def name(self, column: str) -> str:
        """The name of one of the table's own columns."""
        return column

    def columns(self, commit: Mapping[str, Any] | None) -> ArrowColumns | None:
        """The columns of the table's documents by a commit's metadata; None: before the first. Raises NotAMirror."""
        return None

    def in_files(self, rows: pa.Schema, columns: ArrowColumns | None) -> pa.Schema:
        """The schema of files with rows of this schema: all but the partition columns."""
        return rows

    def encoded(self, rows: pa.Table, columns: ArrowColumns | None) -> EncodedRows:
        """The rows for a table whose documents have had these columns."""
        return EncodedRows(rows)

    def decoded(self, rows: pa.Table, schema: pa.Schema, columns: ArrowColumns | None) -> pa.Table:
        """Rows of files as rows of this schema."""
        return rows.select(schema.names)

    def converted(self, rows: pa.Table, old: ArrowColumns | None, new: ArrowColumns | None) -> pa.Table:
        """Rows of files by the old columns as rows by the new ones."""
        return rows

    def committed(self, rows: EncodedRows) -> None:
        """The rows are in the table."""
        if self.schema and rows.typed:
            self.schema.committed(rows.typed)
