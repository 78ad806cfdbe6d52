"""Tests of one value on a path: `$eq`, `$gt`, `$in`, regular expressions, types, bits, ...

Rule: comparisons are bracketed by type. Null also matches a missing field. NaN equals only NaN. minKey and maxKey
compare with values of all types. A test never enters an array: the walk of the path does.

Rule for the operators on bits: integral numbers of at most 64 bits are tested in two's complement with infinite sign
extension. A decimal is rounded to an integer first; a double that is not integral never matches. Binary data is
little-endian and its bits beyond the end are clear. Source: MongoDB's manual, "Bitwise Query Operators".
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, Regex

from headrace import limits
from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.expressions.numbers import NUMBERS, int64_of, no_long
from headrace.query.patterns import compile_pattern
from headrace.values.bson import MISSING, to_string, type_number
from headrace.values.order import (
    NAN_KEY,
    RANK_NUMBER,
    equal,
    hash_key,
    hash_keys,
    number_key,
    rank,
    regex_options,
    sort_key,
)
from headrace.values.paths import ValueTest

NATIVE_NUMBERS: Final = frozenset({int, float, Int64})
ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


def never(value: Any) -> bool:
    """A test that is always False."""
    return False


def equals(wanted: Any, collation: Collation | None = None) -> ValueTest:
    """The test of `$eq`. It compares a regular expression as a value; `matches_regex` matches it."""
    kind = type(wanted)
    if wanted is None:
        return lambda value: value is None or value is MISSING
    if kind in NATIVE_NUMBERS or kind is Decimal128:
        return _equals_number(number_key(wanted))
    if kind is str and collation is None:
        return lambda value: type(value) is str and value == wanted
    if kind is str and collation is not None:
        key = collation.key(wanted)
        return lambda value: type(value) is str and collation.key(value) == key
    if kind in (bool, dict, list):
        return lambda value: type(value) is kind and equal(value, wanted, collation)
    return lambda value: type(value) is not dict and equal(value, wanted)


def _equals_number(wanted: Any) -> ValueTest:
    if wanted is NAN_KEY:
        return lambda value: rank(value) == RANK_NUMBER and number_key(value) is NAN_KEY

    def test(value: Any) -> bool:
        kind = type(value)
        if kind in NATIVE_NUMBERS:
            return bool(value == wanted)
        return kind is Decimal128 and bool(number_key(value) == wanted)

    return test


def ordered(name: str, bound: Any, collation: Collation | None = None) -> ValueTest:
    """The test of `$gt`, `$gte`, `$lt` or `$lte` (`name`) with the operand `bound`."""
    holds = ORDERS[name]
    kind = type(bound)
    inclusive = name in ("$gte", "$lte")
    if bound is None:
        return equals(None) if inclusive else never
    if kind in (MinKey, MaxKey):
        outside = (name in ("$gt", "$gte")) == (kind is MinKey)
        return lambda value: inclusive if type(value) is kind else outside
    if kind in NATIVE_NUMBERS or kind is Decimal128:
        return _ordered_number(holds, number_key(bound), inclusive)
    if kind is bool or (kind is str and collation is None):
        return lambda value: type(value) is kind and holds(value, bound)
    key = sort_key(bound, collation)
    bound_rank = rank(bound)
    return lambda value: rank(value) == bound_rank and holds(sort_key(value, collation), key)


def _ordered_number(holds: Callable[[Any, Any], bool], bound: Any, inclusive: bool) -> ValueTest:
    if bound is NAN_KEY:
        return _equals_number(NAN_KEY) if inclusive else never
    plain = type(bound) in NATIVE_NUMBERS  # comparing a NaN with a Decimal raises, with others it is False

    def test(value: Any) -> bool:
        kind = type(value)
        if kind in NATIVE_NUMBERS:
            return (plain or value == value) and holds(value, bound)  # noqa: PLR0124
        if kind is not Decimal128:
            return False
        key = number_key(value)
        return key is not NAN_KEY and holds(key, bound)

    return test


def is_in(wanted: list[Any], collation: Collation | None = None) -> ValueTest:
    """The test of `$in`: the value equals one of `wanted`, or matches a regular expression among them."""
    kinds = set(map(type, wanted))
    of_all = [*wanted, MISSING] if type(None) in kinds else wanted
    keys = frozenset(hash_keys(of_all, collation))
    regexes = [item for item in wanted if type(item) is Regex] if Regex in kinds else []
    patterns = [matches_regex(item.pattern, regex_options(item)) for item in regexes]
    if patterns:
        return lambda value: hash_key(value, collation) in keys or any(test(value) for test in patterns)
    return lambda value: hash_key(value, collation) in keys


def matches_regex(pattern: str, options: str = "") -> ValueTest:
    """The test of a regular expression: strings that match the pattern, and equal regular expressions.

    Raises 51091 for an invalid pattern, 51108 for an unknown option.
    """
    matches = compile_pattern(pattern, options).matches

    def test(value: Any) -> bool:
        if type(value) is str:
            return matches(value)
        return type(value) is Regex and value.pattern == pattern and regex_options(value) == options

    return test


def exists(value: Any) -> bool:
    """The test of `$exists: true`."""
    return value is not MISSING


def has_size(size: int) -> ValueTest:
    """The test of `$size`: an array of exactly `size` elements."""
    return lambda value: type(value) is list and len(value) == size


def leaves_remainder(divisor: int, remainder: int) -> ValueTest:
    """The test of `$mod`. The remainder has the sign of the value. Fractions are truncated."""

    def test(value: Any) -> bool:
        number = truncated_int64(value)
        if number is None:
            return False
        rest = abs(number) % abs(divisor)
        return (-rest if number < 0 else rest) == remainder

    return test


def truncated_int64(value: Any) -> int | None:
    """A BSON number truncated to a 64-bit integer; None for a value that is not a number or does not fit."""
    kind = type(value)
    if kind is int or kind is Int64:
        return int(value)
    if kind is not float and kind is not Decimal128:
        return None
    key = number_key(value)
    if key is NAN_KEY or key in (float("inf"), float("-inf")) or abs(key) >= 2**64:
        return None
    number = int(key)
    return number if -(2**63) <= number < 2**63 else None


# Types.


_NUMBER_TYPES: Final = frozenset({1, 16, 18, 19})
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
        return _parse_one_type(value)
    if not value:
        raise CommandError(9, f"{operator} must match at least one type")
    numbers: set[int] = set()
    for item in value:
        numbers |= _parse_one_type(item)
    return frozenset(numbers)


def _parse_one_type(value: Any) -> frozenset[int]:
    if type(value) is str:
        if value == "number":
            return _NUMBER_TYPES
        if value not in ALIASES:
            raise CommandError(2, f"Unknown type name alias: {value}")
        return frozenset({ALIASES[value]})
    if type(value) not in NUMBERS:
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


# Bits.


OUT_OF_RANGE: Final = -(2**63)
"""Stands for a decimal that does not fit a 64-bit integer."""
SIGN_BIT: Final = 63
"""Every position beyond this one in a number repeats the sign."""
FIRST_CLEAR_BIT: Final = 8 * limits.INTERNAL_DOCUMENT_BYTES_MAX
"""A bit that is clear in every binary value. All positions beyond it are clear, too."""


@dataclass(frozen=True, slots=True)
class _Masks:
    """The same bits as two masks, one for numbers and one for binary data."""

    of_number: int
    of_bytes: int


def parse_bits(name: str, argument: Any, path: str) -> ValueTest:
    """The test of operator `name`. `argument` is a list of bit positions, a number or binary data.

    Raises 2 for an argument or position of the wrong type or range, 9 for a number that is not a non-negative integer.
    """
    masks = _parse_mask(name, argument, path)

    number_mask, holds = masks.of_number, _HOLDS[name]

    def test(value: Any) -> bool:
        kind = type(value)
        if kind is int or kind is Int64:
            return holds(value & number_mask, number_mask)
        bits = _bits(value)
        if bits is None:
            return False
        mask = masks.of_bytes if kind is bytes or kind is Binary else number_mask
        return holds(bits & mask, mask)

    return test


_HOLDS: Final[dict[str, Callable[[int, int], bool]]] = {
    "$bitsAllClear": lambda bits, mask: bits == 0,
    "$bitsAllSet": operator.eq,
    "$bitsAnyClear": operator.ne,
    "$bitsAnySet": lambda bits, mask: bits != 0,
}
"""For each operator whether it holds for the set bits that its mask selects, and the mask."""


def _bits(value: Any) -> int | None:
    """A value that is no integer as an unbounded two's complement integer; None if it has no bits to test."""
    kind = type(value)
    if kind is bytes or kind is Binary:
        return int.from_bytes(value, "little")
    if kind is float:
        return int(value) if value.is_integer() and -(2.0**63) <= value < 2.0**63 else None
    if kind is not Decimal128:
        return None
    decimal = value.to_decimal()
    if not decimal.is_finite() or abs(decimal) >= 2**63:
        return OUT_OF_RANGE
    return int(decimal.quantize(Decimal(1), ROUND_HALF_EVEN))


