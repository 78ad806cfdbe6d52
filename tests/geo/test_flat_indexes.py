"""2d indexes: what they hold and refuse, `$near` on the plane and on the sphere, and shapes on the plane by them."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot
from random import Random
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.geo.plane import Grid, Square
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.geo.test_near import RADIUS, found, metres, refused
from tests.geo.test_regions import point
from tests.geo.test_sphere_indexes import find, indexed, key_count, stages

Json = dict[str, Any]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def random_pair(random: Random, spread: float = 180) -> list[float]:
    return [random.uniform(-spread, spread), random.uniform(-spread, spread)]


@pytest.mark.parametrize("options", [{}, {"bits": 2}, {"bits": 32}, {"min": -200, "max": 250.5}])
def test_near_goes_by_distance_on_the_plane(at: DrivenServer, options: Json) -> None:
    random = Random(str(options))
    documents = [{"_id": number, "at": random_pair(random)} for number in range(300)]
    indexed(at, {"at": "2d"}, documents, **options)
    for place in [random_pair(random) for _ in range(8)] + [[500, 500], documents[0]["at"]]:
        by_distance = {item["_id"]: hypot(item["at"][0] - place[0], item["at"][1] - place[1]) for item in documents}
        order = sorted(by_distance, key=by_distance.__getitem__)
        assert found(at, {"at": {"$near": place}}) == order
        assert found(at, {"at": {"$near": place}}, limit=5) == order[:5]
        least, most = by_distance[order[10]], by_distance[order[40]]
        between = {"$near": place, "$minDistance": least - 1e-9, "$maxDistance": most + 1e-9}
        assert found(at, {"at": between}) == order[10:41]
        assert found(at, {"at": {"$near": [*place, most + 1e-9]}}) == order[:41]
    assert stages(at, {"at": {"$near": [0, 0]}}) == ["GEO_NEAR_2D"]


@pytest.mark.parametrize("options", [{}, {"min": -200, "max": 300}, {"bits": 3, "min": -1000, "max": 250}])
def test_near_sphere_goes_by_distance_on_the_sphere(at: DrivenServer, options: Json) -> None:
    random = Random(3)
    documents = [{"_id": n, "at": [random.uniform(-180, 180), random.uniform(-90, 90)]} for n in range(300)]
    indexed(at, {"at": "2d"}, documents, **options)
    for place in ([0, 0], [179.9, 10], [-30, 89], [12, -90], [100, 45], [-149, -2]):
        distances = {item["_id"]: metres(point(*place), point(*item["at"])) for item in documents}
        order = sorted(distances, key=distances.__getitem__)
        assert found(at, {"at": {"$nearSphere": place}}) == order
        most = (distances[order[20]] + 1) / RADIUS
        assert found(at, {"at": {"$nearSphere": place, "$maxDistance": most}}) == order[:21]
    assert refused(at, {"find": "c", "filter": {"at": {"$near": {"$geometry": point(0, 0)}}}}).code == 291


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", [1, 8, 26])
def test_shapes_find_what_a_walk_finds(at: DrivenServer, seed: int, bits: int) -> None:
    random = Random(seed)
    documents: list[Json] = [{"_id": n, "at": random_pair(random, random.choice([1, 180]))} for n in range(200)]
    more: list[Any] = [[[1, 1], [-100, 5]], {"x": 0.5, "y": 0.5}, [180, -180], None, [], "x"]
    documents += [{"_id": 1000 + number, "at": value} for number, value in enumerate(more)]
    indexed(at, {"at": "2d"}, documents, bits=bits)
    at.must("t", {"insert": "plain", "documents": documents})
    for _ in range(10):
        (x, y), size = random_pair(random), random.choice([0.5, 20, 300])
        for shape in (
            {"$box": [[x, y], [x + size, y + size]]},
            {"$center": [[x, y], size]},
            {"$center": [[0, 0], size]},
            {"$polygon": [[x, y], [x + size, y], [x, y + size]]},
            {"$box": [[-500, -500], [500, 500]]},
        ):
            spec = {"at": {"$geoWithin": shape}}
            assert find(at, spec) == find(at, spec, "plain"), shape
            assert stages(at, spec) == ["FETCH", "IXSCAN"]
        for radius in (0.01, 0.3, 1, 2):
            spec = {"at": {"$geoWithin": {"$centerSphere": [[x, y / 2], radius]}}}
            assert find(at, spec) == find(at, spec, "plain"), spec
    assert stages(at, {"at": {"$geoWithin": {"$centerSphere": [[0, 0], 1]}}}) == ["FETCH", "IXSCAN"]
    for about in ([[150, 0], 1], [[0, 60], 1], [[0, 0], 1.6]):  # which reach 180 degrees, a pole, both
        assert stages(at, {"at": {"$geoWithin": {"$centerSphere": about}}}) == ["COLLSCAN"]
    assert stages(at, {"at": [1, 1]}) == ["COLLSCAN"]


def test_only_keys_about_the_place_are_read(at: DrivenServer) -> None:
    random = Random(7)
    indexed(at, {"at": "2d"}, [{"_id": n, "at": random_pair(random, 5)} for n in range(2000)])
    for place in ([0, 0], [90, 90], [-179, 1]):
        command = {"find": "c", "filter": {"at": {"$near": place}}, "limit": 10}
        stats = at.must("t", {"explain": command, "verbosity": "executionStats"})["executionStats"]
        assert stats["totalDocsExamined"] < 120, place


def test_more_fields_and_arrays(at: DrivenServer) -> None:
    documents = [{"_id": n, "at": [n / 10, 0], "a": n % 4} for n in range(80)]
    indexed(at, {"at": "2d", "a": -1}, [*documents, {"_id": 99, "at": [[70, 70], [2.11, 0]], "a": [1, 2]}])
    assert found(at, {"at": {"$near": [2.1, 0]}, "a": 1}, limit=3) == [21, 99, 25]
    assert found(at, {"at": {"$near": [70, 70]}}, limit=1) == [99]
    assert find(at, {"at": {"$geoWithin": {"$box": [[2, -1], [2.3, 1]]}}, "a": 1}) == [21, 99]
    assert len(found(at, {"at": {"$near": [0, 0]}})) == 81
    stage = {"$geoNear": {"near": [2.1, 0], "distanceField": "d", "includeLocs": "p", "query": {"_id": 99}}}
    (near,) = at.must("t", {"aggregate": "c", "pipeline": [stage], "cursor": {}})["cursor"]["firstBatch"]
    assert (near["d"], near["p"]) == (pytest.approx(0.01), [2.11, 0])
    moved = {"q": {"at": {"$near": [0, 0]}}, "u": {"$set": {"at": [150, 150]}}, "multi": True}
    assert at.must("t", {"update": "c", "updates": [moved]})["nModified"] == 81
    assert at.must("t", {"validate": "c"})["valid"]


def test_geo_near_takes_the_2d_index_before_a_2dsphere_index(at: DrivenServer) -> None:
    indexed(at, {"to": "2dsphere"}, [{"_id": 1, "at": [1, 1], "to": [50, 50]}])
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"at": "2d"}, "name": "flat"}]})
    stage = {"$geoNear": {"near": [1, 2], "distanceField": "d"}}
    (near,) = at.must("t", {"aggregate": "c", "pipeline": [stage], "cursor": {}})["cursor"]["firstBatch"]
    assert near["d"] == 1


def test_documents_without_a_pair_have_no_key(at: DrivenServer) -> None:
    nothing = [{"_id": n, **more} for n, more in enumerate([{}, {"at": None}, {"at": []}, {"at": {}}, {"at": 5}])]
    indexed(at, {"at": "2d"}, [*nothing, {"_id": 6, "at": [1, 1]}, {"_id": 7, "at": [[2, 2], [3, 3]]}])
    assert key_count(at) == 3


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ([181, 0], 13027, "point not in interval of [ -180, 180 ]"),
        ([0, -180.01], 13027, "point not in interval of [ -180, 180 ]"),
        ([1], 13068, "geo field only has 1 element"),
        ([1, "x"], 13026, "geo values must be 'legacy coordinate pairs' for 2d indexes"),
        (point(0, 0), 16804, "location object expected, location array not in correct format"),
        ([[1, 1], 5], 16804, "location object expected, location array not in correct format"),
    ],
)
def test_a_value_that_is_no_pair_is_refused(at: DrivenServer, value: Any, code: int, message: str) -> None:
    indexed(at, {"at": "2d"}, [])
    reply = at.run("t", {"insert": "c", "documents": [{"_id": 1, "at": value}]})
    (error,) = reply["writeErrors"]
    assert (error["code"], message in error["errmsg"]) == (code, True), error
    at.must("t", {"insert": "d", "documents": [{"_id": 1, "at": value}]})
    assert refused(at, {"createIndexes": "d", "indexes": [{"key": {"at": "2d"}, "name": "i"}]}).code == code


def test_the_specification(at: DrivenServer) -> None:
    indexed(at, {"at": "2d", "a": 1}, [], bits=20, min=-10, max=10.5)
    indexes = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert indexes[1] == {"v": 2, "key": {"at": "2d", "a": 1}, "name": "i", "bits": 20, "min": -10, "max": 10.5}


@pytest.mark.parametrize(
    ("key", "options", "code"),
    [
        ({"a": 1, "at": "2d"}, {}, 16801),
        ({"at": "2d", "to": "2d"}, {}, 16800),
        ({"at": "2d", "to": "2dsphere"}, {}, 67),
        ({"at": "2d"}, {"bits": 33}, 72),
        ({"at": "2d"}, {"bits": 0}, 72),
        ({"at": "2d"}, {"min": 5, "max": 5}, 72),
        ({"at": "2d"}, {"bits": "x"}, 14),
    ],
)
def test_a_specification_is_refused(at: DrivenServer, key: Json, options: Json, code: int) -> None:
    with pytest.raises(CommandError) as error:
        indexed(at, key, [], **options)
    assert error.value.code == code


@pytest.mark.parametrize("bits", [1, 3, 32])
def test_squares_hold_the_numbers_of_their_pairs(bits: int) -> None:
    random, grid = Random(bits), Grid(bits, -10, 10)
    for _ in range(200):
        pair = (random.uniform(-10, 10), random.uniform(-10, 10))
        number = grid.number(pair)
        for level in range(bits + 1):
            first, last = grid.numbers(grid.at(pair, level))
            assert first <= number <= last
            assert grid.bounds(grid.at(pair, level)).holds_pair(pair)
    parts = [grid.numbers(part) for part in Square(0, 0, 0).children]
    assert [first for first, _ in parts[1:]] == [last + 1 for _, last in parts[:-1]]
