"""From columns that hold BSON to the columns Spark was promised: documents as Extended JSON, as BSON, or typed.

    extjson   canonical Extended JSON, text that keeps the order of fields and every type (the default)
    bson      the bytes themselves: nothing is converted
    columns   `fullDocument` and `fullDocumentBeforeChange` as structs by `documentSchema`, and beside each what did
              not fit or has no field there, as Extended JSON: `fullDocumentRest`, `fullDocumentBeforeChangeRest`

Done on the workers, for the columns that are wanted and for no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.spark.rows.arrow_schema import arrow_schema
from headrace.spark.rows.events import REST, SERVER, WHOLE
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.typed import fit_struct
from headrace.values.bson import MISSING, decode
from headrace.values.event_columns import COLUMNS

Typed = tuple[list[Any], list[str | None]]


class Shaper:
    """Batches of BSON columns into batches of one Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = arrow_schema(schema)
        names = [name if name in COLUMNS or name == SERVER else name.removesuffix(REST) for name in self.schema.names]
        self.columns = tuple(name for name in COLUMNS if name in names)
        """The columns of BSON that are needed, in their order."""
        self._fits = {
            field.name: fit_struct(field.dataType)
            for field in schema.fields
            if field.name in WHOLE and isinstance(field.dataType, StructType)
        }

    def shape(self, batch: pa.RecordBatch, server: str = "") -> pa.RecordBatch:
        """The batch in Spark's schema; `server` fills the column of that name."""
        typed: dict[str, Typed] = {}
        arrays = [self._array(field, batch, typed, server) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, batch: pa.RecordBatch, typed: dict[str, Typed], server: str) -> pa.Array:
        name = field.name
        if name == SERVER and name not in batch.schema.names:
            return pa.array([server] * batch.num_rows, type=field.type)
        whole = name.removesuffix(REST)
        if whole in self._fits:
            if whole not in typed:
                typed[whole] = _typed(batch.column(whole), self._fits[whole])
            return pa.array(typed[whole][name != whole], type=field.type)
        column = batch.column(name)
        if pa.types.is_binary(column.type) and not pa.types.is_binary(field.type):
            return texts(column, field.type)
        return column if column.type == field.type else column.cast(field.type)


def texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """BSON documents as Extended JSON."""
    return pa.array([None if data is None else dumps(decode(data)) for data in column.to_pylist()], type=kind)


def _typed(column: pa.Array, fit: Callable[[Any], tuple[Any, Any]]) -> Typed:
    """What the struct holds of each document, and the Extended JSON of the rest."""
    held: list[Any] = []
    rest: list[str | None] = []
    for data in column.to_pylist():
        value, left = (None, MISSING) if data is None else fit(decode(data))
        held.append(value)
        rest.append(None if left is MISSING else dumps(left))
    return held, rest
