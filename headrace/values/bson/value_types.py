"""The BSON type of a Python value, by name and number, and `MISSING`, the value of an absent field."""

from __future__ import annotations

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
