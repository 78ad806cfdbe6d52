"""Accumulators, fed document by document."""

from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.accumulators import parse_accumulator
from headrace.query.expressions import Env
from headrace.values.bson import MISSING

NUMBERS = [{"a": 3}, {"a": None}, {}, {"a": 1}, {"a": "x"}, {"a": 2}]


def accumulate(name: str, spec: Any, documents: list[dict[str, Any]]) -> Any:
    accumulator = parse_accumulator(name, spec)
    state = accumulator.new_state()
    for document in documents:
        accumulator.add(state, Env(document))
    return accumulator.result(state)


@pytest.mark.parametrize(
    ("name", "spec", "value"),
    [
        ("$addToSet", "$a", [3, None, 1, "x", 2]), ("$avg", "$a", 2.0), ("$count", {}, 6), ("$first", "$a", 3),
        ("$last", "$a", 2), ("$max", "$a", "x"), ("$min", "$a", 1), ("$push", "$a", [3, None, 1, "x", 2]),
        ("$stdDevPop", "$a", (2 / 3) ** 0.5), ("$stdDevSamp", "$a", 1.0), ("$sum", "$a", 6), ("$sum", 1, 6),
        ("$firstN", {"n": 3, "input": "$a"}, [3, None, None]), ("$lastN", {"n": 2, "input": "$a"}, ["x", 2]),
        ("$minN", {"n": 2, "input": "$a"}, [1, 2]), ("$maxN", {"n": 2, "input": "$a"}, ["x", 3]),
        ("$top", {"sortBy": {"a": -1}, "output": "$a"}, "x"), ("$bottom", {"sortBy": {"a": -1}, "output": "$a"}, None),
        ("$topN", {"n": 2, "sortBy": {"a": 1}, "output": ["$a"]}, [[None], [None]]),
        ("$bottomN", {"n": 2, "sortBy": {"a": 1}, "output": "$a"}, [3, "x"]),
        ("$median", {"input": "$a", "method": "approximate"}, 2.0),
        ("$percentile", {"input": "$a", "p": [0.25, 0.9], "method": "approximate"}, [1.0, 3.0]),
    ],
)  # fmt: skip
def test_an_accumulator_comes_to_its_value(name: str, spec: Any, value: Any) -> None:
    result = accumulate(name, spec, NUMBERS)
    assert type(result) is type(value)
    assert result == pytest.approx(value) if isinstance(value, float) else result == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("$sum", 0), ("$avg", None), ("$max", None), ("$first", MISSING), ("$push", []), ("$stdDevPop", None),
     ("$mergeObjects", {}), ("$concatArrays", []), ("$setUnion", [])],
)  # fmt: skip
def test_of_nothing(name: str, value: Any) -> None:
    assert accumulate(name, "$a", []) == value


def test_a_sum_has_the_widest_type_and_loses_nothing_small() -> None:
    assert type(accumulate("$sum", "$a", [{"a": 1}, {"a": Int64(1)}])) is Int64
    assert accumulate("$sum", "$a", [{"a": 1e100}, {"a": 1.0}, {"a": -1e100}]) == 1.0
    assert accumulate("$sum", "$a", [{"a": 0.5}, {"a": Decimal128("1.50")}]) == Decimal128("2.00")
    assert accumulate("$sum", "$a", [{"a": 2**31 - 1}, {"a": 1}]) == Int64(2**31)


def test_a_long_sum_of_doubles_stays_exact() -> None:
    assert accumulate("$sum", "$a", [{"a": 0.1}] * 1000) == 100.0


def test_more_may_be_added_after_a_result() -> None:
    accumulator = parse_accumulator("$push", "$a")
    state = accumulator.new_state()
    accumulator.add(state, Env({"a": 1}))
    before = accumulator.result(state)
    accumulator.add(state, Env({"a": 2}))
    assert (before, accumulator.result(state)) == ([1], [1, 2])


@pytest.mark.parametrize("name", ["$concatArrays", "$setUnion"])
def test_arrays_are_joined_without_missing_ones_and_null_is_no_array(name: str) -> None:
    assert accumulate(name, "$a", [{"a": [1]}, {}, {"a": [None]}]) == [1, None]
    with pytest.raises(CommandError) as caught:
        accumulate(name, "$a", [{"a": [1]}, {"a": None}])
    assert caught.value.code == 14


def test_merged_objects_keep_the_order_of_first_appearance() -> None:
    merged = accumulate("$mergeObjects", "$a", [{"a": {"x": 1, "y": 1}}, {"a": None}, {"a": {"z": 2, "x": 2}}])
    assert list(merged.items()) == [("x", 2), ("y", 1), ("z", 2)]


@pytest.mark.parametrize(
    ("name", "spec", "code"),
    [
        ("$nope", 1, 15952), ("$count", 1, 14), ("$count", {"a": 1}, 14),
        ("$accumulator", {}, 31264),
        ("$firstN", {"n": 0, "input": 1}, 7548606), ("$firstN", {"input": 1}, 5787906),
        ("$topN", {"n": 1, "output": 1}, 5788005),
        ("$percentile", {"input": 1, "p": [0.5], "method": "discrete"}, 2),
        ("$median", {"input": 1, "method": "continuous"}, 2), ("$median", {"input": 1, "method": 5}, 14),
        ("$percentile", {"input": 1, "p": [2], "method": "approximate"}, 7750303),
    ],
)  # fmt: skip
def test_a_bad_accumulator_is_refused(name: str, spec: Any, code: int) -> None:
    with pytest.raises(CommandError) as caught:
        parse_accumulator(name, spec)
    assert caught.value.code == code
