"""Masks on columns of events: BSON columns and tokens on workers, and Extended JSON columns in sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from headrace.spark.masks.mask import Document, Mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.not_held import NOT_HELD, held_or_marked
from headrace.values.bson import encode

_OTHER: Final = "other"
_TOKEN: Final = "token"


def masked_bson(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """Return the batch of BSON columns with values and tokens masked; a mark replaces a document that is not held."""

    def changed(column: pa.Array, function: Callable[[Document], Document]) -> pa.Array:
        return pa.array([None if data is None else one(data, function) for data in column.to_pylist()], column.type)

    def one(data: bytes, function: Callable[[Document], Document]) -> bytes:
        document = held_or_marked(data)
        return encode(document if NOT_HELD in document else function(document))

    for name, function in _functions(mask).items():
        number = batch.schema.get_field_index(name)
        if number >= 0:
            batch = batch.set_column(number, batch.schema.field(number), changed(batch.column(number), function))
    if (number := batch.schema.get_field_index(_TOKEN)) >= 0:
        field = batch.schema.field(number)
        tokens = [mask.token(text) for text in batch.column(number).to_pylist()]
        batch = batch.set_column(number, field, pa.array(tokens, field.type))
    return batch


def masked_texts(table: pa.Table, mask: Mask) -> pa.Table:
    """Return the table of Extended JSON columns with its values masked."""
    for name, function in _functions(mask).items():
        if name in table.column_names:
            texts = [None if text is None else dumps(function(loads(text))) for text in table.column(name).to_pylist()]
            number = table.schema.get_field_index(name)
            field = table.schema.field(number)
            table = table.set_column(number, field, pa.array(texts, pa.string()).cast(field.type))
    return table


def _functions(mask: Mask) -> dict[str, Callable[[Document], Any]]:
    """Return the mask of each column. `other` has fields without a column, or with another type than their column's."""
    return {**mask.columns, _OTHER: mask.event}
