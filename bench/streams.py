"""What is measured of change streams: many watchers, idle ones, their memory, backlogs, looked-up documents.

CPU times are the server's. "For each further watcher" is the difference to one watcher, so that the insert and the
building of its event are not in it; a burst of inserts is subtracted the same way.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bson import Int64, ObjectId
from loops import Measured, Watchers, check, run_each
from messages import command, document
from scenarios import Scenario
from target import Target, call, receive

_LONG_MS = 600_000
"""How long an idle watcher's getMore waits."""
_IDLE = 1000
_BACKLOG = 100_000
_EVENT = b"\x02operationType\x00"
_NAN = float("nan")

Body = dict[str, Any]


def opening(collection: str, *stages: Body, **options: Any) -> bytes:
    """An aggregation that opens a change stream."""
    return command({"aggregate": collection, "pipeline": [{"$changeStream": options}, *stages], "cursor": {}})


def more_of(collection: str, wait_ms: int = 30_000) -> Callable[[int], bytes]:
    """The getMore of a cursor on this collection."""
    return lambda cursor: command({"getMore": Int64(cursor), "collection": collection, "maxTimeMS": wait_ms})


def inserts(collection: str, count: int, of: int = 1) -> list[bytes]:
    """`count` inserts of `of` documents each."""
    return [
        command({"insert": collection, "ordered": True}, documents=[document(ObjectId()) for _ in range(of)])
        for _ in range(count)
    ]


def fresh(target: Target, *collections: str, images: bool = False) -> None:
    """An empty database with these collections."""
    target.drop()
    more = {"changeStreamPreAndPostImages": {"enabled": True}} if images else {}
    with target.connect() as connection:
        for name in collections:
            call(connection, command({"create": name, **more}))


# Many watchers of one collection.


def _bursts(watchers: int) -> Scenario:
    """Inserts of 100 documents, not waiting for the watchers: what an event costs when they come in batches."""
    name = f"event of a burst, {watchers} watchers"

    def run(target: Target, seconds: float) -> dict[str, Measured]:
        rounds = max(10, int(seconds * 3000 / (watchers + 20)))
        _, alone_us = _burst_and_all_receive(target, 1, rounds)
        rate, all_us = _burst_and_all_receive(target, watchers, rounds)
        return {name: Measured(rate * watchers, (all_us - alone_us) / (watchers - 1))}

    return Scenario(name, run)


def _burst_and_all_receive(target: Target, watchers: int, rounds: int) -> tuple[float, float]:
    """Events a second, and the server's microseconds for each event with its insert, for all watchers together."""
    fresh(target, "c")
    messages = inserts("c", rounds, of=100)
    streams = Watchers(target, watchers, opening("c"), more_of("c"))
    with target.connect() as writer:
        cpu, start = target.cpu_seconds(), time.perf_counter()
        for message in messages:
            call(writer, message)
            streams.wait_for_events(0)
        streams.wait_for_events(rounds * 100)
        elapsed, used = time.perf_counter() - start, target.cpu_seconds() - cpu
    streams.close()
    target.drop()
    return rounds * 100 / elapsed, used / (rounds * 100) * 1e6


def _filtered(watchers: int) -> Scenario:
    """One insert at a time for watchers with a `$match` of their own each; all of them match."""
    name = f"getMore of one event, {watchers} different filters"

    def run(target: Target, seconds: float) -> dict[str, Measured]:
        rounds = max(20, int(seconds * 1000 / (watchers + 4)))
        _, alone_us = _insert_and_filters_receive(target, 1, rounds)
        rate, all_us = _insert_and_filters_receive(target, watchers, rounds)
        return {name: Measured(rate * watchers, (all_us - alone_us) / (watchers - 1))}

    return Scenario(name, run)


def _insert_and_filters_receive(target: Target, watchers: int, rounds: int) -> tuple[float, float]:
    fresh(target, "c")
    messages = inserts("c", rounds)
    matches = [{"$match": {"fullDocument.total": {"$gt": -number}}} for number in range(watchers)]
    streams = Watchers(target, 0, b"", more_of("c"))
    for match in matches:
        streams.add(target, opening("c", match))
    with target.connect() as writer:
        cpu, start = target.cpu_seconds(), time.perf_counter()
        for message in messages:
            call(writer, message)
            streams.wait_for_all()
        elapsed, used = time.perf_counter() - start, target.cpu_seconds() - cpu
    streams.close()
    target.drop()
    return rounds / elapsed, used / rounds * 1e6


# Idle watchers.


