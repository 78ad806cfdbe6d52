"""The costs of Headrace in multiples of the floor (`floor.py`): the table of `load.py --floor`.

The two servers take turns, round by round. A ratio is the median of the rounds' ratios, so that what else the machine
does meanwhile concerns both.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messages import command
from scenarios import SCENARIOS, Scenario
from streams import STREAMS
from target import StartedServer, Target, call

_PING = "ping"
_BATCH = "insert in batches of 1,000 (documents)"
_BOTH = (_PING, "insert", "insert, 16 connections", "insert, 64 connections", _BATCH)
"""Figures that both servers have."""
_MANY = 20_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """One line of the table; `at_most` is the bound that it is to keep."""

    name: str
    unit: str
    at_most: float


RATIOS = (
    Ratio(_PING, "× floor", 1.1),
    Ratio("insert", "× floor", 1.25),
    Ratio("insert, 16 connections", "× floor", 1.35),
    Ratio("insert, 64 connections", "× floor", 1.5),
    Ratio(_BATCH, "× floor", 1.2),
    Ratio("find by _id", "pings of the floor", 1.4),
    Ratio("update by _id, 16 connections", "pings of the floor", 2.0),
    Ratio("event of a backlog", "pings of the floor", 0.1),
    Ratio("update of many", "documents of a batched insert", 3.0),
    Ratio("delete of many", "documents of a batched insert", 3.0),
)


def print_ratios(directory: Path | None, rounds: int, seconds: float) -> None:
    """Measure, and print a line for each ratio."""
    scenarios = {scenario.name: scenario for scenario in (*SCENARIOS, *STREAMS)}
    measured: list[dict[str, float]] = []
    with StartedServer(directory) as headrace, started_floor(directory) as floor:
        for number in range(rounds):
            measured.append(_round(scenarios, headrace, floor, seconds, reverse=number % 2 == 1))
    for ratio in RATIOS:
        values = [one[ratio.name] for one in measured]
        print(f"{ratio.name:<42}{statistics.median(values):>7.2f} {ratio.unit:<30} at most {ratio.at_most}", flush=True)


def _round(
    scenarios: dict[str, Scenario], headrace: Target, floor: Target, seconds: float, *, reverse: bool
) -> dict[str, float]:  # fmt: skip
    """The ratios of one round, by name."""
    own: dict[str, float] = {}
    least: dict[str, float] = {}
    for name in _BOTH:
        pair: list[tuple[Target, dict[str, float]]] = [(headrace, own), (floor, least)]
        for target, figures in reversed(pair) if reverse else pair:
            figures[name] = scenarios[name].run(target, seconds)[name].cpu_us
    ratios = {name: own[name] / least[name] for name in _BOTH}
    for name in ("find by _id", "update by _id, 16 connections"):
        ratios[name] = scenarios[name].run(headrace, seconds)[name].cpu_us / least[_PING]
    ratios["event of a backlog"] = (
        scenarios["backlog"].run(headrace, seconds)["event of a backlog"].cpu_us / least[_PING]
    )
    for name, cpu_us in _of_many(headrace).items():
        ratios[name] = cpu_us / own[_BATCH]
    return ratios


def _of_many(target: Target) -> dict[str, float]:
    """Microseconds for each document of an update and of a delete of 20,000."""
    target.drop()
    figures = {}
    documents = [{"_id": number, "n": 0, "status": "new", "note": "x" * 220} for number in range(_MANY)]
    with target.connect() as connection:
        for first in range(0, _MANY, 1000):
            call(connection, command({"insert": "c"}, documents=documents[first : first + 1000]))
        update: dict[str, Any] = {"q": {}, "u": {"$set": {"n": 1}}, "multi": True}
        delete: dict[str, Any] = {"q": {}, "limit": 0}
        for name, message in (
            ("update of many", command({"update": "c"}, updates=[update])),
            ("delete of many", command({"delete": "c"}, deletes=[delete])),
        ):
            cpu = target.cpu_seconds()
            if call(connection, message)["n"] != _MANY:
                raise RuntimeError(f"{name}: not all documents")
            figures[name] = (target.cpu_seconds() - cpu) / _MANY * 1e6
    target.drop()
    return figures


@contextmanager
def started_floor(directory: Path | None = None) -> Iterator[Target]:
    """The floor on a new directory."""
    words = [sys.executable, str(Path(__file__).with_name("floor.py")), "--port", "0"]
    words += [] if directory is None else ["--directory", str(directory)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        matched = re.search(r"listens on 127\.0\.0\.1:(\d+)", process.stdout.readline())
        if matched is None:
            raise RuntimeError("the floor did not start")
        yield Target("floor", "127.0.0.1", int(matched[1]), process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
