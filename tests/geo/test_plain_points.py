"""The short way of `$geoWithin` for a GeoJSON point of two floats: the answer of the general way, in fewer calls."""

from __future__ import annotations

import sys
from math import cos, degrees, radians, sin
from random import Random
from types import FrameType
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.geo.geojson import raw_plain_points
from headrace.geo.regions import Region, parse_region
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode
from tests.geo.test_regions import AT_180, AT_POLE, HOLED, OUTER, SQUARE, line, many, point, polygon, ring, strict

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


def test_a_point_is_read_from_the_bytes_of_its_document() -> None:
    find, spot = raw_plain_points("at"), point(13.4, 52.5)
    same = find([encode({"_id": 1, "name": "x", "at": spot, "b": {"to": spot}})])
    assert same == [(13.4, 52.5)] and find([]) == []
    for other in (
        {"at": [13.4, 52.5]}, {"at": [13.4, 52.5], "b": {"at": spot}}, {"at": spot, "b": {"at": spot}},
        {"at": {"x": 1.0, "y": 2.0}, "b": {"at": spot}}, {"at": {**spot, "name": "x"}}, {"at": point(181.0, 0.0)},
        {"at": {"type": "Point", "coordinates": [1, 2.0]}}, {"at": {"coordinates": [1.0, 2.0], "type": "Point"}},
    ):  # fmt: skip
        assert find([encode(other)]) == [None], other


@pytest.mark.parametrize("key", [{"at": "2dsphere"}, {"a": 1, "at": "2dsphere"}, {"at": "2dsphere", "a": 1}])
def test_points_in_sure_cells_are_those_that_match(key: dict[str, Any]) -> None:
    """The same documents as without the index, also once some of them are no points, between two batches too."""
    random = Random(3)
    documents: list[dict[str, Any]] = [
        {"_id": number, "a": number % 2, "at": point(random.uniform(-3, 3), random.uniform(-3, 3))}
        for number in range(600)
    ]
    documents += [
        {"_id": 600 + number, "a": 1, "at": [number % 3, 0], "b": {"at": point(9.0, 9.0)}} for number in range(9)
    ]
    shapes = ({"$centerSphere": [[0.5, 0.5], 0.03]}, {"$geometry": polygon([(-2, -2), (2, -2), (2, 2), (-2, -2)])})
    with DrivenServer() as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i"}]})
        for name in ("c", "plain"):
            at.must("t", {"insert": name, "documents": documents})
        for shape in shapes:
            for spec in (
                {"at": {"$geoWithin": shape}, "a": 1},
                {"a": 1, "at": {"$geoWithin": shape}, "_id": {"$gt": 99}},
            ):
                found = [
                    at.must("t", {"find": name, "filter": spec, "batchSize": 1000, "hint": hint})["cursor"][
                        "firstBatch"
                    ]
                    for name, hint in (("c", "i"), ("plain", {"$natural": 1}))
                ]
                assert len(found[0]) > 40
                assert sorted(item["_id"] for item in found[0]) == [item["_id"] for item in found[1]]
        spec = {"a": 1, "at": {"$geoWithin": shapes[0]}}
        cursor = at.must("t", {"find": "c", "filter": spec, "batchSize": 2, "hint": "i"})["cursor"]
        line = {"type": "LineString", "coordinates": [[0.5, 0.5], [50, 50]]}
        at.must("t", {"update": "c", "updates": [{"q": {}, "u": {"$set": {"at": line}}, "multi": True}]})
        got: list[dict[str, Any]] = cursor["firstBatch"]
        while cursor["id"]:
            cursor = at.must("t", {"getMore": cursor["id"], "collection": "c"})["cursor"]
            got += cursor["nextBatch"]
        assert not any(item["at"] == line for item in got)


