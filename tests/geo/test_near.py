"""`$near` and `$nearSphere`: order and distances by computation, limits, writes, errors, and how few keys are read."""

from __future__ import annotations

from collections.abc import Iterator
from math import acos, cos, inf, radians, sin
from random import Random
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.geo.test_regions import SQUARE, line, many, point, polygon, ring
from tests.geo.test_sphere_indexes import indexed, stages

Json = dict[str, Any]
RADIUS = 6_378_100.0


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def near(lng: float, lat: float, **distances: float) -> Json:
    return {"$near": {"$geometry": point(lng, lat), **{f"${name}": value for name, value in distances.items()}}}


def found(at: DrivenServer, spec: Json, **more: Any) -> list[Any]:
    reply = at.must("t", {"find": "c", "filter": spec, "batchSize": 10_000, **more})
    return [document["_id"] for document in reply["cursor"]["firstBatch"]]


def refused(at: DrivenServer, command: Json) -> CommandError:
    with pytest.raises(CommandError) as error:
        at.must("t", command)
    return error.value


def metres(a: Json, b: Json) -> float:
    """The distance by the law of cosines, which is precise enough where places are far from each other."""
    (x, y), (u, v) = a["coordinates"], b["coordinates"]
    cosine = sin(radians(y)) * sin(radians(v)) + cos(radians(y)) * cos(radians(v)) * cos(radians(x - u))
    return RADIUS * acos(max(-1.0, min(1.0, cosine)))


def random_point(random: Random, spread: float = 180) -> Json:
    return point(random.uniform(-spread, spread), random.uniform(-spread / 2, spread / 2))


@pytest.mark.parametrize("spread", [180, 1])
def test_documents_come_in_the_order_of_their_distance(at: DrivenServer, spread: float) -> None:
    random = Random(f"near {spread}")
    documents = [{"_id": number, "at": random_point(random, spread)} for number in range(400)]
    indexed(at, {"at": "2dsphere"}, documents)
    for _ in range(15):
        place = random_point(random)
        by_distance = {document["_id"]: metres(place, document["at"]) for document in documents}
        order = sorted(by_distance, key=by_distance.__getitem__)
        assert found(at, {"at": {"$near": {"$geometry": place}}}) == order
        assert found(at, {"at": {"$nearSphere": {"$geometry": place}}}, limit=7) == order[:7]
        least, most = by_distance[order[50]] - 1, by_distance[order[90]] + 1
        ring_of = {"$geometry": place, "$minDistance": least, "$maxDistance": most}
        assert found(at, {"at": {"$near": ring_of}}) == order[50:91]
        legacy = {"$nearSphere": place["coordinates"], "$minDistance": least / RADIUS, "$maxDistance": most / RADIUS}
        assert found(at, {"at": legacy}) == order[50:91]


def test_lines_and_polygons_come_by_their_nearest_point_and_once(at: DrivenServer) -> None:
    shapes = {
        "inside": polygon(ring((-1, -1), (1, -1), (1, 1), (-1, 1))),
        "touching": line((0, 2), (90, 2)),
        "around": many("MultiPoint", point(0, 3), point(170, -80)),
        "far": polygon(ring((10, -1), (12, -1), (12, 1), (10, 1))),
        "pair": [0.5, 2.5],
    }
    indexed(at, {"at": "2dsphere"}, [{"_id": name, "at": shape} for name, shape in shapes.items()])
    assert found(at, {"at": near(0, 0)}) == ["inside", "touching", "pair", "around", "far"]
    assert found(at, {"at": near(170, -80)})[0] == "around"
    assert found(at, {"at": near(60, 2)})[0] == "touching"


