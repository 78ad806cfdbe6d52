"""Sinks with typed columns, and the collection's validator, from which their schema is inferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pymongo.errors import PyMongoError

from headrace.spark.mongodb.mongodb_stream import client_of
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.sinks.contract import Sink
from headrace.spark.tables.typed.table_schema import TableSchema

_JSON_SCHEMA: Final = "$jsonSchema"


def set_validators(sinks: list[Sink], options: SourceOptions) -> None:
    """Give the collection's validator to each sink that infers a schema, if the source has one collection."""
    schemas = [schema for sink in sinks if (schema := schema_of_sink(sink)) is not None]
    if schemas and options.database and options.collection:
        validator = _validator(options, options.database, options.collection)
        for schema in schemas:
            schema.validator = validator


def schema_of_sink(sink: Sink) -> TableSchema | None:
    """Return the schema of the sink's table; None if it has no typed columns."""
    table = getattr(sink, "table", None) or getattr(sink, "log", None)
    schema = getattr(table, "schema", None)
    return schema if isinstance(schema, TableSchema) else None


def _validator(options: SourceOptions, database: str, collection: str) -> Mapping[str, Any]:
    """Return the collection's `$jsonSchema`; empty if it has none, or if the user may not read it."""
    try:
        listed = list(client_of(options.uri)[database].list_collections(filter={"name": collection}))
    except PyMongoError:
        return {}
    validator = listed[0].get("options", {}).get("validator", {}) if listed else {}
    schema = validator.get(_JSON_SCHEMA, {})
    return schema if isinstance(schema, Mapping) else {}
