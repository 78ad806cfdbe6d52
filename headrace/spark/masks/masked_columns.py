"""Masks on columns of events: of BSON, with their tokens, as workers read them; of Extended JSON, as sinks get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from headrace.spark.masks.mask import Document, Mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.values.bson import decode, encode

_OTHER: Final = "other"
_TOKEN: Final = "token"


def masked_bson(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """The batch of BSON columns with its values, and its tokens, masked."""

    def changed(column: pa.Array, function: Callable[[Document], Document]) -> pa.Array:
        texts = [None if data is None else encode(function(decode(data))) for data in column.to_pylist()]
        return pa.array(texts, column.type)

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
    """The table of Extended JSON columns with its values masked."""
    for name, function in _functions(mask).items():
        if name in table.column_names:
            texts = [None if text is None else dumps(function(loads(text))) for text in table.column(name).to_pylist()]
            number = table.schema.get_field_index(name)
            field = table.schema.field(number)
            table = table.set_column(number, field, pa.array(texts, pa.string()).cast(field.type))
    return table


def _functions(mask: Mask) -> dict[str, Callable[[Document], Any]]:
    """What masks each column. `other` holds what has no column of its own, or not with such a value."""
    return {**mask.columns, _OTHER: mask.event}
