"""A server whose process has more memory than it may: the youngest long command ends."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace import limits
from headrace.memory_budget import Memory
from headrace.server import process
from headrace.server.measured_memory import MeasuredMemory, resident_bytes
from headrace.time_limit import watch
from headrace.turns import Turn
from tests.waiting import until

from ..raw import RawClient
from .test_turns import ENDLESS, LONG_FIND, ask_compressed, running

MEGABYTE = 1024 * 1024
LIMIT = 20 * MEGABYTE
EXCEEDED = int(LIMIT * limits.MEMORY_EXCEEDED_SHARE) + 1


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server(memory_bytes_max=LIMIT) as running:
        yield running


@pytest.fixture
def other(server: headrace.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        client.ask({"insert": "c", "documents": [{"_id": 1}]})
        yield client


@pytest.fixture
def clients(server: headrace.Server) -> Iterator[tuple[RawClient, RawClient]]:
    with RawClient(server.address) as first, RawClient(server.address) as second:
        yield first, second


def begin(clients: tuple[RawClient, RawClient], other: RawClient) -> None:
    """Have the first client and then the second begin a command that does not end by itself."""
    for number, client in enumerate(clients, 1):
        client.send(ENDLESS, "admin")
        until(lambda: len(running(other, "aggregate")) == number)  # noqa: B023  (called at once)


def in_loop(scheduler: Any, change: Callable[[], None]) -> None:
    """Change something between two turns: in the middle of one, its command would seem to have grown by all of it."""
    changed = threading.Event()
    scheduler._core.loop.call_soon_threadsafe(lambda: (change(), changed.set()))
    assert changed.wait(60)


def exceed(scheduler: Any) -> None:
    """Have the process too much memory until a command ends for it."""
    ended: list[Turn] = []
    end_one = scheduler._out_of_memory

    def noted(turn: Turn) -> None:
        ended.append(turn)
        end_one(turn)

    def change() -> None:
        scheduler._out_of_memory = noted
        scheduler.measured.resident = lambda: 0 if ended else EXCEEDED

    in_loop(scheduler, change)


def end(clients: tuple[RawClient, ...], other: RawClient) -> list[int]:
    """Kill all commands; the codes of their answers."""
    for operation in running(other, "aggregate"):
        other.ask({"killOp": 1, "op": operation["opid"]}, "admin")
    return [client.receive()[1]["code"] for client in clients]


def test_memory_is_exceeded_from_nine_eighths_on() -> None:
    measured = MeasuredMemory(Memory(LIMIT))
    assert measured.excess() == 0
    for used, expected in ((EXCEEDED - 1, 0), (EXCEEDED, EXCEEDED)):
        measured.resident = lambda used=used: used  # type: ignore[misc]
        assert measured.excess() == expected


def test_freed_memory_is_returned_before_anything_ends() -> None:
    measured, resident = MeasuredMemory(Memory(LIMIT)), [EXCEEDED]
    measured.resident, measured.return_freed = lambda: resident[0], resident.reverse
    resident.append(0)
    assert measured.excess() == 0
    assert resident == [0, EXCEEDED]


def test_the_memory_of_this_process_is_measured() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MEGABYTE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(b"x" * len(held))
        assert resident_bytes() - before > 32 * MEGABYTE


def test_the_youngest_command_ends_where_memory_is_exceeded(
    server: headrace.Server, other: RawClient, clients: tuple[RawClient, RawClient]
) -> None:
    scheduler = server._running.scheduler
    begin(clients, other)
    exceed(scheduler)
    assert clients[1].receive()[1]["code"] == 146
    assert end(clients[:1], other) == [11601]
    assert other.ask({"serverStatus": 1}, "admin")["mem"]["cutOff"] == 1


def test_the_process_is_measured_from_the_beginning(server: headrace.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before modules are imported that take a second or two."""
    monkeypatch.setattr("gc.set_threshold", lambda *counts: None)
    monkeypatch.setattr(watch, "memory_is_exceeded", lambda: False)
    tending = process.tend(server._running)
    tending.send(None)
    tending.close()
    assert server._running.scheduler.measured.resident is resident_bytes


def test_a_long_write_ends_too(server: headrace.Server, other: RawClient, clients: tuple[RawClient, RawClient]) -> None:
    core = server._running
    assert clients[0].ask({"insert": "c", "documents": [{"n": 0} for _ in range(5000)]})["n"] == 5000
    slow = {"$reduce": {"input": {"$range": [0, 3000]}, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}
    clients[0].send({"update": "c", "updates": [{"q": {}, "u": [{"$set": {"n": slow}}], "multi": True}]})
    until(lambda: running(other, "update"))
    core.scheduler.measured.resident = lambda: EXCEEDED
    assert clients[0].receive()[1]["code"] == 146
    core.scheduler.measured.resident = None
    assert other.ask({"count": "c", "query": {"n": 0}})["n"] > 0


def test_the_largest_account_is_released_where_accounts_count_most(
    server: headrace.Server, other: RawClient, clients: tuple[RawClient, RawClient]
) -> None:
    core = server._running
    fields = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    insert = {"insert": "c", "documents": [{"b": Binary(bytes(3 * MEGABYTE))}]}
    assert clients[0].ask({**insert, **fields, "startTransaction": True})["ok"] == 1.0
    assert clients[0].ask({**insert, **fields})["ok"] == 1.0
    clients[1].send(ENDLESS, "admin")
    until(lambda: running(other, "aggregate"))
    core.scheduler.measured.resident = lambda: EXCEEDED if core.store.memory.used else 0
    until(lambda: not core.store.memory.used)
    assert clients[0].ask({"commitTransaction": 1, **fields}, "admin")["code"] == 251
    assert end(clients[1:], other) == [11601]


def test_a_cursor_is_closed_though_less_is_counted_than_the_limit(
    server: headrace.Server, other: RawClient, clients: tuple[RawClient, RawClient]
) -> None:
    core = server._running
    clients[0].ask({"insert": "d", "documents": [{"b": Binary(bytes(MEGABYTE // 4))} for _ in range(6)]})
    cursor, *_ = [clients[0].ask({"find": "d", "batchSize": 1})["cursor"]["id"] for _ in range(14)]
    assert LIMIT // 2 < core.store.memory.used < LIMIT * 0.9
    clients[1].send(ENDLESS, "admin")
    until(lambda: running(other, "aggregate"))
    core.scheduler.measured.resident = lambda: EXCEEDED if core.store.memory.used > LIMIT // 2 else 0
    until(lambda: core.store.memory.used < LIMIT // 2)
    assert clients[0].ask({"getMore": Int64(cursor), "collection": "d"})["code"] == 43
    assert end(clients[1:], other) == [11601]


def test_a_command_ends_where_no_account_gives_anything_back(
    server: headrace.Server, other: RawClient, clients: tuple[RawClient, RawClient]
) -> None:
    core = server._running
    core.store.memory.account("stuck", may_close=False).add(LIMIT // 2 + 1)
    begin(clients, other)
    exceed(core.scheduler)
    assert clients[1].receive()[1]["code"] == 146
    assert end(clients[:1], other) == [11601]


def test_a_command_is_as_old_as_its_message(server: headrace.Server, other: RawClient) -> None:
    scheduler = server._running.scheduler
    scheduler.turns.seconds, began = 0.0, dict[str, float]()
    add = scheduler._add

    def noted(paused: Any) -> None:
        add(paused)
        began["message" if paused.request is None else "command"] = paused.since

    scheduler._add = noted  # type: ignore[method-assign]
    assert ask_compressed(other, LONG_FIND)["ok"] == 1.0
    assert began["command"] == began["message"]
