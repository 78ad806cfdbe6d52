"""Values as text in MongoDB's error messages.

There are two notations. `to_string` writes a BSON document (`BSONObj`): `{ _id: { a: 1 } }`. `to_compact_string` writes
a value of a pipeline (`Document`): `{_id: {a: 1}}`.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Binary, Code, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS


def to_string(value: Any) -> str:
    """The value with spaces inside the brackets."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key}: {to_string(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[ " + ", ".join(to_string(item) for item in value) + " ]" if value else "[]"
    return _scalar(value)


def to_compact_string(value: Any) -> str:
    """The value without spaces inside the brackets."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {to_compact_string(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(to_compact_string(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Timestamp):
        return f"Timestamp({value.time}, {value.inc})"
    if isinstance(value, DatetimeMS):
        return f"new Date({int(value)})"
    if isinstance(value, ObjectId):
        return f"ObjectId('{value}')"
    if isinstance(value, Regex):
        return regex_text(value)
    if isinstance(value, bytes):
        return f"BinData({value.subtype if isinstance(value, Binary) else 0}, {bytes(value).hex().upper()})"
    if isinstance(value, (MinKey, MaxKey)):
        return type(value).__name__
    if isinstance(value, Decimal128):
        return str(value)
    return _double(value) if isinstance(value, float) else str(value)


def regex_text(value: Regex[Any]) -> str:
    """A regular expression as `/pattern/flags`."""
    return f"/{value.pattern}/{''.join(letter for letter, flag in _FLAGS if value.flags & flag)}"


_FLAGS: Final = (("i", 2), ("l", 4), ("m", 8), ("s", 16), ("u", 32), ("x", 64))


def _double(number: float) -> str:
    """A double, always with a decimal point or an exponent."""
    text = repr(number)
    return text if "." in text or "e" in text else text + ".0"
