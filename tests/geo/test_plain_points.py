"""The short way of `$geoWithin` for a GeoJSON point of two floats: the answer of the general way, in fewer calls."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.geo.regions import Region, parse_region
from tests.geo.test_regions import AT_180, AT_POLE, HOLED, OUTER, SQUARE, line, many, point, polygon, strict

REGIONS: list[dict[str, Any]] = [
    *({"$geometry": shape} for shape in (SQUARE, HOLED, AT_180, AT_POLE, strict(polygon(OUTER[::-1])))),
    {"$geometry": many("MultiPolygon", SQUARE, AT_180)},
    {"$centerSphere": [[0, 0], 0.17]},
    {"$centerSphere": [[180, 0], 3.0]},
    {"$centerSphere": [[0, 90], 4]},
    {"$centerSphere": [[5, 5], 0]},
]


def in_general(point: dict[str, Any]) -> dict[str, Any]:
    """Return the same point with a height, which the short way does not take."""
    return {**point, "coordinates": [*point["coordinates"], 0.0]}


@pytest.mark.parametrize("argument", REGIONS)
def test_a_point_with_and_without_a_height_matches_alike(argument: dict[str, Any]) -> None:
    random, region = Random(1), parse_region("$geoWithin", argument)
    edges = [-180.0, -179.0, -10.0, -1.0, -0.0, 0.0, 1.0, 5.0, 10.0, 179.0, 180.0]
    places = [(lng, lat) for lng in edges for lat in (-90.0, -10.0, -1.0, 0.0, 1.0, 5.0, 10.0, 80.0, 90.0)]
    places += [(random.uniform(-180, 180), random.uniform(-90, 90)) for _ in range(100)]
    places += [(random.uniform(-12, 12), random.uniform(-12, 12)) for _ in range(100)]
    for lng, lat in places:
        assert region(point(lng, lat)) == region(in_general(point(lng, lat))), (lng, lat)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 180.5, -181.0, None, "1", True, [1.0]])
def test_a_bad_coordinate_does_not_match(bad: Any) -> None:
    region = parse_region("$geoWithin", {"$centerSphere": [[0, 0], 4]})
    assert not region({"type": "Point", "coordinates": [bad, 0.0]})
    assert not region({"type": "Point", "coordinates": [bad]})
    assert not region({"type": "point", "coordinates": [1.0, 1.0]})


@pytest.mark.parametrize("one", [1, Int64(1), Decimal128("1"), 1.0])
def test_numbers_of_every_type_match(one: Any) -> None:
    region = parse_region("$geoWithin", {"$geometry": SQUARE})
    assert region({"type": "Point", "coordinates": [one, 1.0]}) and region({"coordinates": [1.0, one], "type": "Point"})
    assert region({"type": "Point", "coordinates": [one, 1.0], "name": "gate"})


def test_other_operators_and_shapes_take_the_general_way() -> None:
    assert parse_region("$geoIntersects", {"$geometry": line((0, 0), (2, 0))})(point(1.0, 0.0))
    assert parse_region("$geoWithin", {"$box": [[0, 0], [2, 2]]})(point(1.0, 1.0))
    assert not parse_region("$geoWithin", {"$box": [[0, 0], [2, 2]]})(point(3.0, 1.0))


def calls_of(region: Region, value: dict[str, Any]) -> int:
    """Return the number of Python functions that one test of a value calls."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        region(value)
    finally:
        sys.setprofile(before)
    return count


def test_a_point_costs_few_calls() -> None:
    region = parse_region("$geoWithin", {"$geometry": SQUARE})
    inside, outside = point(3.0, 3.0), point(120.0, 3.0)
    assert calls_of(region, outside) <= 9
    assert calls_of(region, inside) < calls_of(region, in_general(inside)) - 10
