"""Searches by distance that read circles first: at every density, across the first circles, and with any distances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headrace.geo.covering import joined, without
from headrace.geo.near import parse_near
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.geo.test_regions import point

Json = dict[str, Any]
CENTRES = [(13.4, 52.5), (179.9999, 0.0), (-180.0, 0.0), (0.0, 90.0), (-90.0, -90.0), (45.0, 35.264389), (0.0, 0.0)]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def place(random: Random) -> Json:
    """Return a point near one of the centres, or exactly there, at any scale."""
    lng, lat = random.choice(CENTRES)
    spread = random.choice([0.0, 10.0 ** random.uniform(-8, 2)])
    lng, lat = random.gauss(lng, spread), random.gauss(lat, spread)
    return point((lng + 180) % 360 - 180 if abs(lng) > 180 else lng, max(-90.0, min(90.0, lat)))


def documents(random: Random, count: int) -> list[Json]:
    return [{"_id": number, "a": number % 3, "b": number % 7, "at": place(random)} for number in range(count)]


def distances(rows: list[Json], asked: Json) -> list[float]:
    find = parse_near("at", asked).finder()
    return [found.distance for row in rows if (found := find(row)) is not None]


def answer(at: DrivenServer, spec: Json, **more: Any) -> list[Json]:
    cursor = at.must("t", {"find": "c", "filter": spec, **more})["cursor"]
    rows = cursor["firstBatch"]
    while cursor["id"]:
        cursor = at.must("t", {"getMore": cursor["id"], "collection": "c"})["cursor"]
        rows += cursor["nextBatch"]
    return rows  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("key", [{"at": "2dsphere"}, {"a": 1, "at": "2dsphere", "b": 1}])
def test_documents_come_by_distance_at_every_density(at: DrivenServer, key: Json, seed: int) -> None:
    random = Random(seed)
    stored = documents(random, random.choice([5, 60, 700, 2600]))
    at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i"}]})
    at.must("t", {"insert": "c", "documents": stored})
    for _ in range(60):
        asked: Json = {"$geometry": place(random)}
        if random.random() < 0.4:
            asked["$maxDistance"] = random.choice([0.0, 10 ** random.uniform(-3, 7.4)])
        if random.random() < 0.4:
            asked["$minDistance"] = random.choice([0.0, 10 ** random.uniform(-3, 7.4)])
        rest = {"a": 1} if "a" in key else random.choice([{}, {}, {"a": 1}, {"b": {"$gt": 4}}, {"b": 99}])
        limit = random.choice([0, 1, 10, 10, 100])
        matched = [row for row in stored if all(matches(row[name], value) for name, value in rest.items())]
        rows = answer(at, {**rest, "at": {"$near": asked}}, limit=limit)
        expected = sorted(distances(matched, {"$near": asked}))
        got = distances(rows, {"$near": asked})
        assert got == expected[: limit or None], (asked, rest, limit)
        assert len({row["_id"] for row in rows}) == len(rows) and all(row in matched for row in rows)
        stages: list[Json] = [{"$geoNear": {
            "near": asked["$geometry"], "key": "at", "distanceField": "d", "includeLocs": "p", "query": rest,
            **{name[1:]: value for name, value in asked.items() if name != "$geometry"},
        }}]  # fmt: skip
        stages.append({"$limit": limit or 3000})
        found = at.must("t", {"aggregate": "c", "pipeline": stages, "cursor": {"batchSize": 3000}})["cursor"][
            "firstBatch"
        ]
        assert [row["d"] for row in found] == got and all(row["p"] == row["at"] for row in found)


@pytest.mark.parametrize("kind", ["2d", "2dsphere"])
def test_documents_a_quarter_of_the_earth_away_come_in_order(at: DrivenServer, kind: str) -> None:
    """There the sine of the distance hardly changes."""
    random = Random(3)
    places = [[random.uniform(-180, 180), random.gauss(0, 1e-7)] for _ in range(100)]
    places += [[random.choice([0.0, 90.0]) + random.gauss(0, 1e-7), random.gauss(0, 1e-7)] for _ in range(100)]
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"at": kind}, "name": "i"}]})
    at.must("t", {"insert": "c", "documents": [{"_id": number, "at": pair} for number, pair in enumerate(places)]})
    for asked in ([0.0, 90.0], [0.0, -90.0], [90.0, 0.0], [0.0, 0.0], [180.0, 0.0]):
        got = distances(answer(at, {"at": {"$nearSphere": asked}}), {"$nearSphere": asked})
        assert got == sorted(got) and len(got) == len(places)


def matches(value: int, condition: Any) -> bool:
    return value > condition["$gt"] if isinstance(condition, dict) else value == condition


def test_a_search_with_a_limit_reads_few_documents(at: DrivenServer) -> None:
    random = Random(5)
    stored = [
        {"_id": number, "at": point(random.uniform(0, 10), random.uniform(45, 55))} for number in range(20_000)
    ]  # fmt: skip
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"at": "2dsphere"}, "name": "i"}]})
    for first in range(0, len(stored), 5000):
        at.must("t", {"insert": "c", "documents": stored[first : first + 5000]})
    for limit, most in ((10, 60), (100, 230)):
        read = []
        for _ in range(20):
            spec = {"at": {"$near": {"$geometry": point(random.uniform(2, 8), random.uniform(47, 53))}}}
            plan = at.must("t", {"explain": {"find": "c", "filter": spec, "limit": limit}})
            read.append(plan["executionStats"]["totalDocsExamined"])
        assert sum(read) / len(read) <= most, (limit, read)


def test_ranges_are_joined_and_subtracted() -> None:
    random = Random(1)
    for _ in range(300):
        some, other = ([(first, first + 2 * random.randrange(4)) for first in random.sample(range(1, 60, 2), 6)]
                       for _ in range(2))  # fmt: skip
        leaves, others = ({n for first, last in spans for n in range(first, last + 1, 2)} for spans in (some, other))
        left, right = joined(some), joined(other)
        assert {n for first, last in left for n in range(first, last + 1, 2)} == leaves
        assert all(last + 2 < first for (_, last), (first, _) in pairwise(left))
        made = without(left, right)
        assert {n for first, last in made for n in range(first | 1, last + 1, 2)} == leaves - others
        assert made == sorted(made)