@pytest.mark.parametrize("seed", range(4))
def test_shapes_come_in_the_order_that_a_walk_over_all_gives(at: DrivenServer, seed: int) -> None:
    from headrace.geo.geojson import geojson_shape
    from headrace.geo.sphere import vector

    random = Random(seed)
    documents = []
    for number in range(150):
        lng, lat = random.uniform(-170, 150), random.uniform(-80, 60)
        size = random.choice([1e-4, 0.1, 4, 20])
        shape = random.choice([
            point(lng, lat), line((lng, lat), (lng + size, lat + size)),
            polygon(ring((lng, lat), (lng + size, lat), (lng + size, lat + size))),
        ])  # fmt: skip
        documents.append({"_id": number, "at": shape})
    indexed(at, {"at": "2dsphere"}, documents)
    for _ in range(8):
        place = random_point(random)["coordinates"]
        distances = [geojson_shape(document["at"]).distance(vector(*place)) for document in documents]
        for given in (found(at, {"at": near(*place)}), found(at, {"at": near(*place)}, limit=20)):
            assert [distances[number] for number in given] == sorted(distances)[: len(given)]


def test_the_rest_of_the_filter_counts_and_a_sort_is_stronger(at: DrivenServer) -> None:
    documents = [{"_id": n, "at": point(n / 10, 0), "a": n % 3, "b": -n} for n in range(60)]
    indexed(at, {"at": "2dsphere"}, documents)
    assert found(at, {"at": near(0, 0), "a": 1}, limit=3) == [1, 4, 7]
    assert found(at, {"$and": [{"at": near(0, 0)}, {"a": 1}]}, skip=1, limit=2) == [4, 7]
    within = near(0, 0, maxDistance=50_000)
    assert found(at, {"at": within}, sort={"b": 1}) == [4, 3, 2, 1, 0]
    assert found(at, {"at": near(0, 0), "_id": {"$in": [9, 3]}}) == [3, 9]
    assert at.must("t", {"count": "c", "query": {"at": within}})["n"] == 5
    assert at.must("t", {"distinct": "c", "key": "a", "query": {"at": near(5.01, 0)}})["values"] == [2, 0, 1]


@pytest.mark.parametrize("key", [{"a": 1, "at": "2dsphere"}, {"at": "2dsphere", "a": 1}, {"at": "2dsphere"}])
def test_an_index_with_more_fields(at: DrivenServer, key: Json) -> None:
    documents = [{"_id": n, "at": point(n / 10, 0), "a": n % 4} for n in range(80)]
    indexed(at, key, documents)
    for condition in (1, {"$in": [1]}, {"$gt": 0, "$lt": 2}):
        assert found(at, {"at": near(4, 0), "a": condition}, limit=3) == [41, 37, 45], condition
    if next(iter(key)) == "a":
        assert refused(at, {"find": "c", "filter": {"at": near(0, 0)}}).code == 291


def test_writes_go_by_distance_and_meet_a_moved_document_once(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(n, 0)} for n in range(100)])
    nearest = at.must("t", {"findAndModify": "c", "query": {"at": near(33.2, 0)}, "update": {"$set": {"x": 1}}})
    assert nearest["value"]["_id"] == 33
    away = {"q": {"at": near(0, 0)}, "u": {"$set": {"at": point(120, 0)}, "$inc": {"n": 1}}, "multi": True}
    assert at.must("t", {"update": "c", "updates": [away]})["nModified"] == 100
    assert at.must("t", {"count": "c", "query": {"n": 1}})["n"] == 100
    assert at.must("t", {"delete": "c", "deletes": [{"q": {"at": near(120, 1)}, "limit": 1}]})["n"] == 1


def test_many_documents_in_one_place(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(5, 5)} for n in range(700)])
    assert sorted(found(at, {"at": near(5, 5, maxDistance=0)})) == list(range(700))
    assert len(found(at, {"at": near(-170, -5)}, limit=9)) == 9


def test_only_keys_about_the_place_are_read(at: DrivenServer) -> None:
    random = Random(7)
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": random_point(random, 5)} for n in range(2000)])
    for place in ((0, 0), (90, 90), (-179, 1)):
        command = {"find": "c", "filter": {"at": near(*place)}, "limit": 10}
        stats = at.must("t", {"explain": command, "verbosity": "executionStats"})["executionStats"]
        assert stats["nReturned"] == 10
        assert stats["totalDocsExamined"] < 120, place
    assert stages(at, {"at": near(1, 1)}) == ["GEO_NEAR_2DSPHERE"]
    assert stages(at, {"at": near(1, 1), "a": 1}) == ["FETCH", "GEO_NEAR_2DSPHERE"]


