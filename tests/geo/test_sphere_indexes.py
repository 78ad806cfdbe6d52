"""2dsphere indexes: what they hold and refuse, and that queries find by them what a walk over all documents finds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.geo.test_regions import OUTER, SQUARE, line, many, point, polygon, ring, strict

Json = dict[str, Any]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def indexed(at: DrivenServer, key: Json, documents: list[Json], **options: Any) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i", **options}]})
    if documents:
        at.must("t", {"insert": "c", "documents": documents})


def find(at: DrivenServer, spec: Json, name: str = "c", **more: Any) -> list[Any]:
    reply = at.must("t", {"find": name, "filter": spec, "batchSize": 10_000, **more})
    return sorted(document["_id"] for document in reply["cursor"]["firstBatch"])


def stages(at: DrivenServer, spec: Json, **more: Any) -> list[str]:
    plan = at.must("t", {"explain": {"find": "c", "filter": spec, **more}, "verbosity": "queryPlanner"})
    stage, names = plan["queryPlanner"]["winningPlan"], []
    while stage is not None:
        names.append(stage["stage"])
        stage = stage.get("inputStage")
    return names


def key_count(at: DrivenServer) -> int:
    reply = at.must("t", {"validate": "c"})
    assert reply["valid"], reply
    count: int = reply["keysPerIndex"]["i"]
    return count


def _random_value(random: Random) -> Json:
    lng, lat = random.uniform(-175, 175), random.choice([random.uniform(-89, 85), random.uniform(84, 89)])
    size = random.choice([1e-6, 0.01, 0.5, 4.0])
    kind = random.randrange(5)
    if kind < 2:
        return point(lng, lat)
    if kind == 2:
        return line((lng, lat), (lng + size, min(90.0, lat + size)))
    if kind == 3:
        return many("MultiPoint", point(lng, lat), point(-lng, -lat))
    return polygon(ring((lng, lat), (lng + size, lat), (lng + size, min(89.9, lat + size))))


def _random_conditions(random: Random) -> list[Json]:
    lng, lat, size = random.uniform(-180, 150), random.uniform(-90, 60), random.choice([0.001, 1, 10, 30])
    area = polygon(ring((lng, lat), (lng + size, lat), (lng + size, lat + size), (lng, lat + size)))
    crossing = polygon(ring((170, lat), (-170, lat), (-170, lat + size), (170, lat + size)))
    within = [area, crossing, strict(polygon(OUTER[::-1]))]
    made: list[Json] = [{"$geoWithin": {"$geometry": shape}} for shape in within]
    made += [{"$geoIntersects": {"$geometry": shape}} for shape in [area, crossing, line((lng, lat), (lng + 9, 80))]]
    made += [
        {"$geoWithin": {"$centerSphere": [[lng, lat], size / 40]}},
        {"$geoWithin": {"$centerSphere": [[0, 90], 0.1]}},
    ]
    return made


@pytest.mark.parametrize("seed", range(3))
def test_an_index_finds_what_a_walk_finds(at: DrivenServer, seed: int) -> None:
    random = Random(seed)
    documents = [{"_id": number, "at": _random_value(random)} for number in range(120)]
    indexed(at, {"at": "2dsphere"}, documents)
    at.must("t", {"insert": "plain", "documents": documents})
    for _ in range(4):
        for condition in _random_conditions(random):
            assert find(at, {"at": condition}) == find(at, {"at": condition}, "plain"), condition
            assert stages(at, {"at": condition}) == ["FETCH", "IXSCAN"]
    found = find(at, {"at": {"$geoIntersects": {"$geometry": documents[0]["at"]}}})
    assert 0 in found
    at.must("t", {"delete": "c", "deletes": [{"q": {"_id": {"$gte": 60}}, "limit": 0}]})
    moved = {"q": {"_id": {"$lt": 30}}, "u": {"$set": {"at": point(1, 1)}}, "multi": True}
    at.must("t", {"update": "c", "updates": [moved]})
    assert find(at, {"at": {"$geoWithin": {"$geometry": SQUARE}}})[:30] == list(range(30))
    assert at.must("t", {"validate": "c"})["valid"]


def test_an_index_is_built_over_what_is_there(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": n, "at": point(n, n)} for n in range(50)] + [{"_id": 99}]})
    indexed(at, {"at": "2dsphere"}, [])
    assert key_count(at) == 50
    assert find(at, {"at": {"$geoWithin": {"$centerSphere": [[0, 0], 0.1]}}}) == [0, 1, 2, 3, 4]
    assert find(at, {"at": {"$geoIntersects": {"$geometry": point(7, 7)}}}) == [7]


def test_documents_without_a_geometry_have_no_key(at: DrivenServer) -> None:
    nothing = [{"_id": 1}, {"_id": 2, "at": None}, {"_id": 3, "at": []}, {"_id": 4, "a": 1}]
    placed = [{"_id": 5, "at": [1, 2]}, {"_id": 6, "at": point(1, 2), "a": [1, 2]}]
    indexed(at, {"at": "2dsphere", "a": 1}, [*nothing, *placed])
    assert key_count(at) == 3
    assert find(at, {"a": 1}) == [4, 6] and stages(at, {"a": 1}) == ["COLLSCAN"]
    assert find(at, {"at": {"$geoWithin": {"$geometry": SQUARE}}, "a": 1}) == [6]
    assert find(at, {"at": None}) == [1, 2, 4] and stages(at, {"at": {"$exists": True}}) == ["COLLSCAN"]


def test_other_fields_before_and_after_bound_the_keys(at: DrivenServer) -> None:
    documents = [{"_id": n, "a": n % 3, "at": point(n / 10, 1), "b": -n} for n in range(90)]
    indexed(at, {"a": 1, "at": "2dsphere", "b": -1}, documents)
    spec = {"a": 1, "at": {"$geoWithin": {"$centerSphere": [[3, 1], 0.01]}}, "b": {"$lt": -29}}
    assert find(at, spec) == [n for n in range(90) if n % 3 == 1 and abs(n / 10 - 3) < 0.57 and n > 29]
    plan = at.must("t", {"explain": {"find": "c", "filter": spec}, "verbosity": "executionStats"})
    assert plan["executionStats"]["totalDocsExamined"] < 12
    assert stages(at, {"at": spec["at"]}) == ["COLLSCAN"]


def test_two_geometries_in_one_index(at: DrivenServer) -> None:
    documents = [
        {"_id": 1, "at": point(0, 0), "to": point(50, 50)},
        {"_id": 2, "at": point(0, 0)},
        {"_id": 3, "to": point(50, 50)},
        {"_id": 4},
    ]
    indexed(at, {"at": "2dsphere", "to": "2dsphere"}, documents)
    assert key_count(at) == 3
    near_zero = {"$geoWithin": {"$geometry": SQUARE}}
    assert find(at, {"at": near_zero}) == [1, 2]
    assert find(at, {"at": near_zero, "to": {"$geoIntersects": {"$geometry": point(50, 50)}}}) == [1]


def test_arrays_of_documents_with_places(at: DrivenServer) -> None:
    documents = [{"_id": 1, "stops": [{"at": point(0, 0)}, {"at": point(50, 50)}]}, {"_id": 2, "stops": []}, {"_id": 3}]
    indexed(at, {"stops.at": "2dsphere"}, documents)
    assert key_count(at) == 2
    assert find(at, {"stops.at": {"$geoWithin": {"$geometry": SQUARE}}}) == [1]
    assert find(at, {"stops.at": {"$geoWithin": {"$centerSphere": [[50, 50], 0.1]}}}) == [1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (point(200, 0), "longitude/latitude is out of bounds, lng: 200 lat: 0"),
        ([200, 0], "longitude/latitude is out of bounds, lng: 200 lat: 0"),
        ("home", "geo element must be an array or object"),
        (5, "geo element must be an array or object"),
        ({}, "unknown GeoJSON type"),
        ({"type": "Point"}, "Point must be an array or object"),
        ([[1, 2], [3, 4]], "Point must only contain numeric elements"),
        (polygon(ring((0, 0), (10, 10), (10, 0), (0, 10))), "Edges 0 and 2 cross"),
        (strict(SQUARE), "strict winding"),
    ],
)
def test_a_value_that_is_no_geometry_is_refused(at: DrivenServer, value: Any, message: str) -> None:
    indexed(at, {"at": "2dsphere"}, [])
    with pytest.raises(CommandError, match=message) as refused:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "at": value}]})
    assert refused.value.code == 16755 and "Can't extract geo keys" in refused.value.message
    at.must("t", {"insert": "d", "documents": [{"_id": 1, "at": value}]})
    with pytest.raises(CommandError, match=message) as refused:
        at.must("t", {"createIndexes": "d", "indexes": [{"key": {"at": "2dsphere"}, "name": "i"}]})
    assert refused.value.code == 16755


def test_the_version_is_part_of_the_specification(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [])
    indexes = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert indexes[1] == {"v": 2, "key": {"at": "2dsphere"}, "name": "i", "2dsphereIndexVersion": 3}
    again = {"key": {"at": "2dsphere"}, "name": "i"}
    assert at.must("t", {"createIndexes": "c", "indexes": [again]})["numIndexesAfter"] == 2


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ({"at": "2dsphere"}, {"2dsphereIndexVersion": 9}),
        ({"at": "2dsphere", "a": "hashed"}, {}),
        ({"at": "2dsphere", "$**": 1}, {}),
    ],
)
def test_a_specification_that_cannot_be_is_refused(at: DrivenServer, key: Json, options: Json) -> None:
    with pytest.raises(CommandError) as refused:
        indexed(at, key, [], **options)
    assert refused.value.code == 67


def test_shapes_on_the_plane_read_the_collection(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": 1, "at": [1, 1]}, {"_id": 2, "at": [9, 9]}])
    assert find(at, {"at": {"$geoWithin": {"$box": [[0, 0], [2, 2]]}}}) == [1]
    assert stages(at, {"at": {"$geoWithin": {"$box": [[0, 0], [2, 2]]}}}) == ["COLLSCAN"]


def test_a_sort_and_a_distinct_do_not_take_the_cells_for_values(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": 1, "at": [5, 1]}, {"_id": 2, "at": [1, 1]}])
    spec = {"at": {"$geoWithin": {"$geometry": SQUARE}}}
    sorted_ = at.must("t", {"find": "c", "filter": spec, "sort": {"at": 1}, "projection": {"at": 1, "_id": 0}})
    assert sorted_["cursor"]["firstBatch"] == [{"at": [1, 1]}, {"at": [5, 1]}]
    assert sorted(at.must("t", {"distinct": "c", "key": "at", "query": spec})["values"]) == [1, 5]
