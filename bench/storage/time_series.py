"""Measurements in a time series collection and in an ordinary one: bytes, inserts, a day of a year.

    python bench/storage/time_series.py --days 365 --sensors 10

Each sensor reports each ten minutes: a temperature with one decimal place, a pressure, a state. The ordinary collection
has the index that a time series is created with. Files are those of the documents and their indexes, without the oplog.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import headrace

START = datetime(2025, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=10)
BATCH_COUNT = 1000


def measurements(days: int, sensors: int) -> Iterator[dict[str, Any]]:
    """The reports of all sensors in the order of time."""
    chance = random.Random(1)
    celsius = [20.0] * sensors
    for step in range(days * 144):
        for sensor in range(sensors):
            celsius[sensor] = round(celsius[sensor] + chance.uniform(-0.3, 0.3), 1)
            yield {
                "at": START + step * STEP, "sensor": {"id": sensor, "site": "north"}, "celsius": celsius[sensor],
                "hectopascal": chance.randint(990, 1030), "state": "ok" if chance.random() < 0.99 else "late",
            }  # fmt: skip


def measure(store: Any, name: str, days: int, sensors: int) -> None:
    """Fill one collection, and print what it takes."""
    collection = store.bench[name]
    count, took = 0, 0.0
    documents = measurements(days, sensors)
    while batch := list(islice(documents, BATCH_COUNT)):
        began = time.perf_counter()
        collection.insert_many(batch)
        took, count = took + time.perf_counter() - began, count + len(batch)
    stats = store.bench.command({"collStats": name})
    day = {"at": {"$gte": START + timedelta(days=days // 2), "$lt": START + timedelta(days=days // 2 + 1)}}
    print(
        f"{name}: {count} measurements, {stats['size'] / count:.1f} bytes each,",
        f"indexes {stats['totalIndexSize'] / count:.1f}",
    )
    print(f"  insert_many of {BATCH_COUNT}: {took / count * 1e6:.1f} µs each")
    mean = [{"$match": day}, {"$group": {"_id": "$sensor.id", "mean": {"$avg": "$celsius"}}}]
    everything = mean[1:]
    for title, pipeline, rounds in (("a day", mean, 20), ("everything", everything, 3)):
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            groups = list(collection.aggregate(pipeline))
            times.append(time.perf_counter() - began)
        assert len(groups) == sensors
        print(f"  mean by sensor of {title}: {statistics.median(times) * 1e3:.1f} ms")


def main() -> None:
    """Fill both, each in a store of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365, help="days of measurements (default 365)")
    parser.add_argument("--sensors", type=int, default=10, help="sensors (default 10)")
    options = parser.parse_args()
    for kind in ("ordinary", "series"):
        with headrace.open() as store:
            if kind == "series":
                fields = {"timeField": "at", "metaField": "sensor", "granularity": "minutes"}
                store.bench.create_collection(kind, timeseries=fields)
            else:
                store.bench[kind].create_index([("sensor", 1), ("at", 1)])
                store.bench[kind].create_index("at")
            measure(store, kind, options.days, options.sensors)


if __name__ == "__main__":
    main()
