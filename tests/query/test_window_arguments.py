"""`$setWindowFields`, `$densify` and `$fill`: the arguments they take, and the results of window functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.testing.driven import DrivenServer

START = datetime(2020, 1, 1)
DOCUMENTS = [
    {"_id": 1, "x": 0, "d": START, "v": 1, "s": "a", "list": [{"q": 1}, 5]},
    {"_id": 2, "x": 1, "d": START + timedelta(seconds=1), "v": 2.5},
    {"_id": 3, "x": 1, "d": START + timedelta(seconds=3), "v": "text"},
    {"_id": 4, "x": 4, "d": START + timedelta(seconds=4), "v": Decimal128("4")},
]


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": DOCUMENTS})
        yield server


def answer(server: DrivenServer, *pipeline: Any) -> dict[str, Any]:
    reply = server.run("t", {"aggregate": "c", "pipeline": list(pipeline), "cursor": {}})
    assert isinstance(reply, dict)
    return reply


def window(function: Any, sort: Any = None, **more: Any) -> dict[str, Any]:
    sorted_by = {"_id": 1} if sort is None else sort
    return {"$setWindowFields": {"sortBy": sorted_by, "output": {"r": function}, **more}}


def unsorted(function: Any) -> dict[str, Any]:
    return {"$setWindowFields": {"output": {"r": function}}}


def total(bounds: Any, sort: Any = None) -> dict[str, Any]:
    return window({"$sum": 1, "window": bounds}, sort)


TWO = {"x": 1, "_id": 1}
WINDOW = {"documents": [-1, 0]}
CODES: list[tuple[Any, int]] = [
    ({"$setWindowFields": 1}, 9),
    ({"$setWindowFields": {"sortBy": "x"}}, 14),
    ({"$setWindowFields": {"sortBy": {"_id": 1}}}, 40414),
    ({"$setWindowFields": {"what": 1}}, 40415),
    ({"$setWindowFields": {"output": 1}}, 14),
    ({"$setWindowFields": {"sortBy": None, "output": {}}}, 0),
    ({"$setWindowFields": {"partitionBy": [], "output": {}}}, 14),
    ({"$setWindowFields": {"output": {"a": {"$sum": 1}, "a.b": {"$sum": 1}}}}, 6307900),
    (window({"$sum": 1, "bogus": 1}), 9),
    (window({"sum": 1}), 9),
    (window({"$mergeObjects": "$x"}), 9),
    *[(total(bounds), 9) for bounds in (None, 5, [-1, 0], {"documents": [0, 1], "x": 1}, {"documents": [0]})],
    *[(total({"documents": [bound, 0]}), 9) for bound in (None, True, "x", -1.5, {"$const": "current"}, "$x")],
    *[(total({"range": [bound, 0]}), 9) for bound in (None, True, "x", "$x")],
    (total({"documents": [{"$subtract": [1, 2]}, 0]}), 0),
    (total({"range": [{"$subtract": [1, 2]}, 0]}), 0),
    (total({"documents": [-1, 0], "range": [-1, 0]}), 9),
    (total({"documents": [-1, 0], "unit": "day"}), 9),
    *[(total({"range": [-1, 0], "unit": unit}, {"d": 1}), 9) for unit in ("x", 1, True, None)],
    *[(total({kind: ends}), 5339900) for kind in ("documents", "range") for ends in ([1, -1], ["current", -1])],
    (total({"documents": ["unbounded", "current"]}, {}), 0),
    (unsorted({"$sum": 1, "window": {"documents": [0, 0]}}), 5339901),
    (total({"range": ["unbounded", "unbounded"]}, {}), 5339902),
    (total({"range": [-1, 0]}, TWO), 5339902),
    (total({"range": [-1, 0]}, {"x": -1}), 8947401),
    (total({"range": [-1, 0]}, {"s": 1}), 5429414),
    (total({"range": [-1, 0], "unit": "day"}, {"x": 1}), 5429513),
    *[(window({name: {}, "window": WINDOW}), 5371601) for name in ("$rank", "$denseRank", "$documentNumber")],
    *[(window({name: {}, "$sum": 1}), 5371601) for name in ("$rank", "$denseRank", "$documentNumber")],
    *[(window({name: "$x"}), 5371603) for name in ("$rank", "$denseRank", "$documentNumber")],
    *[(window({name: {}}, sort), 5371602) for name in ("$rank", "$documentNumber") for sort in ({}, TWO)],
    (window({"$shift": {"output": "$x", "by": 1.0}}), 0),
    *[(window({"$shift": {"output": "$x", "by": by}}), 9) for by in ("1", 1.1, {"$sum": 1}, None)],
    (window({"$shift": {"output": "$x", "by": 1, "default": "$x"}}), 9),
    (window({"$shift": {"output": "$x", "by": 1, "default": {"$add": [1, 1]}}}), 0),
    (unsorted({"$shift": {"output": "$x", "by": 1}}), 9),
    (window({"$shift": {"output": "$x", "by": 1}, "window": WINDOW}), 9),
    *[(window({"$expMovingAvg": {"input": "$x", **how}}), 9) for how in ({}, {"N": 0}, {"N": 0.5}, {"alpha": 1})],
    (window({"$expMovingAvg": {"input": "$x", "alpha": Decimal128("0.1")}}), 0),
    (unsorted({"$expMovingAvg": {"input": "$x", "N": 2}}), 9),
    (unsorted({"$locf": "$x"}), 0),
    (window({"$locf": "$x", "window": WINDOW}), 9),
    (window({"$linearFill": "$x"}, {}), 605001),
    (window({"$linearFill": "$x"}, TWO), 605001),
    (window({"$linearFill": "$v"}), 14),
    (window({"$linearFill": "$x"}, {"s": 1}), 14),
    (window({"$derivative": {"input": "$v"}}), 9),
    (window({"$derivative": {"input": "$v"}, "window": WINDOW}, TWO), 9),
    (window({"$derivative": {"input": "$v"}, "window": WINDOW}, {"d": 1}), 5624901),
    (window({"$derivative": {"input": "$v", "unit": "day"}, "window": WINDOW}), 5624900),
    (window({"$derivative": {"input": "$v", "unit": "month"}, "window": WINDOW}), 5490710),
    (window({"$integral": {"input": "$v"}}), 0),
    (unsorted({"$integral": {"input": "$v"}}), 9),
    (window({"$integral": {"input": "$v"}}, {"d": 1}), 5423902),
    (window({"$integral": {"input": "$v", "unit": "day"}}), 5423901),
    (window({"$minN": 1}), 5787900),
    (window({"$firstN": 1}), 5787801),
    (window({"$firstN": {"n": 2}}), 5787907),
    (window({"$firstN": {"input": "$x"}}), 5787906),
    (window({"$firstN": {"input": "$x", "n": 2.1}}), 5787903),
    (window({"$firstN": {"input": "$x", "n": "$x"}}), 5787902),
    (window({"$firstN": {"input": "$x", "n": 0}}), 5787908),
    (window({"$minMaxScaler": {"input": "$x", "min": 0}}), 9),
    (window({"$minMaxScaler": {"input": "$x", "min": 1, "max": 1}}), 9),
    (window({"$minMaxScaler": {"input": "$x", "other": 1}}), 9),
    (window({"$minMaxScaler": {"min": 0, "max": 1}}), 9),
    (window({"$minMaxScaler": "$x", "window": {"documents": [1, 2]}}), 9),
    (window({"$minMaxScaler": "$x", "window": {"range": [-2, -1]}}), 9),
]


@pytest.mark.parametrize(("stage", "code"), CODES)
def test_windows_take_and_refuse_what_mongodb_does(server: DrivenServer, stage: Any, code: int) -> None:
    assert answer(server, stage).get("code", 0) == code


RESULTS: list[tuple[Any, list[Any]]] = [
    # A range from 0 takes all documents of the same value, and one from "current" begins with the document.
    (window({"$push": "$_id", "window": {"range": [0, 0]}}, {"x": 1}), [[1], [2, 3], [2, 3], [4]]),
    (window({"$push": "$_id", "window": {"range": ["current", 0]}}, {"x": 1}), [[1], [2, 3], [3], [4]]),
    (window({"$push": "$_id", "window": {"range": [-1, "current"]}}, {"x": 1}), [[1], [1, 2], [1, 2, 3], [4]]),
    (window({"$shift": {"output": "$x", "by": -1, "default": "none"}}), ["none", 0, 1, 1]),
    (
        window({"$expMovingAvg": {"input": "$v", "N": 2}}),
        [1.0, 2.0, 2.0, Decimal128("3.333333333333333333333333333333334")],
    ),
    (window({"$derivative": {"input": "$x"}, "window": WINDOW}), [None, 1.0, 0.0, 3.0]),
    (window({"$derivative": {"input": "$v"}, "window": WINDOW}), [None, 1.5, None, None]),
    (
        window({"$derivative": {"input": "$x", "unit": "minute"}, "window": WINDOW}, {"d": 1}),
        [None, 60.0, 0.0, 180.0],
    ),
    (window({"$integral": {"input": "$x"}, "window": WINDOW}), [0, 0.5, 1.0, 2.5]),
    (window({"$integral": {"input": "$x"}, "window": {"documents": [-1, -1]}}), [None, 0, 0, 0]),
    (window({"$minMaxScaler": "$x"}), [0.0, 0.25, 0.25, 1.0]),
    (window({"$minMaxScaler": {"input": "$x", "min": 10, "max": 20}, "window": WINDOW}), [10, 20.0, 10, 20.0]),
]


@pytest.mark.parametrize(("stage", "expected"), RESULTS)
def test_window_functions_compute(server: DrivenServer, stage: Any, expected: list[Any]) -> None:
    found = [document["r"] for document in answer(server, stage, {"$sort": {"_id": 1}})["cursor"]["firstBatch"]]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_a_dotted_output_goes_into_arrays_as_in_add_fields(server: DrivenServer) -> None:
    stage = {"$setWindowFields": {"output": {"list.r": {"$sum": 1}, "list.s": {"$sum": "$x"}}}}
    first = answer(server, stage, {"$limit": 1})["cursor"]["firstBatch"][0]
    assert first["list"] == [{"q": 1, "r": 4, "s": 6}, {"r": 4, "s": 6}]


def dense(field: Any = "x", fields: Any = None, **extent: Any) -> dict[str, Any]:
    partition = {} if fields is None else {"partitionByFields": fields}
    return {"$densify": {"field": field, **partition, "range": {"step": 1, "bounds": "full", **extent}}}


LATER = START + timedelta(days=2)
OTHERS: list[tuple[Any, int]] = [
    (dense(1), 14),
    (dense("$x"), 16410),
    (dense(fields="x"), 14),
    (dense(fields=["$x"]), 16410),
    (dense(fields=["x"]), 8993000),
    (dense(fields=["x.y"]), 8993000),
    (dense("x.y", ["x"]), 9554500),
    (dense(step="1"), 14),
    (dense(step=-1), 5733401),
    (dense(unit=1), 14),
    (dense(unit="x"), 9),
    (dense(bounds="partition"), 5733408),
    (dense(bounds="partition", fields=[]), 5733408),
    (dense(bounds="other"), 5946802),
    (dense(bounds=[0]), 5733403),
    (dense(bounds=[2, 1]), 5733402),
    (dense(bounds=[1, START]), 5733406),
    (dense(bounds=[1, 2], unit="day"), 5733409),
    (dense(bounds=[START, 1], unit="day"), 5733402),
    (dense(bounds=[LATER, START], unit="day"), 5733402),
    (dense("d", bounds=[START, LATER], unit="day", step=1.5), 6586400),
    (dense("d", bounds=[START, LATER], unit="day"), 0),
    ({"$fill": 1}, 9),
    ({"$fill": {}}, 40414),
    ({"$fill": {"output": {}}}, 6050203),
    ({"$fill": {"output": {"x": "y"}}}, 6050200),
    ({"$fill": {"output": {"x": {"method": "y"}}}}, 6050202),
    ({"$fill": {"output": {"x": {"method": "locf", "more": 1}}}}, 40415),
    ({"$fill": {"output": {"x": {"value": 1}}, "partitionBy": {"a": "$a"}, "partitionByFields": ["a"]}}, 6050204),
    ({"$fill": {"output": {"x": {"method": "linear"}}}}, 605001),
    ({"$fill": {"output": {"x": {"method": "locf"}}}}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "code"), OTHERS)
def test_densify_and_fill_take_and_refuse_what_mongodb_does(server: DrivenServer, stage: Any, code: int) -> None:
    assert answer(server, stage).get("code", 0) == code


def test_ranks_are_longs(server: DrivenServer) -> None:
    found = answer(server, window({"$rank": {}}, {"x": 1}), {"$sort": {"_id": 1}})["cursor"]["firstBatch"]
    assert [document["r"] for document in found] == [1, 2, 2, 4]
    assert {type(document["r"]) for document in found} == {Int64}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, Decimal128("NaN"), Decimal128("-Infinity")], ids=str)
@pytest.mark.parametrize("name", ["$stdDevPop", "$stdDevSamp"])
def test_a_deviation_with_a_value_that_is_not_finite_is_null_until_the_value_leaves(
    server: DrivenServer, name: str, value: Any
) -> None:
    numbers = [{"$documents": [{"_id": place, "v": number} for place, number in enumerate([10, 20, value, 30, 40])]}]
    spread = 5.0 if name == "$stdDevPop" else 50**0.5

    def deviations(bounds: Any) -> list[Any]:
        stages = [*numbers, window({name: "$v", "window": bounds})]
        reply = server.must("t", {"aggregate": 1, "pipeline": stages, "cursor": {}})
        return [document["r"] for document in reply["cursor"]["firstBatch"]]

    assert deviations({"documents": [-1, 0]})[1:] == [pytest.approx(spread), None, None, pytest.approx(spread)]
    assert deviations({"range": [-1, 1]}) == [pytest.approx(spread), None, None, None, pytest.approx(spread)]
    assert all(math.isnan(deviation) for deviation in deviations({"documents": ["unbounded", 0]})[2:])
