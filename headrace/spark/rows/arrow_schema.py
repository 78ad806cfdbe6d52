"""Spark's schema as an Arrow schema, with times in UTC, for every supported version of PySpark."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.1 assumes UTC; 4.3 requires the argument.
    timezone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **timezone)
