"""How a table stores its documents: as text, or as typed columns (`typed/typed_codec.py`). The rest of a table is
alike.

Mirrors and histories know rows with the columns `_id`, `document`, `token` and so on, and documents as text. A codec
converts these rows to the rows of files, and back. It also names the table's own columns: beside typed columns they are
`_key`, `_token` and so on, because a document may have a field of any name.
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
