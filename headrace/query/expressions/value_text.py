"""Values as text: in error messages (`{a: 1, b: "x"}`) and in results, with MongoDB's bound on their length."""

from __future__ import annotations

import math
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.date_format import iso_text
from headrace.query.expressions.numbers import is_nullish
from headrace.values.bson import MISSING, regex_text, type_name


def as_text(value: Any) -> str:
    """The value as text in an error message, for people: `{a: 1, b: "x"}`, `[1, null]`, `BinData(5, "7A7A")`."""
    kind = type(value)
    if kind is dict:
        return "{" + ", ".join(f"{name}: {as_text(item)}" for name, item in value.items()) + "}"
    if kind is list:
        return "[" + ", ".join(map(as_text, value)) + "]"
    if kind is str:
        return f'"{value}"'
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return f"{value:g}"
    if kind in (bytes, Binary):
        return f'BinData({value.subtype if kind is Binary else 0}, "{value.hex().upper()}")'
    if kind is DatetimeMS:
        return iso_text(int(value)) if -62_167_219_200_000 <= int(value) <= 253_402_300_799_999 else str(int(value))
    if kind in (MinKey, MaxKey):
        return kind.__name__
    if kind is Regex:
        return regex_text(value)
    if value is None:
        return "null"
    return "MISSING" if value is MISSING else str(value)


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


def check_text_length(length: int) -> None:
    """Raise 16493 if the length of a text, in bytes or at least in characters, is over the limit."""
    if length > limits.TEXT_BYTES_MAX:
        raise CommandError(16493, "Tried to create string longer than 16MB")


def checked_text(text: str) -> str:
    """Return the text. Raise 16493 if it is too long."""
    if len(text) > limits.TEXT_BYTES_MAX // 4:  # a character has four bytes at most
        check_text_length(len(text) if text.isascii() else len(text.encode()))
    return text
