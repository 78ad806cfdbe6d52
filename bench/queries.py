"""Measures queries with indexes and without, builds of indexes, inserts into indexed collections, and updates and
deletes of many documents.

    python bench/queries.py                    200,000 documents; a table in Markdown
    python bench/queries.py --documents 20000

One server process, one client. Each operation is repeated for a second at least (without indexes: three times).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
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


def rest(target: Target) -> None:
    """Wait until the server does nothing: what was dropped or deleted is cleared away in the background."""
    used = -1.0
    while (now := target.cpu_seconds()) - used > 0.02:
        used = now
        time.sleep(0.5)


def build(target: Target, users: Any, key: Any, count: int) -> str:
    """What the build of an index costs, by itself."""
    rest(target)
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
        rest(target)
    insert = min(costs["insert_many, 1,000 at a time"])
    lines = [f"| `{name}` | {min(used):.1f} | {min(used) / insert:.2f} |" for name, used in costs.items()]
    return "\n".join(["| µs of CPU a document | | in inserts |", "|---|---|---|", *lines])


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--documents", type=int, default=200_000)
    count = arguments.parse_args().documents
    out = sys.stdout.write
    with StartedServer() as target, pymongo.MongoClient(*target.address) as client:
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
        rest(target)
        out(f"\n{insert_costs(target, client.bench)}\n\n{many_costs(target, client.bench, 20_000)}\n\n")
        for name, key in BUILT_ONLY.items():
            out(f"index on {name}: {build(target, users, key, count)}\n")
            users.drop_indexes()


if __name__ == "__main__":
    main()
