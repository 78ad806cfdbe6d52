"""What is measured: each scenario prepares a collection, encodes its messages ahead, and runs them.

A scenario first runs a few operations to see how fast they go, then as many as fill the wanted time.
"""

from __future__ import annotations

import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bson import Int64, ObjectId
from logins import logins
from loops import Channel, Measured, Watchers, check, run_each
from messages import command, document
from target import Target, call

_STORED = 10_000
"""Documents in the collection when they are found and updated."""
_MESSAGES_MAX = 100_000
"""Messages encoded ahead at most, so that they fit in memory."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement; `run(target, seconds)` answers its figures by name."""

    name: str
    run: Callable[[Target, float], dict[str, Measured]]


def _repeated(
    name: str,
    connections: int,
    messages: Callable[[int], list[bytes]],
    *,
    stored: int = 0,
    weight: int = 1,
    calibration: int = 200,
) -> Scenario:
    """Operations one after the other on each connection; `weight` is the documents in each message."""

    def run(target: Target, seconds: float) -> dict[str, Measured]:
        target.drop()
        _store(target, stored)
        trial = run_each(target, connections, messages(calibration))
        count = max(calibration, min(int(trial.per_second * seconds), _MESSAGES_MAX // weight))
        measured = run_each(target, connections, messages(count))
        target.drop()
        return {name: Measured(measured.per_second * weight, measured.cpu_us / weight)}

    return Scenario(name, run)


def _store(target: Target, count: int) -> None:
    with target.connect() as connection:
        call(connection, command({"create": "c"}))
        for first in range(0, count, 1000):
            documents = [document(number) for number in range(first, min(first + 1000, count))]
            call(connection, command({"insert": "c"}, documents=documents))


def _pings(count: int) -> list[bytes]:
    return [command({"ping": 1}, "admin")] * count


def _inserts(count: int) -> list[bytes]:
    return [command({"insert": "c", "ordered": True}, documents=[document(ObjectId())]) for _ in range(count)]


def _batches(count: int) -> list[bytes]:
    return [
        command({"insert": "c", "ordered": True}, documents=[document(ObjectId()) for _ in range(1000)])
        for _ in range(count)
    ]


def _ids(count: int) -> Iterator[int]:
    chance = random.Random(7)
    return (chance.randrange(_STORED) for _ in range(count))


def _finds(count: int) -> list[bytes]:
    return [
        command({"find": "c", "filter": {"_id": number}, "limit": 1, "singleBatch": True}) for number in _ids(count)
    ]


def _updates(count: int) -> list[bytes]:
    return [
        command({"update": "c", "ordered": True}, updates=[{"q": {"_id": number}, "u": {"$inc": {"n": 1}}}])
        for number in _ids(count)
    ]


_OPEN = command({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})


def _more_of(cursor: int) -> bytes:
    body: dict[str, Any] = {"getMore": Int64(cursor), "collection": "c", "maxTimeMS": 30_000}
    return command(body)


def _first_event(target: Target, seconds: float) -> dict[str, Measured]:
    """One watcher: an insert, its commit and its event, all in one figure."""
    rate, cpu_us = _insert_and_all_receive(target, 1, int(seconds * 500))
    return {"insert and its event, 1 watcher": Measured(rate, cpu_us)}


def _more_events(watchers: int) -> Scenario:
    """One insert at a time, brought to all watchers; the CPU time is that of each watcher after the first, which is
    compared with a ping's at as many connections."""
    name = f"getMore of one event, {watchers} watchers"

    def run(target: Target, seconds: float) -> dict[str, Measured]:
        rounds = max(20, int(seconds * 2000 / (watchers + 4)))
        ping = run_each(target, watchers, _pings(max(2000, watchers * 10)))
        _, of_one_us = _insert_and_all_receive(target, 1, rounds)
        rate, of_all_us = _insert_and_all_receive(target, watchers, rounds)
        each_us = (of_all_us - of_one_us) / (watchers - 1)
        return {
            name: Measured(rate * watchers, each_us),
            f"times a ping, {watchers} connections": Measured(each_us / ping.cpu_us, float("nan")),
        }

    return Scenario(name, run)


def _insert_and_all_receive(target: Target, watchers: int, rounds: int) -> tuple[float, float]:
    """Inserts a second and the server's microseconds for each, the next once all have received the event."""
    target.drop()
    _store(target, 0)
    inserts = _inserts(rounds + 20)
    streams = Watchers(target, watchers, _OPEN, _more_of)
    with target.connect() as writer:
        for insert in inserts[:20]:
            call(writer, insert)
            streams.wait_for_all()
        cpu, start = target.cpu_seconds(), time.perf_counter()
        for insert in inserts[20:]:
            call(writer, insert)
            streams.wait_for_all()
        elapsed = time.perf_counter() - start
        used = target.cpu_seconds() - cpu
    streams.close()
    target.drop()
    return rounds / elapsed, used / rounds * 1e6


def _latency(target: Target, seconds: float) -> dict[str, Measured]:
    """100 inserts a second, one watcher: milliseconds from an insert's sending, and from its acknowledgement."""
    target.drop()
    _store(target, 0)
    count = max(200, int(seconds * 100))
    streams = Watchers(target, 1, _OPEN, _more_of)
    sent_ms, acknowledged_ms = [], []
    with target.connect() as writer:
        begin = time.perf_counter()
        for number, insert in enumerate(_inserts(count)):
            time.sleep(max(0.0, begin + number * 0.01 - time.perf_counter()))
            sent = time.perf_counter()
            acknowledged, received = _insert_and_receive(writer, streams, insert)
            sent_ms.append((received - sent) * 1e3)
            acknowledged_ms.append(max(0.0, received - acknowledged) * 1e3)
    streams.close()
    target.drop()
    figures = {}
    for label, times in (("insert sent", sent_ms), ("insert acknowledged", acknowledged_ms)):
        hundredths = statistics.quantiles(times, n=100)
        for title, value in (("p50", hundredths[49]), ("p99", hundredths[98])):
            figures[f"ms from {label} to event, {title}"] = Measured(value, float("nan"))
    return figures


def _insert_and_receive(writer: socket.socket, streams: Watchers, insert: bytes) -> tuple[float, float]:
    """When the insert was acknowledged and when its event was there, whichever came first."""
    channel = Channel(writer)
    channel.send(insert)
    acknowledged = received = 0.0
    with streams.also(channel):
        while not (acknowledged and received):
            for ready in streams.ready(None):
                now = time.perf_counter()
                if ready is channel:
                    check(ready.data)
                    acknowledged = now
                else:
                    received = now if b"operationType" in ready.data else received
                    streams.ask_again(ready)
    return acknowledged, received


def _logins(target: Target, seconds: float) -> dict[str, Measured]:
    """A logout and a login by SCRAM-SHA-256; the CPU time is all of the server's, on its loop and beside."""
    if not target.auth:
        return {}
    with target.connect() as connection:
        cpu = target.cpu_seconds()
        count, elapsed = logins(connection, call, seconds)
        return {"login, SCRAM-SHA-256": Measured(count / elapsed, (target.cpu_seconds() - cpu) / count * 1e6)}


SCENARIOS = (
    _repeated("ping", 1, _pings),
    _repeated("ping, 16 connections", 16, _pings),
    _repeated("insert", 1, _inserts),
    _repeated("insert, 16 connections", 16, _inserts),
    _repeated("insert, 64 connections", 64, _inserts),
    _repeated("insert in batches of 1,000 (documents)", 1, _batches, weight=1000, calibration=5),
    _repeated("find by _id", 1, _finds, stored=_STORED),
    _repeated("find by _id, 16 connections", 16, _finds, stored=_STORED),
    _repeated("update by _id", 1, _updates, stored=_STORED),
    _repeated("update by _id, 16 connections", 16, _updates, stored=_STORED),
    Scenario("insert and its event, 1 watcher", _first_event),
    _more_events(50),
    _more_events(200),
    _more_events(1000),
    Scenario("latency", _latency),
    Scenario("login", _logins),
)
"""In the order in which they are run and shown."""
