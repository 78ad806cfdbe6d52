"""Measures reader processes: inserts beside long work, two reads at once, partitions, and their memory.

    python bench/readers.py                   a table in Markdown, for servers with 0, 1 and 2 readers
    python bench/readers.py --readers 0 4     for others
    python bench/readers.py --seconds 2 --documents 20000

The load comes from this process, so on two cores it takes a part of what the server and its readers could have. The
aggregation groups all documents, `$merge` writes the groups, an update looks for documents that are not there, and a
stream resumes before all events. Partitions are ranges of the oplog, read as Spark's tasks do, with `headraceChanges`.
Memory is what a process has changed (`Private_Dirty` in /proc/PID/smaps_rollup), in MiB: pages of the data file and of
libraries are shared with others, or could be read again.
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bson import Int64, ObjectId
from loops import run_each
from messages import command, document
from target import StartedServer, Target, call

CONNECTIONS = 16
PARTITIONS = 4
ROUNDS = 12
_GROUP = {"$group": {"_id": "$status", "n": {"$sum": "$n"}, "total": {"$avg": "$total"}}}
AGGREGATE = command({"aggregate": "c", "cursor": {}, "pipeline": [_GROUP]})
MERGE = command({"aggregate": "c", "cursor": {}, "pipeline": [_GROUP, {"$merge": "merged"}]})
UPDATE = command({"update": "c", "updates": [{"q": {"n": 1}, "u": {"$inc": {"m": 1}}, "multi": True}]})
LONG = {"an aggregation": AGGREGATE, "a `$merge`": MERGE, "an update": UPDATE, "a backlog": None}
"""What goes on beside inserts, without an end; None: a stream."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a server with some readers."""

    readers: int
    idle_mib: float
    alone: float
    """Inserts a second."""
    beside: list[float]
    """The same beside each of `LONG`."""
    one_seconds: float
    two_seconds: float
    partition_seconds: float
    partitions_seconds: float
    reader_mib: list[float]

    def row(self) -> str:
        """The line of the table."""
        memory = ", ".join(f"{size:.0f}" for size in self.reader_mib) or "-"
        beside = " | ".join(f"{rate:,.0f} ({rate / self.alone:.0%})" for rate in self.beside)
        return (
            f"| {self.readers} | {self.alone:,.0f} | {beside} "
            f"| {self.one_seconds:.2f} | {self.two_seconds:.2f} ({self.two_seconds / self.one_seconds:.2f}) "
            f"| {self.partition_seconds:.2f} | {self.partitions_seconds:.2f} "
            f"({self.partition_seconds / self.partitions_seconds:.2f}) | {self.idle_mib:.0f} | {memory} |"
        )


HEAD = (
    f"| readers | inserts/s | {' | '.join(f'beside {name}' for name in LONG)} | an aggregation, s | two at once "
    "| 1 partition, s | 4 at once | MiB of the idle server | of each reader |\n" + "|---" * (8 + len(LONG)) + "|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate of inserts is measured")
    arguments = parser.parse_args()
    print(HEAD)
    for readers in arguments.readers:
        print(measured(readers, arguments.documents, arguments.seconds).row(), flush=True)


def measured(readers: int, documents: int, seconds: float) -> Figures:
    """Start a server and measure it."""
    with StartedServer(flags=["--readers", str(readers)]) as target:
        assert target.pid is not None
        time.sleep(5)  # it imports what it has not needed yet
        idle = private_mib(target.pid)
        token = _fill(target, documents)
        for _ in range(3 + readers):  # readers start meanwhile
            _together([_aggregation(target) for _ in range(max(1, readers))])
        times = [[_together([_aggregation(target) for _ in range(count)]) for count in (1, 2)] for _ in range(ROUNDS)]
        one, two = (min(of) for of in zip(*times))
        memory = [private_mib(child) for child in children(target.pid)]  # before they import Arrow
        tokens = _divided(target, token)
        partition = min(_together([_partition(target, tokens[0], tokens[-1])]) for _ in range(ROUNDS))
        ranges = list(pairwise(tokens))
        partitions = min(_together([_partition(target, *bounds) for bounds in ranges]) for _ in range(ROUNDS))
        rates = [
            [_inserts(target, seconds), *(_inserts_beside(target, seconds, item, token) for item in LONG.values())]
            for _ in range(ROUNDS)
        ]
        alone, *beside = (max(of) for of in zip(*rates))
    return Figures(readers, idle, alone, beside, one, two, partition, partitions, memory)