def _idle(target: Target, seconds: float) -> dict[str, Measured]:
    """Inserts at 16 connections without and with 1,000 watchers of other collections."""
    trial = _inserting(target, 2000)
    count = max(2000, min(int(trial.per_second * seconds), 50_000))
    before = _inserting(target, count)
    streams, _ = _waiting(target)
    with_streams = _inserting(target, count)
    streams.close()
    after = _inserting(target, count)
    target.drop()
    without_us, without = (before.cpu_us + after.cpu_us) / 2, (before.per_second + after.per_second) / 2
    return {
        "insert, 16 connections, before and after": Measured(without, without_us),
        f"insert with_streams {_IDLE:,} idle watchers": with_streams,
    }


_memory: dict[str, float] = {}
"""By server, what its first round gave: in a later one it would use again what the first has given back."""


def _memory_each(target: Target, seconds: float) -> dict[str, Measured]:
    """What a waiting watcher holds beyond its connection; right only of a server that has done little else before."""
    if target.name not in _memory:
        fresh(target)
        streams, _memory[target.name] = _waiting(target)
        streams.close()
        target.drop()
    return {f"KiB of memory a waiting watcher, of {_IDLE:,}": Measured(_memory[target.name] / 1024, _NAN)}


def _inserting(target: Target, count: int) -> Measured:
    fresh(target, "c")
    return run_each(target, 16, inserts("c", count))


def _waiting(target: Target) -> tuple[Watchers, float]:
    """Idle watchers, one on each of so many collections, and the memory each takes beyond its connection."""
    sockets = [target.connect() for _ in range(_IDLE)]
    connected = _resident_bytes(target)
    streams = Watchers(target, 0, b"", more_of("c"))
    for number, connection in enumerate(sockets):
        streams.take(connection, opening(f"other{number}"), more_of(f"other{number}", _LONG_MS))
    time.sleep(0.5)
    return streams, (_resident_bytes(target) - connected) / _IDLE