def _parse_mask(name: str, argument: Any, path: str) -> _Masks:
    if type(argument) in (bytes, Binary):
        mask = int.from_bytes(argument, "little")
        return _Masks(mask, mask)
    if type(argument) is list:
        return _mask_of([_parse_position(item) for item in argument])
    if type(argument) not in NUMBERS:
        received = f"{name}: {to_string(argument)}"
        raise CommandError(2, f"{path} takes an Array, a number, or a BinData but received: {received}")
    number = int64_of(argument)
    if number is None:
        raise CommandError(9, no_long(name, argument))
    if number < 0:
        raise CommandError(9, f"Expected a non-negative number in: {name}: {argument}")
    return _Masks(number, number)


def _mask_of(positions: list[int]) -> _Masks:
    """The masks with these bits set."""
    of_number = 0
    for position in positions:
        of_number |= 1 << min(position, SIGN_BIT)
    bits = bytearray(min(max(positions, default=0), FIRST_CLEAR_BIT) // 8 + 1)
    for position in positions:
        at = min(position, FIRST_CLEAR_BIT)
        bits[at // 8] |= 1 << at % 8
    return _Masks(of_number, int.from_bytes(bits, "little"))


def _parse_position(item: Any) -> int:
    if type(item) not in NUMBERS:
        raise CommandError(2, f"bit positions must be an integer but got: {to_string(item)}")
    position = int64_of(item)
    if position is None or not -(2**31) <= position < 2**31:
        raise CommandError(2, f"bit positions cannot be represented as a 32-bit signed integer: {item}")
    if position < 0:
        raise CommandError(2, f"bit positions must be >= 0 but got: {item}")
    return position
