"""Measures queries with indexes and without, builds of indexes, inserts into indexed collections, and updates and
deletes of many documents.

    python bench/queries.py                    200,000 documents; a table in Markdown
    python bench/queries.py --documents 20000
    python bench/queries.py --places         geospatial queries, next to a find by _id and a plain range

One server process, one client. Each operation is repeated for a second at least (without indexes: three times).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from math import cos, pi, radians, sin, sqrt
from random import Random
from typing import Any

import pymongo
from target import StartedServer, Target

CITIES = [f"city {number}" for number in range(10)]
INDEXES: dict[str, Any] = {"email": "email", "created": "created", "city": "city"}
BUILT_ONLY: dict[str, Any] = {
    "created, city": [("created", 1), ("city", -1)],
    "address.zip": "address.zip",
    "name, hashed": [("name", "hashed")],
    "all paths": "$**",
}
"""Indexes of which only the build is measured."""


def document(number: int) -> dict[str, Any]:
    """A user, of some 200 bytes."""
    return {
        "_id": number,
        "email": f"user{number}@example.com",
        "name": f"name {number % 1000}",
        "city": CITIES[number % 10],
        "created": datetime(2026, 1, 1) + timedelta(seconds=number * 7919 % 1_000_003),
        "visits": number % 50,
        "address": {"street": f"street {number % 97}", "zip": number % 10_000},
    }


def operations(users: Any, orders: Any, count: int) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    chooser = random.Random(1)
    email: Callable[[], dict[str, Any]] = lambda: {"email": f"user{chooser.randrange(count)}@example.com"}  # noqa: E731
    join = {"$lookup": {"from": "users", "localField": "email", "foreignField": "email", "as": "user"}}
    return {
        "find_one({email})": lambda: users.find_one(email()),
        "update_one({email})": lambda: users.update_one(email(), {"$inc": {"visits": 1}}),
        "count_documents({})": lambda: users.count_documents({}),
        "count_documents({city})": lambda: users.count_documents({"city": CITIES[3]}),
        "sort(created).limit(10)": lambda: list(users.find().sort("created", -1).limit(10)),
        "$lookup of 20": lambda: list(orders.aggregate([{"$limit": 20}, join])),
        "find_one({_id})": lambda: users.find_one({"_id": chooser.randrange(count)}),
    }


def milliseconds(target: Target, operation: Callable[[], Any], seconds: float, count_min: int) -> float:
    """The server's CPU time of one operation: the least of three runs."""
    operation()
    best = float("inf")
    for _ in range(3):
        count, began, cpu = 0, time.perf_counter(), target.cpu_seconds()
        while count < count_min or time.perf_counter() - began < seconds:
            operation()
            count += 1
        best = min(best, (target.cpu_seconds() - cpu) / count * 1000)
    return best


def build(target: Target, users: Any, key: Any, count: int) -> str:
    """What the build of an index costs, by itself."""
    target.rest()
    cpu, began = target.cpu_seconds(), time.perf_counter()
    users.create_index(key)
    used, took = target.cpu_seconds() - cpu, time.perf_counter() - began
    return f"{count / used:,.0f} documents a second of CPU, {count / took:,.0f} of time"


def insert_costs(target: Target, database: Any) -> str:
    """What an index on `email` costs an insert, one by one and in batches: the medians of rounds in which both take
    turns."""
    plain, indexed = database.plain, database.indexed
    indexed.create_index("email")
    ways: dict[str, Callable[[Any, int], Any]] = {
        "by itself": lambda users, first: [users.insert_one(document(first + number)) for number in range(1000)],
        "in batches of 1,000": lambda users, first: users.insert_many(map(document, range(first, first + 1000))),
    }
    lines, first = [], 0
    for name, insert in ways.items():
        costs: dict[Any, list[float]] = {plain: [], indexed: []}
        for _ in range(15):
            for users, used in costs.items():
                cpu = target.cpu_seconds()
                insert(users, first)
                used.append((target.cpu_seconds() - cpu) * 1e6 / 1000)
            first += 1000
        without, with_index = (sum(sorted(used)[5:10]) / 5 for used in costs.values())
        lines.append(
            f"insert {name}: {without:.1f} µs of CPU, with an index {with_index:.1f}, × {with_index / without:.2f}"
        )
    return "\n".join(lines)