def test_a_cursor_goes_on_where_it_was(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(n / 10, 0)} for n in range(500)])
    reply = at.must("t", {"find": "c", "filter": {"at": near(0, 0)}, "batchSize": 10})
    seen = [document["_id"] for document in reply["cursor"]["firstBatch"]]
    while reply["cursor"]["id"]:
        reply = at.must("t", {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 150})
        seen += [document["_id"] for document in reply["cursor"]["nextBatch"]]
    assert seen == list(range(500))


@pytest.mark.parametrize(
    ("condition", "code", "message"),
    [
        ({"$near": [0, 0]}, 291, "unable to find index for $geoNear query"),
        ({"$near": 5}, 2, "geo near query argument is not an object"),
        ({"$near": {}}, 2, "invalid point provided to geo near query: {}"),
        ({"$near": ["x", 0]}, 2, "invalid point provided to geo near query"),
        ({"$near": {"$geometry": point(0, 0)}, "$maxDistance": 5}, 2, "Extra field found: $maxDistance: 5"),
        ({"$near": {"$geometry": [0, 0]}}, 2, "$near requires geojson point, given [ 0, 0 ]"),
        ({"$near": {"$geometry": point(181, 0)}}, 2, "invalid point in geo near query $geometry argument"),
        ({"$near": {"$geometry": SQUARE}}, 2, "invalid point in geo near query $geometry argument"),
        ({"$near": {"$geometry": point(0, 0), "$maxDistance": -1}}, 2, "$maxDistance must be non-negative"),
        ({"$near": {"$geometry": point(0, 0), "$minDistance": "x"}}, 2, "$minDistance must be a number"),
        ({"$near": {"$geometry": point(0, 0), "$minDistance": inf}}, 2, "$minDistance must be non-negative"),
        ({"$near": {"$geometry": point(0, 0), "$more": 1}}, 2, "invalid argument in geo near query: $more"),
        ({"$near": {"$geometry": 5}}, 2, "$geometry is required for geo near query"),
        ({"$nearSphere": [0, 0], "$minDistance": "x"}, 16893, "$minDistance must be a number"),
        ({"$nearSphere": [0, 0], "$minDistance": -1}, 16894, "$minDistance must be non-negative"),
        ({"$nearSphere": [0, 0], "$maxDistance": "x"}, 16895, "$maxDistance must be a number"),
        ({"$nearSphere": [0, 0], "$maxDistance": -1}, 16896, "$maxDistance must be non-negative"),
        ({"$nearSphere": [0, 0, -1]}, 18522, "max distance must be non-negative"),
        ({"$nearSphere": [181, 0]}, 2, "Legacy point is out of bounds for spherical query"),
        ({"$near": [0, 0], "$gt": 5}, 34413, "invalid argument in geo near query: $gt"),
        ({"$gt": 5, "$near": [0, 0]}, 34413, "invalid argument in geo near query: $gt"),
        ({"$not": near(0, 0)}, 2, "geoNear must be top-level expr"),
        ({"$elemMatch": near(0, 0)}, 2, "geoNear must be top-level expr"),
    ],
)
def test_a_near_is_refused(at: DrivenServer, condition: Json, code: int, message: str) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": 1, "at": point(1, 1)}])
    error = refused(at, {"find": "c", "filter": {"at": condition}})
    assert (error.code, message in error.message) == (code, True), error.message


