"""Well-behaved clients, each in a process of its own: how long each of their requests waits for its answer.

    ping      a `ping` every 4 ms
    insert    a small document every 8 ms
    watch     an event every 8 ms: the time from an insert's acknowledgement to its event

A request is counted from when it was due: one that takes 50 ms delays those that were due meanwhile, and they count,
too, so that percentiles are of time, not of requests.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import bson
from messages import ERRORS, OK, command, document, reply_document
from target import Target, receive

DATABASE = "honest"
PING_SECONDS = 0.004
WRITE_SECONDS = 0.008
ANSWER_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one client, in milliseconds; `failure` is what ended it, if anything did."""

    worst: float
    percentile_99: float
    count: int
    failure: str = ""


class HonestClient:
    """A process that sends requests from `start` until `stop`."""

    def __init__(self, kind: str, target: Target) -> None:
        context = multiprocessing.get_context("fork")
        self.kind = kind
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(kind, target, theirs, self._ours), daemon=True)
        self._process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """It has connected and been answered."""
        self._ours.recv()

    def start(self) -> None:
        """From now on requests count."""
        self._ours.send("start")

    def stop(self) -> Latency:
        """Ends the process; what it measured."""
        try:
            self._ours.send("stop")
            latency: Latency = self._ours.recv() if self._ours.poll(ANSWER_SECONDS_MAX) else _unanswered()
        except (BrokenPipeError, EOFError):
            latency = Latency(float("inf"), float("inf"), 0, "ended")
        self._process.kill()
        self._process.join()
        self._ours.close()
        return latency


def _unanswered() -> Latency:
    return Latency(float("inf"), float("inf"), 0, "no answer")


def _run(kind: str, target: Target, pipe: Connection, other_end: Connection) -> None:
    other_end.close()
    request, seconds = _KINDS[kind](target)
    request()
    pipe.send("ready")
    pipe.recv()
    waits: list[float] = []
    failure = ""
    while not pipe.poll():
        begun = time.perf_counter()
        try:
            wait = request()
        except (OSError, RuntimeError) as error:
            failure = f"{type(error).__name__}: {error}"[:200]
            waits.append(float("inf"))
            break
        waits.append(wait)
        while (wait := wait - seconds) > 0:
            waits.append(wait)
        time.sleep(max(0.0, begun + seconds - time.perf_counter()))
    waits.sort()
    worst = waits[-1] if waits else float("nan")
    percentile = waits[int(len(waits) * 0.99)] if waits else float("nan")
    pipe.send(Latency(worst * 1000, percentile * 1000, len(waits), failure))
    time.sleep(ANSWER_SECONDS_MAX)


def _asked(connection: socket.socket, message: bytes) -> bytes:
    connection.sendall(message)
    reply = receive(connection)
    if OK not in reply or ERRORS in reply:
        raise RuntimeError(f"refused: {reply_document(reply)}")
    return reply


def _pinging(target: Target) -> tuple[Callable[[], float], float]:
    connection, ping = _connected(target), command({"ping": 1}, "admin")

    def request() -> float:
        begun = time.perf_counter()
        _asked(connection, ping)
        return time.perf_counter() - begun

    return request, PING_SECONDS


def _inserting(target: Target) -> tuple[Callable[[], float], float]:
    connection = _connected(target)

    def request() -> float:
        message = command({"insert": "inserted"}, DATABASE, documents=[document(bson.ObjectId())])
        begun = time.perf_counter()
        _asked(connection, message)
        return time.perf_counter() - begun

    return request, WRITE_SECONDS


def _watching(target: Target) -> tuple[Callable[[], float], float]:
    writer, watcher = _connected(target), _connected(target)
    opening = command({"aggregate": "watched", "pipeline": [{"$changeStream": {}}], "cursor": {}}, DATABASE)
    cursor = bson.Int64(reply_document(_asked(watcher, opening))["cursor"]["id"])
    more = command({"getMore": cursor, "collection": "watched"}, DATABASE)

    def request() -> float:
        watcher.sendall(more)
        _asked(writer, command({"insert": "watched"}, DATABASE, documents=[document(bson.ObjectId())]))
        acknowledged = time.perf_counter()
        while b"operationType" not in (reply := receive(watcher)):
            if OK not in reply:
                raise RuntimeError(f"refused: {reply_document(reply)}")
            watcher.sendall(more)
        return time.perf_counter() - acknowledged

    return request, WRITE_SECONDS


def _connected(target: Target) -> socket.socket:
    connection = target.connect()
    connection.settimeout(ANSWER_SECONDS_MAX)
    return connection


_KINDS: dict[str, Callable[[Target], tuple[Callable[[], float], float]]] = {
    "insert": _inserting,
    "ping": _pinging,
    "watch": _watching,
}
KINDS = ("ping", "insert", "watch")


def lower_priority() -> None:
    """Of an attacker's process, so that the load it makes takes no CPU time from those that measure."""
    os.nice(10)
