"""What embedded calls cost: CPU and wall time beside the least that LMDB can do, and what an open store takes.

    python bench/embedded.py [--seconds 2] [--rounds 5] [--path DIRECTORY]

The floor of a durable insert is three puts and a synced commit of LMDB, with nothing around them. `commit` is that of
the four rows that an insert writes here, of the same sizes and ready to be put: what a call costs above it is Headrace.
Floors and inserts take turns, and each figure is the best of the rounds, since a busy machine can only add. Opening and
memory are measured in processes of their own, against a Python that has imported nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bson
import lmdb

import headrace

DOCUMENT = {"item": "lamp", "price": 35, "rest": "x" * 250}
BATCH = 200
POSITION = struct.Struct(">Q")
PROCESS = """
import json, os, sys, time
def rss_kib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
before = rss_kib()
started = time.perf_counter()
import headrace
open_store = headrace.open
imported = time.perf_counter()
store = open_store(sys.argv[1])
opened = time.perf_counter()
print(json.dumps({
    "import_ms": (imported - started) * 1000, "open_ms": (opened - imported) * 1000, "python_kib": before,
    "store_kib": rss_kib() - before, "modules": len(sys.modules),
}))
store.close()
"""


ENTRY_BYTES = 220
"""What the oplog's entry of an insert has besides the document."""


class Floor:
    """LMDB's tables and nothing else."""

    def __init__(self, path: str, *, sync: bool = True) -> None:
        self.environment = lmdb.open(path, map_size=1 << 34, max_dbs=4, lock=False, sync=sync, metasync=sync)
        self.tables = [self.environment.open_db(name) for name in (b"documents", b"ids", b"oplog", b"runs")]
        self.position = 0

    def insert(self) -> None:
        """One document."""
        document = bson.encode({"_id": bson.ObjectId(), **DOCUMENT})
        self.position += 1
        key = POSITION.pack(self.position)
        with self.environment.begin(write=True) as txn:
            txn.put(document[8:20], key, db=self.tables[1])
            txn.put(key, document, db=self.tables[0], append=True)
            txn.put(key, document, db=self.tables[2], append=True)

    def commit(self) -> None:
        """The four rows of one document, and their commit."""
        document = bson.encode({"_id": bson.ObjectId(), **DOCUMENT})
        self.position += 1
        key = POSITION.pack(self.position)
        with self.environment.begin(write=True) as txn:
            txn.put(b"\0\0\0\1" + document[8:21], key + b"crc-", db=self.tables[1])
            txn.put(b"\0\0\0\1" + key, document + b"crc-", db=self.tables[0], append=True)
            txn.put(key, bytes(ENTRY_BYTES) + document, db=self.tables[2], append=True)
            txn.put(b"\0\0\0\1" + bytes(8), key + b"crc-", db=self.tables[3])


def measured(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """(wall, CPU) microseconds of a call: the medians of batches."""
    walls, processor = [], []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        wall, used = time.perf_counter(), time.process_time()
        for _ in range(BATCH):
            call()
        walls.append((time.perf_counter() - wall) / BATCH * 1e6)
        processor.append((time.process_time() - used) / BATCH * 1e6)
    return statistics.median(walls), statistics.median(processor)


def best(calls: dict[str, Callable[[], object]], seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
    """The best of the rounds, in which all calls take turns."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            figures[name].append(measured(call, seconds))
    return {name: (min(wall for wall, _ in all_), min(used for _, used in all_)) for name, all_ in figures.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", help="a folder on the disk to measure; default: the system's temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        floor, unsynced, floor_commit, unsynced_commit = (
            Floor(str(Path(folder) / name), sync=not name.startswith("unsynced"))
            for name in ("floor", "unsynced", "commit", "unsynced-commit")
        )
        with headrace.open(Path(folder) / "store") as store, headrace.open() as throw_away:
            orders, gone_soon = store["shop"]["orders"], throw_away["shop"]["orders"]
            number = orders.insert_one(dict(DOCUMENT)).inserted_id
            stream, idle = store["shop"]["orders"].watch(), store["shop"]["other"].watch()
            figures = best(
                {
                    "floor: three puts and a synced commit": floor.insert,
                    "commit: the four puts of an insert": floor_commit.commit,
                    "insert_one, durable": lambda: orders.insert_one(dict(DOCUMENT)),
                    "floor, not synced": unsynced.insert,
                    "commit, not synced": unsynced_commit.commit,
                    "insert_one, not synced": lambda: gone_soon.insert_one(dict(DOCUMENT)),
                    "find_one by _id": lambda: orders.find_one({"_id": number}),
                    "insert_one and its event": lambda: (orders.insert_one(dict(DOCUMENT)), stream.next()),
                    "try_next, nothing new": idle.try_next,
                },
                arguments.seconds,
                arguments.rounds,
            )
        first = figures["floor: three puts and a synced commit"]
        print(f"{'':40} {'wall µs':>10} {'CPU µs':>10} {'CPU × floor':>12}")
        for name, (wall, used) in figures.items():
            print(f"{name:40} {wall:10.2f} {used:10.2f} {used / first[1]:12.2f}")
        runs = []
        for round_ in range(arguments.rounds):
            command = [sys.executable, "-c", PROCESS, str(Path(folder) / f"open{round_ % 2}")]
            done = subprocess.run(command, capture_output=True, check=True)
            runs.append(json.loads(done.stdout))
        for what in ("import_ms", "open_ms", "python_kib", "store_kib", "modules"):
            print(f"{what:40} {min(run[what] for run in runs):10.1f}")


if __name__ == "__main__":
    main()
