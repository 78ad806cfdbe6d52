"""A value of BSON as a column stores it, and back: what fits which type, and the note of the BSON type that it had.

    boolean                  bool
    tinyint … bigint         int and long in range
    float, double            double, int and long, if represented exactly
    decimal(p,s)             decimal, int, long and double, if represented exactly (a double by its shortest digits)
    string                   string, objectId, uuid; numbers, if the column was one of numbers
    binary                   binary of the common subtype
    timestamp                date, in the years 1 to 9999

A note is the value's BSON type: `int`; of a decimal also its number of decimal places, `decimal:2`, since 1.5 and 1.50
are two values. What does not fit is MISSING here, and goes to the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from struct import Struct
from typing import Any, Final
from uuid import UUID

from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.spark.columns.column_types import NUMBERS, LeafType, Primitive
from headrace.values.bson import MISSING

Stored = tuple[Any, str]
"""A column's value, or MISSING, and the note with its BSON type."""

_BITS: Final = {"bigint": 64, "int": 32, "smallint": 16, "tinyint": 8}
DOUBLE_EXACT: Final = 1 << 53
_FLOAT: Final = Struct("<f")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
DATE_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND
DATE_MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_UUID_SUBTYPE: Final = 4
_WIDE: Final = Context(prec=80)
_NATURAL: Final = {
    "bigint": "long", "binary": "binary", "boolean": "bool", "double": "double", "float": "double",
    "int": "int", "objectId": "objectId", "smallint": "int", "string": "string", "timestamp": "date", "tinyint": "int",
    "uuid": "uuid",
}  # fmt: skip
_UNCHANGED: Final[dict[str, type]] = {"binary": bytes, "boolean": bool, "double": float, "string": str}
_NOTES: Final[dict[type, str]] = {
    DatetimeMS: "date", Int64: "long", ObjectId: "objectId", bool: "bool", bytes: "binary", float: "double", int: "int",
    str: "string",
}  # fmt: skip


def natural_note(natural: Primitive) -> str:
    """Return the note that values of this natural type omit."""
    return f"decimal:{natural.scale}" if natural.name == "decimal" else _NATURAL[natural.name]


def note_of(value: Any) -> str | None:
    """Return the note of a value; None if no column stores values of its type."""
    kind = type(value)
    if kind is Decimal128:
        number = value.to_decimal()
        return f"decimal:{-number.as_tuple().exponent}" if number.is_finite() else "decimal"
    if kind is Binary:
        return "uuid" if value.subtype == _UUID_SUBTYPE and len(value) == 16 else None
    return _NOTES.get(kind)


def unchanged_type(kind: LeafType) -> type | None:
    """Return the Python type of values stored unchanged and without a note; None if each value must be checked."""
    return _UNCHANGED.get(kind.natural.name) if kind.natural == kind.stored else None


def storing(kind: LeafType) -> Callable[[Any], Any]:
    """Return the function from a value to its stored form; it returns MISSING if the value does not fit."""
    stored = kind.stored
    if stored.name in _BITS:
        return _integers(1 << (_BITS[stored.name] - 1))
    if stored.name == "decimal":
        return _decimals(stored.precision, stored.scale)
    if stored.name == "string":
        return _number_or_text if kind.natural.name in NUMBERS else _text
    return _SIMPLE[stored.name]


def restored(value: Any, note: str, stored: Primitive) -> Any:
    """Return the BSON value for a column's value, which is not None."""
    kind, _, digits = note.partition(":")
    if kind == "decimal":
        return _decimal_of(value, digits, stored)
    if kind == "date":
        return DatetimeMS((value - _EPOCH) // _MILLISECOND)
    if kind == "uuid":
        return Binary(UUID(value).bytes, _UUID_SUBTYPE)
    return _RESTORED[kind](value)


def _decimal_of(value: Any, digits: str, stored: Primitive) -> Decimal128:
    if stored.name == "string":
        return Decimal128(value)
    exponent = -int(digits)
    unscaled = int(_WIDE.scaleb(Decimal(value), stored.scale))
    coefficient = abs(unscaled) // 10 ** (exponent + stored.scale)
    return Decimal128(Decimal((int(unscaled < 0), tuple(map(int, str(coefficient))), exponent)))


def _integers(beyond: int) -> Callable[[Any], Any]:
    def store(value: Any) -> Any:
        return int(value) if type(value) in (int, Int64) and -beyond <= value < beyond else MISSING

    return store


def _decimals(precision: int, scale: int) -> Callable[[Any], Any]:
    def store(value: Any) -> Any:
        kind = type(value)
        if kind is Decimal128:
            number = value.to_decimal()
        elif kind is int or kind is Int64:
            number = Decimal(int(value))
        elif kind is float:
            number = Decimal(repr(value))
        else:
            return MISSING
        if not number.is_finite() or (number.is_signed() and not number):
            return MISSING
        _, digits, exponent = number.as_tuple()
        fits = exponent >= -scale and len(digits) + exponent <= precision - scale
        # A zero may have one digit followed by many zeros.
        return number if fits and exponent <= precision - scale else MISSING

    return store


def _double(value: Any) -> Any:
    if type(value) is float:
        return value
    exact = type(value) in (int, Int64) and -DOUBLE_EXACT <= value <= DOUBLE_EXACT
    return float(value) if exact else MISSING


def _float(value: Any) -> Any:
    number = _double(value)
    if number is MISSING:
        return MISSING
    try:
        same = math.isnan(number) or _FLOAT.unpack(_FLOAT.pack(number))[0] == number
    except OverflowError:
        return MISSING
    return number if same else MISSING


def _text(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value
    if kind is ObjectId:
        return str(value)
    return str(UUID(bytes=bytes(value))) if kind is Binary and note_of(value) == "uuid" else MISSING


def _number_or_text(value: Any) -> Any:
    kind = type(value)
    if kind is int or kind is Int64 or kind is Decimal128:
        return str(value)
    return repr(value) if kind is float else _text(value)


def _timestamp(value: Any) -> Any:
    fits = type(value) is DatetimeMS and DATE_MS_MIN <= int(value) <= DATE_MS_MAX
    return _EPOCH + int(value) * _MILLISECOND if fits else MISSING


_SIMPLE: Final[dict[str, Callable[[Any], Any]]] = {
    "binary": lambda value: value if type(value) is bytes else MISSING,
    "boolean": lambda value: value if type(value) is bool else MISSING,
    "double": _double,
    "float": _float,
    "timestamp": _timestamp,
}
_RESTORED: Final[dict[str, Callable[[Any], Any]]] = {
    "binary": bytes,
    "bool": bool,
    "double": float,
    "int": int,
    "long": Int64,
    "objectId": ObjectId,
    "string": str,
}