def many_costs(target: Target, database: Any, count: int) -> str:
    """Return a table of the server's CPU for each document of inserts, updates and deletes of many.

    Each figure is the least of three rounds."""
    steps: dict[str, Callable[[Any], Any]] = {
        "insert_many, 1,000 at a time": lambda many: [
            many.insert_many(map(document, range(first, first + 1000))) for first in range(0, count, 1000)
        ],
        "update_many, $inc": lambda many: many.update_many({}, {"$inc": {"visits": 1}}),
        "update_many, $set of a new field": lambda many: many.update_many({}, {"$set": {"flag": True}}),
        "update_many, $inc of a path": lambda many: many.update_many(
            {"visits": {"$gte": 0}}, {"$inc": {"address.zip": 1}}
        ),
        "delete_many": lambda many: many.delete_many({"visits": {"$gte": 0}}),
    }
    costs: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(3):
        for name, step in steps.items():
            cpu = target.cpu_seconds()
            step(database[f"many{number}"])
            costs[name].append((target.cpu_seconds() - cpu) * 1e6 / count)
        target.rest()
    insert = min(costs["insert_many, 1,000 at a time"])
    lines = [f"| `{name}` | {min(used):.1f} | {min(used) / insert:.2f} |" for name, used in costs.items()]
    return "\n".join(["| µs of CPU a document | | in inserts |", "|---|---|---|", *lines])


Json = dict[str, Any]
Operation = Callable[[], list[Any]]

_WEST, _SOUTH, _SIZE = 0.0, 45.0, 10.0
"""The square of degrees in which all points are."""
_RESULT_COUNT = 100
_BY_ID = "find_one({_id})"


class Areas:
    """Random areas with about 100 of the points in each."""

    def __init__(self, count: int) -> None:
        self._random = Random(3)
        self._size = _RESULT_COUNT * _SIZE * _SIZE / count
        """The area of each, in square degrees."""

    def place(self) -> list[float]:
        """Return a place that is not at the border."""
        return [
            self._random.uniform(_WEST + 1, _WEST + _SIZE - 1),
            self._random.uniform(_SOUTH + 1, _SOUTH + _SIZE - 1),
        ]

    def point(self) -> Json:
        """Return a place as GeoJSON."""
        return {"type": "Point", "coordinates": self.place()}

    def circle(self) -> Json:
        """Return a circle as MongoDB's `$centerSphere`."""
        x, y = self.place()
        return {"$centerSphere": [[x, y], radians(sqrt(self._size * cos(radians(y)) / pi))]}

    def square(self) -> Json:
        """Return a polygon of four edges."""
        (x, y), half = self.place(), sqrt(self._size) / 2
        corners = [[x - half, y - half], [x + half, y - half], [x + half, y + half], [x - half, y + half]]
        return {"$geometry": {"type": "Polygon", "coordinates": [[*corners, corners[0]]]}}

    def star(self) -> Json:
        """Return a polygon of 24 edges with 12 points."""
        (x, y), inner = self.place(), 0.6
        outer = sqrt(self._size / (12 * inner * sin(pi / 12)))
        radii = [outer * (1 if at % 2 else inner) for at in range(24)]
        ring = [[x + r * cos(at * pi / 12), y + r * sin(at * pi / 12)] for at, r in enumerate(radii)]
        return {"$geometry": {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}}


