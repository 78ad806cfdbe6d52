"""Tests of one value: what `$eq`, `$gt`, `$in`, a regular expression... say about a value on a path.

Rule: comparisons stay within a type (type bracketing); null also means missing; NaN equals NaN only;
minKey and maxKey compare with everything. A test never looks into an array: the path does that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from bson import Decimal128, Int64, MaxKey, MinKey, Regex

from headrace.query.collation import Collation
from headrace.query.patterns import compile_pattern
from headrace.values.bson import MISSING
from headrace.values.order import NAN_KEY, RANK_NUMBER, equal, hash_key, number_key, rank, regex_options, sort_key

Test = Callable[[Any], bool]
NATIVE_NUMBERS: Final = frozenset({int, float, Int64})
ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


def never(value: Any) -> bool:
    """The test no value passes."""
    return False


def equals(wanted: Any, collation: Collation | None = None) -> Test:
    """The test of `$eq`, for any value but a pattern that should match (see `matches_pattern`)."""
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


def _equals_number(wanted: Any) -> Test:
    if wanted is NAN_KEY:
        return lambda value: rank(value) == RANK_NUMBER and number_key(value) is NAN_KEY

    def test(value: Any) -> bool:
        kind = type(value)
        if kind in NATIVE_NUMBERS:
            return bool(value == wanted)
        return kind is Decimal128 and bool(number_key(value) == wanted)

    return test


def ordered(name: str, bound: Any, collation: Collation | None = None) -> Test:
    """The test of `$gt`, `$gte`, `$lt` or `$lte`."""
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


def _ordered_number(holds: Callable[[Any, Any], bool], bound: Any, inclusive: bool) -> Test:
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


def is_in(wanted: list[Any], collation: Collation | None = None) -> Test:
    """The test of `$in`: equal to one of the values, or matched by one of the patterns among them."""
    keys = frozenset(hash_key(item, collation) for item in wanted)
    patterns = [matches_pattern(item.pattern, regex_options(item)) for item in wanted if type(item) is Regex]
    if None in wanted:
        keys |= {hash_key(MISSING)}
    if patterns:
        return lambda value: hash_key(value, collation) in keys or any(test(value) for test in patterns)
    return lambda value: hash_key(value, collation) in keys


def matches_pattern(pattern: str, options: str = "") -> Test:
    """The test of a regular expression: strings it matches, and the same regular expression as a value."""
    search = compile_pattern(pattern, options).search

    def test(value: Any) -> bool:
        if type(value) is str:
            return search(value) is not None
        return type(value) is Regex and value.pattern == pattern and regex_options(value) == options

    return test


def exists(value: Any) -> bool:
    """The test of `$exists: true`."""
    return value is not MISSING


def has_size(size: int) -> Test:
    """The test of `$size`."""
    return lambda value: type(value) is list and len(value) == size


def leaves_remainder(divisor: int, remainder: int) -> Test:
    """The test of `$mod`; the remainder has the sign of the value, fractions are cut off."""

    def test(value: Any) -> bool:
        whole = whole_number(value)
        if whole is None:
            return False
        rest = abs(whole) % abs(divisor)
        return (-rest if whole < 0 else rest) == remainder

    return test


def whole_number(value: Any) -> int | None:
    """A BSON number cut to a 64-bit integer; None for what is no number or does not fit."""
    kind = type(value)
    if kind is int or kind is Int64:
        return int(value)
    if kind is not float and kind is not Decimal128:
        return None
    key = number_key(value)
    if key is NAN_KEY or key in (float("inf"), float("-inf")) or abs(key) >= 2**64:
        return None
    whole = int(key)
    return whole if -(2**63) <= whole < 2**63 else None