def _fill(target: Target, count: int) -> dict[str, Any]:
    """Insert the documents; return the token before them."""
    with target.connect() as connection:
        stream = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        token: dict[str, Any] = call(connection, command(stream))["cursor"]["postBatchResumeToken"]
        for _ in range(count // 1000):
            call(connection, command({"insert": "c"}, documents=[document(ObjectId()) for _ in range(1000)]))
    return token


def _aggregation(target: Target) -> threading.Thread:
    def run() -> None:
        with target.connect() as connection:
            connection.settimeout(None)
            call(connection, AGGREGATE)

    return threading.Thread(target=run)


def _go_on(target: Target, stops: threading.Event, message: bytes | None, token: dict[str, Any]) -> None:
    with target.connect() as connection:
        connection.settimeout(None)
        while not stops.is_set():
            if message is not None:
                call(connection, message)
                continue
            stream = {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": token}}], "cursor": {}}
            cursor = call(connection, command(stream))["cursor"]
            more = command({"getMore": Int64(cursor["id"]), "collection": "c", "maxTimeMS": 1})
            while not stops.is_set() and cursor.get("firstBatch", cursor.get("nextBatch")):
                cursor = call(connection, more)["cursor"]
            call(connection, command({"killCursors": "c", "cursors": [Int64(cursor["id"])]}))


def _changes(after: dict[str, Any], until: dict[str, Any] | None, columns: list[str]) -> bytes:
    body = {"headraceChanges": "c", "after": after, "until": until, "columns": columns, "rowsMax": 5_000}
    return command(body)


def _divided(target: Target, token: dict[str, Any]) -> list[dict[str, Any]]:
    """The tokens between partitions of about the same number of events, the first and the last included."""
    tokens = [token]
    with target.connect() as connection:
        while True:
            reply = call(connection, _changes(tokens[-1], None, []))
            tokens.append(reply["token"])
            if reply["done"]:
                break
    return [tokens[(len(tokens) - 1) * number // PARTITIONS] for number in range(PARTITIONS + 1)]


def _partition(target: Target, after: dict[str, Any], until: dict[str, Any]) -> threading.Thread:
    def run() -> None:
        token = after
        with target.connect() as connection:
            while True:
                reply = call(connection, _changes(token, until, ["token", "operationType", "fullDocument"]))
                token = reply["token"]
                if reply["done"]:
                    return

    return threading.Thread(target=run)


def _together(threads: Sequence[threading.Thread]) -> float:
    """How many seconds threads take that begin together."""
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _inserts(target: Target, seconds: float) -> float:
    """Inserts a second over some connections, each of one document."""
    rates, ends = [], time.perf_counter() + seconds
    while time.perf_counter() < ends:
        messages = [command({"insert": "other"}, documents=[document(ObjectId())]) for _ in range(1000)]
        rates.append(run_each(target, CONNECTIONS, messages).per_second)
    return sum(rates) / len(rates)


def _inserts_beside(target: Target, seconds: float, message: bytes | None, token: dict[str, Any]) -> float:
    """The same beside a command that is sent again and again, or a stream (None) that reads all events."""
    stops = threading.Event()
    thread = threading.Thread(target=_go_on, args=(target, stops, message, token))
    thread.start()
    try:
        return _inserts(target, seconds)
    finally:
        stops.set()
        thread.join()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [
        int(word) for path in Path(f"/proc/{pid}/task").iterdir() for word in (path / "children").read_text().split()
    ]


def private_mib(pid: int) -> float:
    """The memory that a process has changed and shares with no other."""
    found = re.search(r"^Private_Dirty: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
