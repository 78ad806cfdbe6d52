"""Measures reader processes: inserts beside a long read, two reads at once, partitions, memory, and CPU that is saved.

    python bench/readers.py                   a table in Markdown, for servers with 0, 1 and 2 readers
    python bench/readers.py --readers 0 4     for others
    python bench/readers.py --seconds 2 --documents 20000

The load comes from this process, so on two cores it takes a part of what the server and its readers could have. The
aggregation groups all documents. The CPU is the server's own, without that of its readers: for the aggregation, for the
same with `$merge`, for an update of documents that are not there, and for a stream that resumes before all events.
Partitions are ranges of the oplog, read as Spark's tasks do, with `headraceChanges`.
Memory is what a process has changed (`Private_Dirty` in /proc/PID/smaps_rollup), in MiB: pages of the data file and of
libraries are shared with others, or could be read again.
"""

from __future__ import annotations

import argparse
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a server with some readers."""

    readers: int
    idle_mib: float
    alone: float
    """Inserts a second."""
    beside: float
    """The same beside an endless aggregation."""
    one_seconds: float
    two_seconds: float
    partition_seconds: float
    partitions_seconds: float
    reader_mib: list[float]
    cpu_ms: list[float]
    """CPU time of the server process in milliseconds, for an aggregation, `$merge`, an update and a backlog."""

    def row(self) -> str:
        """The line of the table."""
        memory = ", ".join(f"{size:.0f}" for size in self.reader_mib) or "-"
        return (
            f"| {self.readers} | {self.alone:,.0f} | {self.beside:,.0f} ({self.beside / self.alone:.0%}) "
            f"| {self.one_seconds:.2f} | {self.two_seconds:.2f} ({self.two_seconds / self.one_seconds:.2f}) "
            f"| {self.partition_seconds:.2f} | {self.partitions_seconds:.2f} "
            f"({self.partition_seconds / self.partitions_seconds:.2f}) | {self.idle_mib:.0f} | {memory} "
            f"| {' / '.join(f'{time:.0f}' for time in self.cpu_ms)} |"
        )


HEAD = (
    "| readers | inserts/s | beside an aggregation | an aggregation, s | two at once | 1 partition, s | 4 at once "
    "| MiB of the idle server | of each reader | ms of CPU of the server |\n|---|---|---|---|---|---|---|---|---|---|"
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
        cpu = [_cpu_ms(target, partial(_sent, message)) for message in (AGGREGATE, MERGE, UPDATE)]
        cpu.append(_cpu_ms(target, partial(_backlog, token)))
        tokens = _divided(target, token)
        partition = min(_together([_partition(target, tokens[0], tokens[-1])]) for _ in range(ROUNDS))
        ranges = list(pairwise(tokens))
        partitions = min(_together([_partition(target, *bounds) for bounds in ranges]) for _ in range(ROUNDS))
        rates = [(_inserts(target, seconds), _inserts_beside(target, seconds)) for _ in range(ROUNDS)]
        alone, beside = (max(of) for of in zip(*rates))
    return Figures(readers, idle, alone, beside, one, two, partition, partitions, memory, cpu)


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


def _aggregate_on(target: Target, stops: threading.Event) -> None:
    with target.connect() as connection:
        connection.settimeout(None)
        while not stops.is_set():
            call(connection, AGGREGATE)


def _cpu_ms(target: Target, work: Callable[[socket.socket], None]) -> float:
    """The CPU time that the server takes for some work, the least of some rounds, in milliseconds."""
    times = []
    with target.connect() as connection:
        connection.settimeout(None)
        for _ in range(ROUNDS):
            before = target.cpu_seconds()
            work(connection)
            times.append(target.cpu_seconds() - before)
    return min(times) * 1000


def _sent(message: bytes, connection: socket.socket) -> None:
    call(connection, message)


def _backlog(token: dict[str, Any], connection: socket.socket) -> None:
    """Read all events from a token on."""
    stream = {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": token}}], "cursor": {}}
    cursor = call(connection, command(stream))["cursor"]
    more = command({"getMore": Int64(cursor["id"]), "collection": "c", "maxTimeMS": 1})
    while call(connection, more)["cursor"]["nextBatch"]:
        pass
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


def _inserts_beside(target: Target, seconds: float) -> float:
    """The same beside an aggregation that never ends."""
    stops = threading.Event()
    thread = threading.Thread(target=_aggregate_on, args=(target, stops))
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
