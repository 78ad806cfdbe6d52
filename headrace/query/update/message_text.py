"""Values as text in MongoDB's messages of failed updates: `{a: 5, b: [ "x", true ]}`. The text is neither JSON nor
parsed."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.values.bson import MISSING
from headrace.values.bson.to_string import regex_text


def value_text(value: Any) -> str:
    """A value: objects as `{ a: 1 }`, arrays as `[ 1, 2 ]`, doubles always with a decimal point."""
    return _WRITERS[type(value)](value)


def element_text(name: str, value: Any) -> str:
    """A field with its value, as `a: 5`."""
    return f"{name}: {value_text(value)}"


def id_text(document: dict[str, Any]) -> str:
    """The document's `_id` as an element, or `no id`, to identify it in messages."""
    value = document.get("_id", MISSING)
    return "no id" if value is MISSING else element_text("_id", value)


def document_text(document: dict[str, Any]) -> str:
    """An object as a value: `{ a: 1, b: 2 }`, empty `{}`."""
    return "{ " + ", ".join(element_text(*item) for item in document.items()) + " }" if document else "{}"


def _array(array: list[Any]) -> str:
    return "[ " + ", ".join(map(value_text, array)) + " ]" if array else "[]"


def _double(number: float) -> str:
    if isnan(number):
        return "nan.0"
    if number in (float("inf"), float("-inf")):
        return "inf.0" if number > 0 else "-inf.0"
    text = repr(number)
    return text if "." in text or "e" in text else text + ".0"


def _binary(value: bytes) -> str:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return f"BinData({subtype}, {value.hex().upper()})"


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    Binary: _binary,
    Code: str,
    DatetimeMS: lambda value: f"new Date({int(value)})",
    Decimal128: str,
    Int64: lambda value: str(int(value)),
    MaxKey: lambda value: "MaxKey",
    MinKey: lambda value: "MinKey",
    ObjectId: lambda value: f"ObjectId('{value}')",
    Regex: regex_text,
    Timestamp: lambda value: f"Timestamp({value.time}, {value.inc})",
    bool: lambda value: "true" if value else "false",
    bytes: _binary,
    dict: document_text,
    float: _double,
    int: str,
    list: _array,
    str: lambda value: f'"{value}"',
    type(None): lambda value: "null",
}
