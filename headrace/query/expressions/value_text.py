"""Values as text in error messages of expressions: `{a: 1, b: "x"}`, `[1, null]`, `BinData(5, "7A7A")`."""

from __future__ import annotations

from typing import Any

from bson import Binary, MaxKey, MinKey, Regex
from bson.datetime_ms import DatetimeMS

from headrace.query.expressions.date_format import iso_text
from headrace.values.bson import MISSING
from headrace.values.bson.to_string import regex_text


def as_text(value: Any) -> str:
    """The value as text for people, not for parsing."""
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
