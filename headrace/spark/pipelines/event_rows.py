"""Events that a pipeline has changed, as rows of the source; fields without a column go to `other`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.spark.pipelines.row_events import writer
from headrace.values import bson
from headrace.values.arrow import COLUMNS, DOCUMENTS, row_of


def row_arrays(made: list[dict[str, Any]], batch: pa.RecordBatch, indexes: list[int]) -> pa.RecordBatch:
    """Return the events as rows with the columns of `batch`.

    `indexes` are the rows of `batch` that the events come from; columns that are not an event's are taken from there.
    """
    rows = [row_of(bson.encode(event)) for event in made]
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
    taken = pa.array(indexes, pa.int64())
    arrays = []
    for field in batch.schema:
        if field.name not in columns:
            arrays.append(batch.column(field.name).take(taken))
        elif pa.types.is_timestamp(field.type):
            moments = pa.array(columns[field.name], pa.int64())
            arrays.append(moments.cast(pa.timestamp("us", field.type.tz)).cast(field.type))
        elif field.name in DOCUMENTS:
            arrays.append(pa.array(_documents(columns[field.name], field.type), field.type))
        else:
            arrays.append(pa.array(columns[field.name], field.type))
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _documents(cells: Any, kind: pa.DataType) -> list[Any]:
    write = writer(kind)
    if write is bson.encode:
        return list(cells)
    return [None if cell is None else write(bson.decode(cell)) for cell in cells]