BIG = strict(polygon(OUTER[::-1]))
STAR = [[(8 if at % 2 else 3) * cos(radians(9 * at)), (8 if at % 2 else 3) * sin(radians(9 * at))] for at in range(40)]
OVERLAPPING = {
    "type": "Polygon",
    "coordinates": [
        [[-9, -9], [9, -9], [9, 9], [-9, 9], [-9, -9]], [[-5, -5], [2, -5], [2, 2], [-5, 2], [-5, -5]],
        [[-2, -2], [6, -2], [6, 6], [-2, 6], [-2, -2]],
    ],
}  # fmt: skip
SHAPES = [SQUARE, HOLED, AT_180, AT_POLE, polygon([*STAR, STAR[0]]), OVERLAPPING, many("MultiPolygon", SQUARE, AT_180)]
RAW: list[tuple[str, dict[str, Any]]] = [
    *(("$geoWithin", {"$geometry": shape}) for shape in SHAPES),
    *(("$geoIntersects", {"$geometry": shape}) for shape in SHAPES),
    ("$geoWithin", {"$geometry": many("MultiPolygon", SQUARE, polygon(ring((8, 8), (11, 8), (11, 11))))}),
    *(("$geoWithin", argument) for argument in REGIONS if "$centerSphere" in argument),
]


@pytest.mark.parametrize(("operator", "argument"), RAW)
def test_the_bytes_of_a_point_match_as_the_point_does(operator: str, argument: dict[str, Any]) -> None:
    """Also points at an edge or vertex, within the errors of the quick test, which leaves few points undecided."""
    random, region = Random(2), parse_region(operator, argument)
    tests = region.raw_tests("at")
    assert region.raw_tests("a.at") is None
    if tests is None:
        assert argument["$geometry"]["type"] == "MultiPolygon"  # at both sides of the earth
        return
    places = [(random.uniform(-180, 180), random.uniform(-90, 90)) for _ in range(200)]
    places += [(random.uniform(-12, 12), random.uniform(-12, 12)) for _ in range(200)]
    places += [(random.uniform(170, 180) * random.choice([-1, 1]), random.uniform(-12, 12)) for _ in range(50)]
    places += [(random.uniform(-180, 180), random.uniform(70, 90)) for _ in range(50)]
    count = len(places)
    places += [(degrees(0.17) * (1 + random.choice([-1, 1]) * 10.0**-digits), 0.0) for digits in range(1, 17)]
    places += [(0.0, degrees(0.17) + number * 1e-15) for number in range(-20, 20)] + [(5.0, 5.0), (180.0, 90.0)]
    places += [(lng, lat) for _ in range(300) for lng, lat in [near_edge(random, argument)] if abs(lat) <= 90]
    verdicts = tests([encode({"_id": 1, "at": point(lng, lat)}) for lng, lat in places])
    for verdict, (lng, lat) in zip(verdicts, places):
        assert verdict in (None, region(point(lng, lat))), (lng, lat)
    assert verdicts[:count].count(None) < 5


def near_edge(random: Random, argument: dict[str, Any]) -> tuple[float, float]:
    """Return a place at an edge or vertex of a shape, moved by about the errors of tests."""
    coordinates = argument["$geometry"]["coordinates"] if "$geometry" in argument else [[[9.7, 0.0], [9.7, 1e-9]]]
    while type(coordinates[0][0][0]) is list:
        coordinates = random.choice(coordinates)
    places = random.choice(coordinates)
    at = random.randrange(len(places) - 1)
    (ax, ay), (bx, by), part = places[at], places[at + 1], random.choice([0.0, random.random()])
    lng = ax + part * (bx - ax) + random.choice([0.0, random.gauss(0, 10.0 ** -random.randrange(6, 15))])
    return max(-180.0, min(180.0, lng)), ay + part * (by - ay) + random.gauss(0, 10.0 ** -random.randrange(6, 15))


def test_shapes_that_do_not_fit_on_a_plane_or_have_many_edges_have_no_quick_test() -> None:
    places = [[10 * cos(radians(at)), 10 * sin(radians(at))] for at in range(360)]
    for shape in (polygon([*places, places[0]]), BIG, polygon(ring((-80, -5), (80, -5), (80, 5)))):
        assert parse_region("$geoWithin", {"$geometry": shape}).raw_tests("at") is None
    for shape in (line((0, 0), (2, 0)), point(1.0, 1.0)):
        assert parse_region("$geoIntersects", {"$geometry": shape}).raw_tests("at") is None
