"""What the benches of streams share: CPU time by part, a writer at a steady rate, and when its events were committed.

Linux only: CPU times are read from /proc. A query's parts are the driver (this process), Spark's JVM, the Python
workers below it, and the server.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bson import Timestamp
from pymongo import MongoClient
from spark_source import DATABASE, document
from target import Target

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Progress = dict[str, Any]
Covers = Callable[[Progress, Timestamp], bool]
"""Whether the batch of this progress, or one before it, has the event of that cluster time."""

CONF: Final = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of CPU time of each part."""

    driver: float
    jvm: float
    workers: float
    server: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(*(each - before for each, before in zip(astuple(self), astuple(other), strict=True)))

    @property
    def spark(self) -> float:
        return self.jvm + self.workers

    @property
    def total(self) -> float:
        return self.driver + self.spark + self.server

    def over(self, divisor: float) -> Cpu:
        return Cpu(*(each / divisor for each in astuple(self)))


def cpu_now(server: Target) -> Cpu:
    """CPU time so far of this process, of all processes below it but the server, and of the server."""
    children = _children()
    below = [pid for pid in children.get(os.getpid(), ()) if pid != server.pid]
    while below:
        pid = below.pop()
        below += children.get(pid, ())
        _note(pid)
    jvm = sum(used for (_, _, name), used in _USED.items() if name == "java")
    return Cpu(time.process_time(), jvm, sum(_USED.values()) - jvm, server.cpu_seconds())


def _children() -> dict[int, list[int]]:
    matched: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(folder)
        if fields:
            matched.setdefault(int(fields[2]), []).append(int(folder.name))
    return matched


# What each process was last seen to have used, by number, start and name: one that has ended keeps what it had.
_USED: Final[dict[tuple[int, str, str], float]] = {}


def _note(pid: int) -> None:
    fields = _stat(Path("/proc") / str(pid))
    if fields:
        _USED[pid, fields[20], fields[0]] = sum(int(ticks) for ticks in fields[12:14]) / os.sysconf("SC_CLK_TCK")


def _stat(folder: Path) -> list[str]:
    """The fields of /proc/PID/stat from the name on, the state second; none if the process is gone."""
    try:
        name, _, fields = (folder / "stat").read_text().rpartition(")")
        return [name.partition("(")[2], *fields.split()]
    except OSError:
        return []


class Writer:
    """Inserts documents at a steady rate from a thread of its own; `sent` has (when, in ms; its cluster time)."""

    def __init__(self, uri: str, rate: float) -> None:
        self._uri, self._rate = uri, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.sent: list[tuple[float, Timestamp]] = []

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        with MongoClient[dict[str, Any]](self._uri) as client:
            due = time.monotonic()
            while not self._stop.wait(max(due - time.monotonic(), 0)):
                sent_ms = time.time() * 1000
                reply = client[DATABASE].command("insert", "c", documents=[document()])
                self.sent.append((sent_ms, reply["operationTime"]))
                due += 1 / self._rate


def progress_of(query: StreamingQuery) -> list[Progress]:
    """Every batch so far; the session must have been made with `CONF`."""
    return [json.loads(each.json) for each in query.recentProgress if each.batchId >= 0]


def ended_ms(progress: Progress) -> float:
    """When the batch was committed: Spark has written its note of it."""
    begun = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    return begun.timestamp() * 1000 + progress["durationMs"]["triggerExecution"]


def latencies_ms(sent: Iterable[tuple[float, Timestamp]], batches: list[Progress], covers: Covers) -> list[float]:
    """From sending each insert to the commit of the first batch that has it; events that no batch has are left out."""
    matched, index = [], 0
    for sent_ms, moment in sent:
        while index < len(batches) and not covers(batches[index], moment):
            index += 1
        if index < len(batches):
            matched.append(ended_ms(batches[index]) - sent_ms)
    return matched


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def phases(batches: list[Progress]) -> dict[str, float]:
    """The median of each duration that Spark tells, in ms."""
    names = dict.fromkeys(name for batch in batches for name in batch["durationMs"])
    return {name: median(batch["durationMs"].get(name, 0) for batch in batches) for name in names}


def headrace_covers(progress: Progress, moment: Timestamp) -> bool:
    """Of the source `headrace`: its offsets are tokens."""
    from headrace.spark.stream.offsets import ServerOffset

    end = progress["sources"][0]["endOffset"]
    return ServerOffset.of(json.loads(end) if isinstance(end, str) else end).token.time >= moment
