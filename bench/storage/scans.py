"""Measures the CPU time of scans per document, in one process without a socket: filters, groups, sorts, projections.

    python bench/storage/scans.py                       200,000 documents; a table in Markdown
    python bench/storage/scans.py --against ../older    in turns with another checkout, of the same documents

Each checkout runs in a process of its own, in which the client is, too: what it decodes of the results is in the
figures of projections. A figure is the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]


def document(number: int) -> dict[str, Any]:
    """A user, of some 195 bytes."""
    return {
        "_id": number,
        "email": f"user{number}@example.com",
        "name": f"name {number % 1000}",
        "city": f"city {number % 10}",
        "created": datetime(2026, 1, 1) + timedelta(seconds=number * 7919 % 1_000_003),
        "visits": number % 50,
        "address": {"street": f"street {number % 97}", "zip": number % 10_000},
        "tags": [f"t{number % size}" for size in (7, 11, 13)],
    }


def operations(users: Any, count: int) -> dict[str, Callable[[], Any]]:
    """The measured operations by name."""

    def group(*stages: dict[str, Any]) -> Callable[[], Any]:
        sums = {"_id": "$city", "n": {"$sum": 1}, "mean": {"$avg": "$visits"}}
        return lambda: list(users.aggregate([*stages, {"$group": sums}]))

    def unwound() -> Any:
        return list(users.aggregate([{"$unwind": "$tags"}, {"$group": {"_id": "$tags", "n": {"$sum": 1}}}]))

    return {
        "count, a number": lambda: users.count_documents({"visits": {"$gt": 40}}),
        "count, a string": lambda: users.count_documents({"city": "city 3"}),
        "count, two conditions": lambda: users.count_documents({"visits": {"$gte": 10, "$lt": 20}, "city": "city 3"}),
        "count, a date": lambda: users.count_documents({"created": {"$gte": datetime(2026, 1, 10)}}),
        "count, a field below": lambda: users.count_documents({"address.zip": {"$lt": 100}}),
        "count, a regular expression": lambda: users.count_documents({"email": {"$regex": "^user1.*9@"}}),
        "`$group`, two accumulators": group(),
        "`$match` of 80 %, `$group`": group({"$match": {"visits": {"$gte": 10}}}),
        "`$unwind` of three, `$group`": unwound,
        "sort, the first ten": lambda: list(users.find().sort("created", -1).limit(10)),
        "sort, all": lambda: list(users.aggregate([{"$sort": {"created": -1}}, {"$skip": count - 10}])),
        "projection of two fields": lambda: sum(1 for _ in users.find({}, {"email": 1, "visits": 1})),
        "all documents": lambda: sum(1 for _ in users.find({})),
    }


def measure(path: str, count: int) -> dict[str, float]:
    """The microseconds of CPU a document, by name, of one run of each."""
    import headrace

    figures = {}
    with headrace.open(path) as store:
        for name, run in operations(store.bench.users, count).items():
            began = time.process_time()
            run()
            figures[name] = (time.process_time() - began) / count * 1e6
    return figures


def fill(path: str, count: int) -> None:
    """Insert the documents."""
    import headrace

    with headrace.open(path) as store:
        for first in range(0, count, 5000):
            numbers = range(first, min(first + 5000, count))
            store.bench.users.insert_many(list(map(document, numbers)))


def run_in(checkout: Path, *arguments: str) -> Any:
    """The answer of this file in a process that imports the package of a checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    made = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(made.stdout or b"null")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    out, documents = sys.stdout.write, str(given.documents)
    if given.fill:
        fill(given.fill, given.documents)
        return
    if given.measure:
        out(json.dumps(measure(given.measure, given.documents)))
        return
    checkouts = [HERE] if given.against is None else [given.against.resolve(), HERE]
    with tempfile.TemporaryDirectory() as folder:
        run_in(checkouts[0], "--documents", documents, "--fill", folder)
        rounds: list[list[dict[str, float]]] = [[] for _ in checkouts]
        for _ in range(given.rounds):
            for number, checkout in enumerate(checkouts):
                rounds[number].append(run_in(checkout, "--documents", documents, "--measure", folder))
    least = [{name: min(figures[name] for figures in some) for name in some[0]} for some in rounds]
    out(f"| µs of CPU a document |{' before |' if given.against else ''} now |{' × |' if given.against else ''}\n")
    out(f"|---|{'---|' * (3 if given.against else 1)}\n")
    for name in least[0]:
        figures = [figures[name] for figures in least]
        cells = [f"{figure:.1f}" for figure in figures] + ([f"{figures[1] / figures[0]:.2f}"] if given.against else [])
        out(f"| {name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
