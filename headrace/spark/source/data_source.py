"""The Python Data Source `headrace`: change events for `spark.read` and `spark.readStream`.

The document after an update is not looked up: `fullDocument: updateLookup` would give another one at each read. Request
post-images (`fullDocument: whenAvailable`), or apply `updateDescription`, as mirrors do.

Spark requests the schema in a separate process, so the readers (`readers.py`) are imported only where they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import REST, SCHEMA, SERVER, TYPED_COLUMNS
from headrace.spark.source.options import parse_options
from headrace.values.arrow.event_columns import DOCUMENTS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class HeadraceSource(DataSource):
    """The source `format("headrace")`; for its options see `headrace.spark.source.options.parse_options`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return schema_of(parse_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source.readers import BatchReader

        return BatchReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.source.readers import PrefetchingReader, StreamReader

        kind = PrefetchingReader if PrefetchingReader.is_possible else StreamReader
        options = parse_options(self.options)
        for name, given in (("asOf", options.as_of), ("endingPosition", options.end.kind != "latest")):
            if given:
                raise OptionError(
                    f"the option {name!r} is for batch reads, and a stream has no end: leave it out", name
                )
        return kind(options, schema)


def schema_of(options: SourceOptions) -> str:
    """Return the columns as DDL: all, or those of the option `columns`."""
    columns: dict[str, str] = {}
    for column in SCHEMA.split(", "):
        name, _, kind = column.partition(" ")
        if name in DOCUMENTS and options.documents == "bson":
            kind = "BINARY"
        if name in TYPED_COLUMNS and options.documents == "columns":
            columns |= {name: f"STRUCT<{options.document_schema}>", name + REST: "STRING"}
        else:
            columns[name] = kind
    if options.others:
        columns[SERVER] = "STRING NOT NULL"
    return ", ".join(f"{name} {columns[name]}" for name in options.columns or columns)
