"""The `$geoNear` stage: its fields, the index it takes, its metadata, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.geo.test_regions import line, many, point
from tests.geo.test_sphere_indexes import indexed

Json = dict[str, Any]
RADIUS = 6_378_100.0
DEGREE = RADIUS * 3.141592653589793 / 180


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def run(at: DrivenServer, *pipeline: Json, name: str = "c", **more: Any) -> list[Json]:
    command = {"aggregate": name, "pipeline": list(pipeline), "cursor": {"batchSize": 1000}, **more}
    found: list[Json] = at.must("t", command)["cursor"]["firstBatch"]
    return found


def stage(**options: Any) -> Json:
    return {"$geoNear": {"near": point(0, 0), "distanceField": "d", **options}}


def placed(at: DrivenServer) -> None:
    indexed(at, {"at": "2dsphere"}, [{"_id": n, "at": point(n, 0), "a": n % 2} for n in range(5)])


def test_distances_are_metres_or_radians_times_the_multiplier(at: DrivenServer) -> None:
    placed(at)
    found = run(at, stage())
    assert [document["_id"] for document in found] == [0, 1, 2, 3, 4]
    assert found[3]["d"] == pytest.approx(3 * DEGREE, rel=1e-12)
    assert run(at, stage(distanceMultiplier=0.001))[2]["d"] == pytest.approx(2 * DEGREE / 1000, rel=1e-12)
    legacy = run(at, stage(near=[0, 0], spherical=True, distanceMultiplier=180 / 3.141592653589793))
    assert [document["d"] for document in legacy] == pytest.approx([0, 1, 2, 3, 4])


def test_query_range_limit_and_later_stages(at: DrivenServer) -> None:
    placed(at)
    some = stage(query={"a": 1}, maxDistance=3.5 * DEGREE, minDistance=0.5 * DEGREE)
    assert [document["_id"] for document in run(at, some)] == [1, 3]
    assert [document["_id"] for document in run(at, stage(query={"at": {"$geoWithin": {"$centerSphere": [[3, 0], 0.02]}}}))] == [2, 3, 4]  # fmt: skip  # noqa: E501
    assert [document["_id"] for document in run(at, stage(), {"$limit": 2})] == [0, 1]
    assert run(at, stage(), {"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}) == [
        {"_id": 0, "n": 3}, {"_id": 1, "n": 2},
    ]  # fmt: skip
    run(at, stage(), {"$project": {"d": 1}}, {"$out": "near"})
    assert len(at.must("t", {"find": "near"})["cursor"]["firstBatch"]) == 5


def test_locations_and_nested_fields(at: DrivenServer) -> None:
    both = [point(9, 9), point(1, 0)]
    indexed(at, {"stops.at": "2dsphere"}, [{"_id": 1, "stops": [{"at": place} for place in both]}])
    (found,) = run(at, stage(distanceField="near.metres", includeLocs="near.place"))
    assert found["near"] == {"metres": pytest.approx(DEGREE), "place": both[1]}


def test_a_stage_without_a_distance_field(at: DrivenServer) -> None:
    placed(at)
    assert run(at, {"$geoNear": {"near": point(4, 0)}}, {"$limit": 1}) == [{"_id": 4, "at": point(4, 0), "a": 0}]


def test_metadata_of_later_stages(at: DrivenServer) -> None:
    placed(at)
    show = {"$project": {"d": 1, "e": {"$meta": "geoNearDistance"}, "p": {"$meta": "geoNearPoint"}, "k": 1}}
    for document in run(at, stage(), {"$match": {"a": 1}}, {"$set": {"k": {"$meta": "sortKey"}}}, show):
        assert [document["e"]] == [document["d"]] == document["k"]
        assert document["p"] == point(document["_id"], 0)
    (found,) = at.must("t", {
        "find": "c", "filter": {"at": {"$near": {"$geometry": point(1, 1)}}}, "limit": 1,
        "projection": {"e": {"$meta": "geoNearDistance"}, "p": {"$meta": "geoNearPoint"}, "at": 0},
    })["cursor"]["firstBatch"]  # fmt: skip
    assert found == {"_id": 1, "a": 1, "e": pytest.approx(DEGREE), "p": point(1, 0)}
    distance = {"$meta": "geoNearDistance"}
    far = run(at, stage(), {"$sort": {"far": distance}}, {"$sample": {"size": 9}}, {"$sort": {"_id": -1}}, show)
    assert [(item["_id"], item["e"], item["p"]) for item in far] == [
        (number, pytest.approx(number * DEGREE), point(number, 0)) for number in (4, 3, 2, 1, 0)
    ]
    two = run(at, stage(), {"$sort": {"far": distance}}, {"$limit": 2}, {"$set": {"e": distance}})
    assert [(item["_id"], item["e"]) for item in two] == [(key, pytest.approx(key * DEGREE)) for key in (4, 3)]
    assert len(run(at, {"$sort": {"x": {"$meta": "randVal"}}}, {"$project": {"x": {"$meta": "recordId"}}})) == 5
    for pipeline in ([show], [stage(), {"$group": {"_id": "$a"}}, show]):
        with pytest.raises(CommandError) as refused:
            run(at, *pipeline)
        assert refused.value.code == 40218


def test_variables_and_joins(at: DrivenServer) -> None:
    placed(at)
    at.must(
        "t", {"insert": "homes", "documents": [{"_id": 1, "home": point(3.2, 0)}, {"_id": 2, "home": point(-1, 0)}]}
    )
    assert run(at, stage(near="$$here"), {"$limit": 1}, let={"here": point(2.2, 0)})[0]["_id"] == 2
    join = {"$lookup": {"from": "c", "let": {"home": "$home"}, "as": "near", "pipeline": [
        stage(near="$$home"), {"$limit": 1}, {"$project": {"_id": 1}},
    ]}}  # fmt: skip
    assert [document["near"] for document in run(at, {"$sort": {"_id": 1}}, join, name="homes")] == [
        [{"_id": 3}], [{"_id": 0}],
    ]  # fmt: skip
    farthest = [
        stage(near="$$home"),
        {"$sort": {"_id": -1}},
        {"$limit": 1},
        {"$set": {"e": {"$meta": "geoNearDistance"}}},
    ]
    here = {"$lookup": {**join["$lookup"], "pipeline": farthest}}
    assert all(document["near"][0]["d"] == document["near"][0]["e"] for document in run(at, here, name="homes"))
    at.must("t", {"create": "by_distance", "viewOn": "c", "pipeline": [stage(), {"$limit": 2}]})
    seen = {"$lookup": {"from": "by_distance", "pipeline": [{"$project": {"_id": 1}}], "as": "near"}}
    assert [document["near"] for document in run(at, seen, name="homes")] == [[{"_id": 0}, {"_id": 1}]] * 2
    with pytest.raises(CommandError) as refused:
        run(at, {"$lookup": {**join["$lookup"], "localField": "_id", "foreignField": "_id"}}, name="homes")
    assert refused.value.code == 40603
    united = run(
        at, {"$match": {"_id": 0}}, {"$unionWith": {"coll": "c", "pipeline": [stage(key="at"), {"$limit": 2}]}}
    )
    assert [document["_id"] for document in united] == [0, 0, 1]


def test_the_key_names_the_index(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": 1, "at": point(0, 0), "to": point(9, 0)}]})
    with pytest.raises(CommandError, match="requires a 2d or 2dsphere index, but none were found") as refused:
        run(at, stage())
    assert refused.value.code == 27
    at.must(
        "t", {"createIndexes": "c", "indexes": [{"key": {name: "2dsphere"}, "name": name} for name in ("at", "to")]}
    )
    with pytest.raises(CommandError, match="There is more than one 2dsphere index") as refused:
        run(at, stage())
    assert refused.value.code == 27
    assert run(at, stage(key="to"))[0]["d"] == pytest.approx(9 * DEGREE)
    with pytest.raises(CommandError, match="unable to find index for") as refused:
        run(at, stage(key="nowhere"))
    assert refused.value.code == 291
    with pytest.raises(CommandError, match="absent does not exist") as refused:
        run(at, stage(), name="absent")
    assert refused.value.code == 26


def test_explain_shows_the_search(at: DrivenServer) -> None:
    placed(at)
    command = {"aggregate": "c", "pipeline": [stage(query={"a": 1}), {"$skip": 1}], "cursor": {}}
    plan = at.must("t", {"explain": command, "verbosity": "executionStats"})
    cursor, skip = plan["stages"]
    winning = cursor["$geoNearCursor"]["queryPlanner"]["winningPlan"]
    assert (winning["stage"], winning["inputStage"]["stage"]) == ("FETCH", "GEO_NEAR_2DSPHERE")
    assert (cursor["nReturned"], skip["nReturned"]) == (2, 1)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"near": 5}, 5860401, "a GeoJSON object or a legacy point(array)"),
        ({"near": "$at"}, 5860402, "requires a constant near argument"),
        ({"near": line((0, 0), (1, 1))}, 2, "invalid point provided to geo near query"),
        ({"near": many("Point", point(0, 0))}, 2, "invalid point provided to geo near query"),
        ({"distanceField": 5}, 16606, "'distanceField' option is a String"),
        ({"distanceField": "a."}, 40353, "must not end with"),
        ({"includeLocs": 5}, 16607, "'includeLocs' option is a String"),
        ({"maxDistance": "x"}, 14, "$geoNear requires $maxDistance to evaluate to a number"),
        ({"minDistance": -1}, 2, "minDistance must be nonnegative"),
        ({"minDistance": "$a"}, 7555701, "$minDistance to evaluate to a constant number"),
        ({"distanceMultiplier": "x"}, 14, "distanceMultiplier must be a number"),
        ({"distanceMultiplier": -1}, 2, "distanceMultiplier must be nonnegative"),
        ({"query": 5}, 14, "query must be an object"),
        ({"query": {"at": {"$near": [0, 0]}}}, 5626500, "not allowed in this context"),
        ({"key": 5}, 14, "must be of type string but found type: int"),
        ({"key": ""}, 2, "cannot be the empty string"),
        ({"limit": 5}, 50858, "no longer supports the 'limit' parameter"),
        ({"num": 5}, 50857, "no longer supports the 'num' parameter"),
        ({"start": 5}, 50856, "no longer supports the 'start' argument"),
        ({"collation": {}}, 40227, "does not accept the 'collation' parameter"),
        ({"zzz": 5}, 2, "Unknown argument to $geoNear: zzz"),
    ],
)
def test_arguments_are_refused(at: DrivenServer, options: Json, code: int, message: str) -> None:
    placed(at)
    with pytest.raises(CommandError) as refused:
        run(at, stage(**options))
    assert (refused.value.code, message in refused.value.message) == (code, True), refused.value.message


def test_places_of_the_stage(at: DrivenServer) -> None:
    placed(at)
    for pipeline, code in (
        ([{"$match": {}}, stage()], 40603),
        ([{"$facet": {"a": [stage()]}}], 40600),
        ([{"$geoNear": {"distanceField": "d"}}], 5860400),
    ):
        with pytest.raises(CommandError) as refused:
            run(at, *pipeline)
        assert refused.value.code == code
