"""Coercion of values to text, for $toUpper, $substr and other string operators."""

from __future__ import annotations

import math
from typing import Any

from bson import Code, Decimal128, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions.date_format import iso_text
from headrace.query.expressions.numbers import is_nullish
from headrace.values.bson import type_name


def double_text(value: float) -> str:
    """A double converted to text: at most six significant digits, as the server prints them."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN" if math.isnan(value) else f"{value:g}"


def coerced_text(value: Any) -> str:
    """The value as text; empty for null and missing. Raises 16007 for types without a text form."""
    kind = type(value)
    if kind is str:
        return str(value)
    if is_nullish(value):
        return ""
    if kind is float:
        return f"{value:g}"
    if kind in (int, Int64, Decimal128):
        return str(value)
    if kind is DatetimeMS:
        return iso_text(int(value))
    if kind is Timestamp:
        return _timestamp_text(value)
    if kind is Code and value.scope is None:
        return str(value)
    raise CommandError(16007, f"can't convert from BSON type {type_name(value)} to String")


def _timestamp_text(value: Timestamp) -> str:
    """Text like "Jan  1 00:00:05:1": the time in seconds, without its year, and the increment."""
    moment = value.as_datetime()
    return f"{moment:%b} {moment.day:2d} {moment:%H:%M:%S}:{value.inc}"