def geospatial(places: Any, count: int) -> dict[str, Operation]:
    """Return the geospatial operations, by name, and what they are compared with."""
    areas, chooser = Areas(count), Random(4)

    def within(area: Callable[[], Json], operator: str = "$geoWithin") -> Operation:
        return lambda: list(places.find({"at": {operator: area()}}, batch_size=1000))

    def in_range() -> list[Any]:
        first = chooser.randrange(count - _RESULT_COUNT)
        return list(places.find({"n": {"$gte": first, "$lt": first + _RESULT_COUNT}}, batch_size=1000))

    def near(limit: int) -> Operation:
        return lambda: list(places.find({"at": {"$near": {"$geometry": areas.point()}}}).limit(limit))

    def stage() -> list[Any]:
        stages = [{"$geoNear": {"near": areas.point(), "key": "at", "distanceField": "metres"}}, {"$limit": 10}]
        return list(places.aggregate(stages))

    return {
        _BY_ID: lambda: [places.find_one({"_id": chooser.randrange(count)})],
        "a range of 100 of an index": in_range,
        "$geoWithin, a circle": within(areas.circle),
        "$geoWithin, a square": within(areas.square),
        "$geoIntersects, a square": within(areas.square, "$geoIntersects"),
        "$geoWithin, a star of 24 edges": within(areas.star),
        "$near, limit 10": near(10),
        "$near, limit 100": near(100),
        "$geoNear, $limit 10": stage,
    }


def fill_places(places: Any, count: int) -> None:
    """Insert the points and build the indexes."""
    random = Random(5)
    for start in range(0, count, 10_000):
        places.insert_many([
            {
                "_id": number, "n": number, "name": f"place {number}",
                "at": {
                    "type": "Point",
                    "coordinates": [
                        random.uniform(_WEST, _WEST + _SIZE), random.uniform(_SOUTH, _SOUTH + _SIZE),
                    ],
                },
            }
            for number in range(start, min(start + 10_000, count))
        ])  # fmt: skip
    places.create_index([("at", "2dsphere")])
    places.create_index("n")


def places_costs(target: Target, places: Any, count: int, rounds: int = 25) -> str:
    """Return a table of the server's CPU for each geospatial operation, and of the time until the driver has the
    documents, next to a find by `_id`. The operations take turns; a figure is the least of all rounds."""
    fill_places(places, count)
    measured = geospatial(places, count)
    sizes = {name: sum(len(run()) for _ in range(20)) / 20 for name, run in measured.items()}
    best = dict.fromkeys(measured, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, run in measured.items():
            repeated = 400 if name == _BY_ID else 40
            cpu, began = target.cpu_seconds(), time.perf_counter()
            for _ in range(repeated):
                run()
            used, took = target.cpu_seconds() - cpu, time.perf_counter() - began
            best[name] = min(best[name][0], used / repeated * 1e6), min(best[name][1], took / repeated * 1e6)
    lines = ["| Operation | documents | CPU, µs | in finds | time, µs | in finds |", "|---|---|---|---|---|---|"]
    for name, (cpu, took) in best.items():
        finds = f"{cpu:.0f} | {cpu / best[_BY_ID][0]:.1f} | {took:.0f} | {took / best[_BY_ID][1]:.1f}"
        lines.append(f"| `{name}` | {sizes[name]:.0f} | {finds} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--documents", type=int, default=200_000)
    arguments.add_argument("--places", action="store_true", help="measure geospatial queries only")
    given = arguments.parse_args()
    count, out = given.documents, sys.stdout.write
    with StartedServer() as target, pymongo.MongoClient(*target.address) as client:
        if given.places:
            out(f"{places_costs(target, client.bench.places, count)}\n")
            return
        users, orders = client.bench.users, client.bench.orders
        for first in range(0, count, 10_000):
            users.insert_many(map(document, range(first, min(first + 10_000, count))))
        orders.insert_many({"email": document(number * 7)["email"]} for number in range(20))
        measured = operations(users, orders, count)
        without = {name: milliseconds(target, run, 0.0, 1) for name, run in measured.items()}
        for name, key in INDEXES.items():
            out(f"index on {name}: {build(target, users, key, count)}\n")
        out("\n| Operation | with indexes, ms | without, ms |\n|---|---|---|\n")
        for name, run in measured.items():
            out(f"| `{name}` | {milliseconds(target, run, 0.3, 20):.2f} | {without[name]:.2f} |\n")
        users.drop_indexes()
        target.rest()
        out(f"\n{insert_costs(target, client.bench)}\n\n{many_costs(target, client.bench, 20_000)}\n\n")
        for name, key in BUILT_ONLY.items():
            out(f"index on {name}: {build(target, users, key, count)}\n")
            users.drop_indexes()


if __name__ == "__main__":
    main()
