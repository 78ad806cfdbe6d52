"""Spark's schema as Arrow's, with times in UTC, for every supported PySpark."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches of the schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.1 assumes UTC; 4.3 requires the argument.
    timezone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **timezone)
