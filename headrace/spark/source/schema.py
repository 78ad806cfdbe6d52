"""The source's schema for its options."""

from __future__ import annotations

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import REST, SCHEMA, SERVER, TYPED_COLUMNS
from headrace.values.arrow import DOCUMENTS


def schema_of(options: SourceOptions) -> str:
    """Return the columns as DDL: all, or those of the option `columns`; raise OptionError for an unknown column."""
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
    for name in options.columns:
        if name not in columns:
            raise OptionError(f"there is no column {name!r}; there are {', '.join(columns)}")
        if name.endswith(REST) and name.removesuffix(REST) not in options.columns:
            raise OptionError(f"the column {name!r} is given only with {name.removesuffix(REST)!r}")
    return ", ".join(f"{name} {columns[name]}" for name in options.columns or columns)
