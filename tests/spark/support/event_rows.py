"""Rows as the sinks get them, from the rows that the source reads and from decoded events."""

from __future__ import annotations

from typing import Any

from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.values.arrow.event_columns import EventRow
from headrace.values.arrow.event_columns import row_of as columns_of
from headrace.values.bson import decode, encode


def text_row(row: EventRow) -> Row:
    return Row(*(dumps(decode(value)) if type(value) is bytes else value for value in row))


def row_of(event: dict[str, Any]) -> Row:
    return text_row(columns_of(encode(event)))