def _resident_bytes(target: Target) -> float:
    """What the server's process holds in memory of its own, from /proc; mapped files are not counted."""
    path = Path(f"/proc/{target.pid}/status")
    if target.pid is None or not path.exists():
        return _NAN
    line = next(line for line in path.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024.0


# Backlogs.


def _backlog(target: Target, seconds: float) -> dict[str, Measured]:
    """100,000 events behind: the first reply, reading on to the end, and a stream that one event in 100 concerns."""
    token = _fill_backlog(target)
    figures = {}
    firsts, alls, fews = [], [], []
    for _ in range(3):
        firsts.append(_first_reply(target, token))
        alls.append(_read_backlog(target, "c", _BACKLOG - _BACKLOG // 100, token))
        fews.append(_read_backlog(target, "few", _BACKLOG // 100, token))
    target.drop()
    everything, few = _median(alls), _median(fews)
    figures["ms to the first reply, 100,000 events behind"] = Measured(
        statistics.median(first.per_second for first in firsts), statistics.median(first.cpu_us for first in firsts)
    )
    figures["event of a backlog"] = everything
    figures["event of a backlog, 1 in 100 in scope"] = few
    ratio = everything.cpu_us * (_BACKLOG - _BACKLOG // 100) / (few.cpu_us * (_BACKLOG // 100))
    figures["times cheaper in all, 1 in 100 in scope"] = Measured(ratio, _NAN)
    return figures


def _median(measured: list[Measured]) -> Measured:
    return Measured(
        statistics.median(one.per_second for one in measured), statistics.median(one.cpu_us for one in measured)
    )


def _fill_backlog(target: Target) -> dict[str, Any]:
    """99 inserts into `c`, one into `few`, and so on; answers a token from before the first of them."""
    fresh(target, "c", "few")
    with target.connect() as connection:
        reply = call(connection, command({"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}))
    many, few = inserts("c", 250, of=99), inserts("few", 250)
    messages = [message for pair in zip(many, few, strict=True) for message in pair] * 4
    with target.connect() as connection:
        for number, message in enumerate(messages):
            call(connection, _with_new_ids(message) if number >= 500 else message)
    token: dict[str, Any] = reply["cursor"]["postBatchResumeToken"]
    return token


def _with_new_ids(message: bytes) -> bytes:
    """The same insert with other `_id`s."""
    pieces = message.split(b"\x07_id\x00")
    return pieces[0] + b"".join(b"\x07_id\x00" + os.urandom(12) + part[12:] for part in pieces[1:])


def _first_reply(target: Target, token: dict[str, Any]) -> Measured:
    with target.connect() as connection:
        cpu, start = target.cpu_seconds(), time.perf_counter()
        call(connection, opening("c", resumeAfter=token))
        return Measured((time.perf_counter() - start) * 1e3, (target.cpu_seconds() - cpu) * 1e6)


def _read_backlog(target: Target, collection: str, count: int, token: dict[str, Any], **options: Any) -> Measured:
    """Open a stream at the token and read `count` events, counting them in the raw replies."""
    with target.connect() as connection:
        cpu, start = target.cpu_seconds(), time.perf_counter()
        connection.sendall(opening(collection, resumeAfter=token, **options))
        reply = receive(connection)
        check(reply)
        received = reply.count(_EVENT)
        more = more_of(collection)(_cursor_in(reply))
        while received < count:
            connection.sendall(more)
            reply = receive(connection)
            check(reply)
            received += reply.count(_EVENT)
        elapsed, used = time.perf_counter() - start, target.cpu_seconds() - cpu
        call(connection, command({"killCursors": collection, "cursors": [Int64(_cursor_in(reply))]}))
    return Measured(count / elapsed, used / count * 1e6)


def _cursor_in(reply: bytes) -> int:
    at = reply.rindex(b"\x12id\x00") + 4
    return int.from_bytes(reply[at : at + 8], "little")


# Documents as they are and as they were.


def _images(target: Target, seconds: float) -> dict[str, Measured]:
    """A backlog of updates, read plainly and with what has to be looked up for each event."""
    count = 10_000
    fresh(target, "c", images=True)
    with target.connect() as connection:
        for first in range(0, count, 1000):
            documents = [document(number) for number in range(first, first + 1000)]
            call(connection, command({"insert": "c"}, documents=documents))
        reply = call(connection, opening("c"))
        for first in range(0, count, 1000):
            changes = [{"q": {"_id": number}, "u": {"$inc": {"n": 1}}} for number in range(first, first + 1000)]
            call(connection, command({"update": "c"}, updates=changes))
    token = reply["cursor"]["postBatchResumeToken"]
    figures = {}
    for title, options in _LOOKUPS.items():
        try:
            rounds = [_read_backlog(target, "c", count, token, **options) for _ in range(3)]
        except RuntimeError:  # a server without images
            continue
        figures[f"update event of a backlog, {title}"] = _median(rounds)
    target.drop()
    return figures


_LOOKUPS: dict[str, dict[str, str]] = {
    "plain": {},
    "updateLookup": {"fullDocument": "updateLookup"},
    "post-image": {"fullDocument": "required"},
    "pre-image": {"fullDocumentBeforeChange": "required"},
    "both images": {"fullDocument": "required", "fullDocumentBeforeChange": "required"},
}


# A writer with_streams watchers.


def _writer(target: Target, seconds: float) -> dict[str, Measured]:
    """50 inserts a second, each acknowledged before the next, without watchers and while 200 are fed."""
    count = max(100, int(seconds * 50))
    fresh(target, "c")
    alone = _paced(target, count)
    with _fed_watchers(target, 200):
        with_streams = _paced(target, count)
    target.drop()
    return {
        "ms to insert alone, p50": Measured(alone[49], _NAN),
        "ms to insert alone, p99": Measured(alone[98], _NAN),
        "ms to insert while 200 watchers are fed, p50": Measured(with_streams[49], _NAN),
        "ms to insert while 200 watchers are fed, p99": Measured(with_streams[98], _NAN),
        "times longer while 200 watchers are fed, p99": Measured(with_streams[98] / alone[98], _NAN),
    }


def _paced(target: Target, count: int) -> list[float]:
    """Hundredths of the milliseconds from an insert to its acknowledgement."""
    times = []
    with target.connect() as connection:
        begin = time.perf_counter()
        for number, message in enumerate(inserts("c", count)):
            time.sleep(max(0.0, begin + number * 0.02 - time.perf_counter()))
            sent = time.perf_counter()
            call(connection, message)
            times.append((time.perf_counter() - sent) * 1e3)
    return statistics.quantiles(times, n=100)


@contextmanager
def _fed_watchers(target: Target, watchers: int) -> Iterator[None]:
    """So many change streams read by another process, so that the writer's clock is not held up by reading."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_watch_for_ever, args=(target, watchers, ready), daemon=True)
    process.start()
    ready.wait(60)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _watch_for_ever(target: Target, watchers: int, ready: Any) -> None:
    streams = Watchers(target, watchers, opening("c"), more_of("c"))
    ready.set()
    while True:
        for channel in streams.ready(None):
            streams.ask_again(channel)


MEMORY = Scenario("memory of waiting watchers", _memory_each)
"""To be run first."""

STREAMS = (
    _filtered(50),
    _bursts(50),
    _bursts(200),
    Scenario("idle watchers", _idle),
    Scenario("backlog", _backlog),
    Scenario("images and lookups", _images),
    Scenario("writer with_streams watchers", _writer),
)
"""In the order in which they are run and shown, after those of `scenarios.py`."""