def test_where_a_near_may_not_be(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": 1, "at": point(1, 1), "to": [2, 2]}])
    spec = {"at": near(0, 0)}
    here = (5626500, "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require")
    for command in (
        {"aggregate": "c", "pipeline": [{"$match": spec}], "cursor": {}},
        {"create": "d", "validator": spec},
        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "p", "partialFilterExpression": spec}]},
    ):
        error = refused(at, command)
        assert error.code == here[0] or error.code == 67, error.message
    error = refused(at, {"aggregate": "c", "pipeline": [{"$match": spec}], "cursor": {}})
    assert (error.code, error.message.startswith(here[1])) == (here[0], True)
    for filter_, message in (
        ({"$or": [spec, {"a": 1}]}, "geoNear must be top-level expr"),
        ({"at": near(0, 0), "to": near(1, 1)}, "Too many geoNear expressions"),
    ):
        error = refused(at, {"find": "c", "filter": filter_})
        assert (error.code, error.message) == (2, message)
    for more, message in (
        ({"sort": {"$natural": 1}}, "geoNear expression not allowed with $natural sort order"),
        ({"hint": {"$natural": 1}}, "geoNear expression not allowed with $natural hint"),
    ):
        error = refused(at, {"find": "c", "filter": spec, **more})
        assert (error.code, error.message) == (2, message)
    assert refused(at, {"find": "c", "filter": spec, "hint": "_id_"}).code == 291
    assert refused(at, {"find": "c", "filter": {"to": near(0, 0)}}).code == 291
    assert found(at, spec, hint="i") == [1]
    assert at.must("t", {"find": "absent", "filter": spec})["cursor"]["firstBatch"] == []


def test_explain_of_other_commands(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(n, 0)} for n in range(20)])
    spec = {"at": near(0, 0, maxDistance=350_000)}
    for command, stage in (
        ({"count": "c", "query": spec}, "COUNT"),
        ({"delete": "c", "deletes": [{"q": spec, "limit": 0}]}, "DELETE"),
        ({"update": "c", "updates": [{"q": spec, "u": {"$set": {"a": 1}}, "multi": True}]}, "UPDATE"),
        ({"find": "c", "filter": spec, "sort": {"_id": -1}}, "SORT"),
    ):
        plan = at.must("t", {"explain": command, "verbosity": "executionStats"})
        stages_of = plan["executionStats"]["executionStages"]
        assert stages_of["stage"] == stage
        while "inputStage" in stages_of:
            stages_of = stages_of["inputStage"]
        assert (stages_of["stage"], stages_of["nReturned"]) == ("GEO_NEAR_2DSPHERE", 4), stage
    (found_,) = at.must("t", {"find": "c", "filter": spec, "limit": 1, "showRecordId": True})["cursor"]["firstBatch"]
    assert found_["_id"] == 0 and "$recordId" in found_


def test_a_near_sees_the_writes_of_its_transaction(at: DrivenServer) -> None:
    from bson import Binary, Int64

    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(n, 0)} for n in range(60)])
    fields = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    at.must("t", {"insert": "c", "documents": [{"_id": 99, "at": point(0.1, 0)}], "startTransaction": True, **fields})
    at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}], **fields})
    assert found(at, {"at": near(0, 0)}, limit=4, **fields) == [0, 99, 2, 3]
    assert len(found(at, {"at": near(0, 0)}, **fields)) == 60
    assert found(at, {"at": near(0, 0)}, limit=4) == [0, 1, 2, 3]
    at.must("admin", {"abortTransaction": 1, **fields})


@pytest.mark.parametrize("kind", ["2dsphere", "2d"])
def test_a_document_that_gets_more_keys_between_two_batches_comes_once_more_at_most(
    at: DrivenServer, kind: str
) -> None:
    documents = [{"_id": number, "at": [number / 4, 0]} for number in range(200)]
    indexed(at, {"at": kind}, documents)
    if kind == "2d":
        spec: Json = {"at": {"$near": [0, 0]}}
        more: Json = {"at": [[40, 0], [41, 0.1], [42, 0.2], [44, 0]]}
    else:
        spec, more = {"at": near(0, 0)}, {"at": line([40, 0], [44, 10], [35, 30], [41, 5])}
    reply = at.must("t", {"find": "c", "filter": spec, "batchSize": 2})
    seen = [document["_id"] for document in reply["cursor"]["firstBatch"]]
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 150}, "u": {"$set": more}}]})
    while reply["cursor"]["id"]:
        reply = at.must("t", {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 3})
        seen += [document["_id"] for document in reply["cursor"]["nextBatch"]]
    assert seen.count(150) <= 1
    assert sorted(set(seen) - {150}) == [number for number in range(200) if number != 150]
