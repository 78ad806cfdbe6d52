"""Tests of one value on a path: `$eq`, `$gt`, `$in`, regular expressions, ...

Rule: comparisons are bracketed by type. Null also matches a missing field. NaN equals only NaN. minKey and maxKey
compare with values of all types. A test never enters an array: the walk of the path does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from bson import Decimal128, Int64, MaxKey, MinKey, Regex

from headrace.query.collation import Collation
from headrace.query.patterns import compile_pattern
from headrace.values.bson import MISSING
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
