"""`$type`: parses names and numbers of BSON types to a test of a value."""

from __future__ import annotations

from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.match.value_tests import truncated_int64
from headrace.values.bson import MISSING, type_number
from headrace.values.paths import ValueTest

NUMBERS: Final = frozenset({1, 16, 18, 19})
ALIASES: Final = {
    "array": 4, "binData": 5, "bool": 8, "date": 9, "dbPointer": 12, "decimal": 19, "double": 1, "int": 16,
    "javascript": 13, "javascriptWithScope": 15, "long": 18, "maxKey": 127, "minKey": -1, "null": 10, "object": 3,
    "objectId": 7, "regex": 11, "string": 2, "symbol": 14, "timestamp": 17, "undefined": 6,
}  # fmt: skip


def parse_types(value: Any, operator: str = "$type") -> frozenset[int]:
    """The BSON type numbers of the argument of `$type`: one type, or an array of them.

    Raises 9 for an empty array, 2 for an unknown name or number, 14 for a value of another type.
    """
    if type(value) is not list:
        return _parse_type(value)
    if not value:
        raise CommandError(9, f"{operator} must match at least one type")
    numbers: set[int] = set()
    for item in value:
        numbers |= _parse_type(item)
    return frozenset(numbers)


def _parse_type(value: Any) -> frozenset[int]:
    if type(value) is str:
        if value == "number":
            return NUMBERS
        if value not in ALIASES:
            raise CommandError(2, f"Unknown type name alias: {value}")
        return frozenset({ALIASES[value]})
    if type(value) not in (int, Int64, float, Decimal128):
        raise CommandError(14, "type must be represented as a number or a string")
    number = truncated_int64(value)
    if number == 0:
        raise CommandError(2, "Invalid numerical type code: 0. Instead use {$exists:false}.")
    if (
        number is None
        or number not in ALIASES.values()
        or number != (value.to_decimal() if type(value) is Decimal128 else value)
    ):
        raise CommandError(2, f"Invalid numerical type code: {value}")
    return frozenset({number})


def has_type(numbers: frozenset[int]) -> ValueTest:
    """The test of `$type`: whether the BSON type of a value is one of `numbers`; False for MISSING."""
    return lambda value: value is not MISSING and type_number(value) in numbers
