"""NaN, infinities and numbers no machine type holds, wherever a number is taken: MongoDB's error or its answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, ParseContext, parse_expression
from headrace.query.match import parse_filter
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline

CONTEXT = PipelineContext(database="t", collection="c", read_collection=lambda database, collection, depth: [])
NOT_INTEGRAL: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, Decimal128("NaN"), Decimal128("Infinity"), Decimal128("-Infinity"),
    Decimal128("1E+6000"), 1e300, -1e300,
)  # fmt: skip
DOCUMENTS = [
    {"_id": 1, "a": 1, "d": DatetimeMS(0)},
    {"_id": 2, "a": 2, "d": DatetimeMS(3 * 86_400_000)},
]


def answers(stage: dict[str, Any], documents: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    stages = parse_pipeline([stage], context=CONTEXT)
    return list(run_pipeline(stages, iter(DOCUMENTS if documents is None else documents)))


def window(function: dict[str, Any], order: str = "a") -> dict[str, Any]:
    return {"$setWindowFields": {"sortBy": {order: 1}, "output": {"x": function}}}


@pytest.mark.parametrize("value", NOT_INTEGRAL, ids=str)
@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (lambda value: {"$skip": value}, 5107200),
        (lambda value: {"$bucketAuto": {"groupBy": "$a", "buckets": value}}, 40242),
        (lambda value: window({"$sum": "$a", "window": {"documents": ["unbounded", value]}}), 9),
        (lambda value: window({"$sum": "$a", "window": {"range": [value, value], "unit": "day"}}, "d"), 9),
        (lambda value: window({"$expMovingAvg": {"input": "$a", "N": value}}), 9),
        (lambda value: window({"$expMovingAvg": {"input": "$a", "alpha": value}}), 9),
    ],
    ids=["skip", "buckets", "documents", "range", "N", "alpha"],
)
def test_a_count_is_an_integer(stage: Any, code: int, value: Any) -> None:
    with pytest.raises(CommandError) as caught:
        answers(stage(value))
    assert caught.value.code == code


@pytest.mark.parametrize("value", NOT_INTEGRAL, ids=str)
def test_the_depth_of_a_graph_lookup_is_an_integer(value: Any) -> None:
    lookup = {"from": "c", "startWith": 1, "connectFromField": "a", "connectToField": "b", "as": "x"}
    with pytest.raises(CommandError) as caught:
        answers({"$graphLookup": {**lookup, "maxDepth": value}})
    assert caught.value.code in (40101, 40102)


@pytest.mark.parametrize("value", ["x", None, True, 0, -1, 1.5], ids=str)
def test_a_moving_average_is_over_a_positive_number_of_values(value: Any) -> None:
    with pytest.raises(CommandError) as caught:
        answers(window({"$expMovingAvg": {"input": "$a", "N": value}}))
    assert caught.value.code == 9


@pytest.mark.parametrize("value", [math.nan, Decimal128("NaN"), -math.inf], ids=str)
def test_a_sample_of_no_number_is_refused(value: Any) -> None:
    with pytest.raises(CommandError) as caught:
        answers({"$sample": {"size": value}})
    assert caught.value.code == 28747


@pytest.mark.parametrize("value", [math.inf, Decimal128("Infinity"), 1e300], ids=str)
def test_a_sample_of_more_than_there_are_is_all(value: Any) -> None:
    assert len(answers({"$sample": {"size": value}})) == 2


@pytest.mark.parametrize("value", [math.nan, Decimal128("NaN")], ids=str)
def test_a_range_is_not_filled_by_steps_of_nan(value: Any) -> None:
    with pytest.raises(CommandError) as caught:
        answers({"$densify": {"field": "a", "range": {"step": value, "bounds": "full"}}})
    assert caught.value.code == 5733401


def test_days_are_filled_by_steps_of_a_decimal() -> None:
    stage = {"$densify": {"field": "d", "range": {"step": Decimal128("1"), "unit": "day", "bounds": "full"}}}
    assert [document["d"] for document in answers(stage)] == [DatetimeMS(day * 86_400_000) for day in range(4)]


@pytest.mark.parametrize("unit", ["week", "year"])
def test_a_range_of_dates_beyond_all_dates_is_an_error(unit: str) -> None:
    with pytest.raises(CommandError) as caught:
        answers(window({"$sum": "$a", "window": {"range": [0, Int64(2**63 - 1)], "unit": unit}}, "d"))
    assert caught.value.code == 15


@pytest.mark.parametrize("series", ["R5", "POWERSOF2"])
def test_infinity_is_a_boundary_of_every_series(series: str) -> None:
    documents = [{"_id": 1, "a": 1}, {"_id": 2, "a": math.inf}]
    buckets = answers({"$bucketAuto": {"groupBy": "$a", "buckets": 2, "granularity": series}}, documents)
    assert buckets[-1]["_id"]["max"] == math.inf


def boundaries(series: str, *values: Any, buckets: int = 3) -> list[tuple[Any, Any]]:
    documents = [{"_id": place, "a": value} for place, value in enumerate(values)]
    stage = {"$bucketAuto": {"groupBy": "$a", "buckets": buckets, "granularity": series}}
    return [(bucket["_id"]["min"], bucket["_id"]["max"]) for bucket in answers(stage, documents)]


def test_boundaries_are_products_of_integers_of_the_series() -> None:
    assert boundaries("E6", 1, 10, 100, 1000) == [(0.68, 1.5), (1.5, 15.0), (15.0, 1500.0)]
    assert boundaries("R5", 1, 10, 100, 1000) == [(0.63, 1.6), (1.6, 16.0), (16.0, 1600.0)]
    assert boundaries("E6", 0.8, 9, buckets=1) == [(0.68, 10.0)]
    assert boundaries("R5", 5e-324, buckets=1)[0][0] == 0


@pytest.mark.parametrize(
    ("series", "least", "most"),
    [("R40", 9.5, 10.6), ("R80", 9.75, 10.3), ("E48", 9.53, 10.5), ("E96", 9.76, 10.2), ("E192", 9.88, 10.1)],
)
def test_the_fine_series_are_known(series: str, least: float, most: float) -> None:
    assert boundaries(series, 10, buckets=1) == [(pytest.approx(least), pytest.approx(most))]


def test_a_bucket_of_zeros_ends_where_the_next_one_begins() -> None:
    assert boundaries("R5", 0, 0, 5) == [(0, 0), (0, 4.0), (4.0, 6.300000000000001)]
    assert boundaries("POWERSOF2", 0, 5, buckets=2) == [(0, 4.0), (4.0, 8.0)]
    assert boundaries("R5", 0, buckets=1) == [(0, 0)]


def test_a_decimal_has_decimal_boundaries() -> None:
    assert boundaries("R5", Decimal128("1"), Decimal128("30"), buckets=1) == [
        (Decimal128("0.630000000000000"), Decimal128("40.0000000000000"))
    ]
    assert boundaries("POWERSOF2", Decimal128("5"), buckets=1) == [(Decimal128("4"), Decimal128("8"))]


def value_of(expression: Any) -> Any:
    return parse_expression(expression, ParseContext())(Env({}))


def test_the_remainder_of_decimals_is_exact_however_large_the_quotient() -> None:
    assert value_of({"$mod": [Decimal128("1E+40"), Decimal128("7")]}) == Decimal128("4")
    assert value_of({"$mod": [Decimal128("1E+6000"), Decimal128("0.3")]}) == Decimal128("0.1")
    assert str(value_of({"$mod": [Decimal128("Infinity"), 5]})) == "NaN"
    matches = parse_filter({"$jsonSchema": {"properties": {"a": {"multipleOf": 5}}}})
    assert matches({"a": Decimal128("1E+6000")})
    assert not matches({"a": Decimal128("1E-6000")})


@pytest.mark.parametrize("text", ["１", "٣.5"])
def test_only_the_digits_of_ascii_are_digits(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        value_of({"$toDecimal": text})
    assert caught.value.code == 241


@pytest.mark.parametrize("seconds", [Int64(2**63 - 1), Int64(-(2**63))], ids=str)
def test_a_made_date_may_not_be_out_of_range(seconds: Int64) -> None:
    with pytest.raises(CommandError) as caught:
        value_of({"$dateFromParts": {"year": 2000, "second": seconds}})
    assert caught.value.code == 159


@pytest.mark.parametrize(("first", "last"), [(-(2**63), 2**63 - 1), (2**63 - 1, -2), (-(2**63), 0)])
def test_a_difference_in_milliseconds_may_not_be_out_of_range(first: int, last: int) -> None:
    dates = {"startDate": DatetimeMS(first), "endDate": DatetimeMS(last)}
    with pytest.raises(CommandError, match="dateDiff overflowed") as caught:
        value_of({"$dateDiff": {**dates, "unit": "millisecond"}})
    assert caught.value.code == 5166308
    value_of({"$dateDiff": {**dates, "unit": "second"}})


def test_the_seconds_of_an_object_id_have_a_sign_and_those_of_a_timestamp_have_none() -> None:
    assert value_of({"$year": ObjectId("80000000" + "0" * 16)}) == 1901
    assert value_of({"$toDate": ObjectId("f" * 24)}) == DatetimeMS(-1000)
    assert value_of({"$year": Timestamp(2**32 - 1, 1)}) == 2106
