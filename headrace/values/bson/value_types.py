"""The BSON type of a Python value, by name and number, `MISSING`, the value of an absent field, and values as text.

There are two notations in MongoDB's error messages. `to_string` writes a BSON document (`BSONObj`): `{ _id: { a: 1 }
}`. `to_compact_string` writes a value of a pipeline (`Document`): `{_id: {a: 1}}`.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS


class Missing:
    """The type of `MISSING`: the value of a path without a field. Falsy; there is one instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"

    def __copy__(self) -> Missing:
        return self

    def __deepcopy__(self, memo: object) -> Missing:
        return self


MISSING: Final = Missing()


_TYPES: Final[dict[type, tuple[int, str]]] = {
    float: (1, "double"),
    str: (2, "string"),
    dict: (3, "object"),
    list: (4, "array"),
    bytes: (5, "binData"),
    Binary: (5, "binData"),
    ObjectId: (7, "objectId"),
    bool: (8, "bool"),
    DatetimeMS: (9, "date"),
    type(None): (10, "null"),
    Regex: (11, "regex"),
    Code: (13, "javascript"),
    int: (16, "int"),
    Timestamp: (17, "timestamp"),
    Int64: (18, "long"),
    Decimal128: (19, "decimal"),
    MinKey: (-1, "minKey"),
    MaxKey: (127, "maxKey"),
    Missing: (0, "missing"),
}


def types_named(*names: str) -> frozenset[type]:
    """The Python types of the BSON types with these names, as `type_name` returns them."""
    return frozenset(kind for kind, (_, name) in _TYPES.items() if name in names)


def type_name(value: Any) -> str:
    """MongoDB's name of the BSON type, as in `$type` and error messages; "missing" for MISSING."""
    if type(value) is Code and value.scope is not None:
        return "javascriptWithScope"
    return _TYPES[type(value)][1]


def type_number(value: Any) -> int:
    """The BSON type number as in `$type` (-1 minKey, 127 maxKey); 0 for MISSING."""
    if type(value) is Code and value.scope is not None:
        return 15
    return _TYPES[type(value)][0]


# Values as text in MongoDB's error messages.


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
    """A double with at most 16 digits, and always with a decimal point or an exponent unless it is not finite."""
    text = f"{number:.16g}"
    return text if "." in text or "e" in text or not isfinite(number) else text + ".0"
