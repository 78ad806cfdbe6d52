"""The total order: types in MongoDB's sequence, numbers as one type, keys that agree with `compare`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.query.collation import parse_collation
from headrace.values.bson import MISSING
from headrace.values.order import compare, equal, hash_key, sort_key

ASCENDING: list[Any] = [
    MinKey(), MISSING, None, math.nan, -math.inf, Decimal128("-0.1"), 0, Decimal128("1E-6176"), 0.5, Int64(2**53),
    Int64(2**53 + 1), 1e300, Decimal128("1E+400"), math.inf, "", "A", "a", "aa", "é", {}, {"a": 1}, {"a": 1, "b": 0},
    {"b": 0}, {"a": "x"}, [], [1], [1, 2], [2], b"", b"\1", Binary(b"\1", 5), b"\0\0", ObjectId("0" * 24), False, True,
    DatetimeMS(-1), DatetimeMS(0), Timestamp(1, 2), Timestamp(2, 1), Regex("a"), Regex("a", "i"), Regex("b"),
    Code("a"), Code("a", {}), MaxKey(),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(ASCENDING, 2)))
def test_every_earlier_value_is_less_than_every_later_one(low: Any, high: Any) -> None:
    assert (compare(low, high), compare(high, low)) == (-1, 1)
    assert sort_key(low) < sort_key(high)
    assert not equal(low, high)
    assert hash_key(low) != hash_key(high)


@pytest.mark.parametrize("value", ASCENDING)
def test_a_value_equals_itself(value: Any) -> None:
    assert compare(value, value) == 0
    assert equal(value, value)
    assert hash_key(value) == hash_key(value)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, 1.0), (1, Int64(1)), (1, Decimal128("1.00")), (0.0, -0.0), (math.nan, Decimal128("NaN")),
     (math.inf, Decimal128("Infinity")), ([1, {"a": 2}], [1.0, {"a": Int64(2)}]), (b"a", Binary(b"a", 0))],
)  # fmt: skip
def test_equal_numbers_of_different_types_are_one_value(left: Any, right: Any) -> None:
    assert equal(left, right) and compare(left, right) == 0
    assert hash_key(left) == hash_key(right)
    assert hash(hash_key(left)) == hash(hash_key(right))


@pytest.mark.parametrize(
    ("left", "right"), [(1, True), (0, False), ([1], [True]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
)
def test_values_that_python_confuses_are_distinguished(left: Any, right: Any) -> None:
    assert not equal(left, right)
    assert hash_key(left) != hash_key(right)


def test_a_collation_makes_strings_equal_at_any_depth() -> None:
    collation = parse_collation({"locale": "en", "strength": 2})
    assert equal({"a": ["ABC"]}, {"a": ["abc"]}, collation)
    assert hash_key(["ABC"], collation) == hash_key(["abc"], collation)
    assert not equal({"A": 1}, {"a": 1}, collation)


@pytest.mark.parametrize("count", [63, 64, 65, 128, 1000])
@pytest.mark.parametrize("make", [lambda item: [item], lambda item: {"a": item}])
def test_long_values_are_compared_and_hashed_like_short_ones(count: int, make: Any) -> None:
    ints, floats = list(range(count)), [float(number) for number in range(count)]
    less, longer = [*range(count - 1), -1], [*range(count + 1)]
    one = {hash_key(make(ints)): "ints"}
    assert one[hash_key(make(floats))] == "ints"
    assert hash_key(make(less)) not in one and hash_key(make(longer)) not in one
    assert equal(make(ints), make(floats)) and not equal(make(ints), make(less))
    assert sort_key(make(less)) < sort_key(make(ints)) < sort_key(make(longer))
    assert sort_key(make(ints)) != sort_key(make(less)) and sort_key(make(ints)) == sort_key(make(floats))
