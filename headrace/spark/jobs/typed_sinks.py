"""Sinks with typed columns, and the collection's validator, from which their schema is inferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.errors import PyMongoError

from headrace.spark.mongodb.listed_collections import listed
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.sinks.contract import Sink
from headrace.spark.tables.typed.table_schema import TableSchema


def set_validators(sinks: list[Sink], options: SourceOptions) -> None:
    """Give the collection's validator to each sink that infers a schema, if the source has one collection."""
    schemas = [schema for sink in sinks if (schema := schema_of_sink(sink)) is not None]
    if schemas and options.database and options.collection:
        validator = _validator(options)
        for schema in schemas:
            schema.validator = validator


def schema_of_sink(sink: Sink) -> TableSchema | None:
    """Return the schema of the sink's table; None if it has no typed columns."""
    schema = getattr(getattr(sink, "table", None), "schema", None)
    return schema if isinstance(schema, TableSchema) else None


def _validator(options: SourceOptions) -> Mapping[str, Any]:
    """Return the collection's `$jsonSchema`; empty if it has none, or if the user may not read it."""
    try:
        validators = [one.get("options", {}).get("validator", {}) for _, one in listed(options)]
    except PyMongoError:
        return {}
    schema = validators[0].get("$jsonSchema", {}) if validators else {}
    return schema if isinstance(schema, Mapping) else {}
