"""Clients that leave, and what they sent or ran: nothing of it waits for Python's collector."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace.server.measured_memory import return_freed_memory
from tests.garbage import garbage
from tests.waiting import until

from ..raw import RawClient, message

BODY: dict[str, Any] = {"insert": "c", "documents": [{}] * 50_000, "$db": "t"}
READ: dict[str, Any] = {
    "aggregate": 1, "cursor": {},
    "pipeline": [{"$documents": [{}]}, {"$project": {"x": {"$range": [0, 100_000]}}}, {"$unwind": "$x"}, {"$group": {
        "_id": "$x"}}, {"$match": {"_id": -1}}],
}  # fmt: skip
WRITE: dict[str, Any] = {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]}


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    """A server whose commands pause at every tick."""
    with headrace.Server() as server:
        with RawClient(server.address) as client:
            assert client.ask({"insert": "c", "documents": [{"n": 0}] * 5000})["n"] == 5000
        server._running.scheduler.turns.seconds = 0.0
        yield server


def leave(server: headrace.Server, sent: Callable[[RawClient], None], *, runs: bool) -> None:
    """Send something as a client that leaves; `runs`: once it runs. Returns when the server is done with it."""
    core, left = server._running, threading.Event()

    def leave_once_it_runs() -> None:
        """In the server's thread, which cannot miss it."""
        if not (core.scheduler._paused or core.writer._paused):
            core.loop.call_soon(leave_once_it_runs)
            return
        client.socket.shutdown(socket.SHUT_RDWR)
        left.set()

    with RawClient(server.address) as client:
        if runs:
            core.loop.call_soon_threadsafe(leave_once_it_runs)
        sent(client)
        assert not runs or left.wait(60)
    until(lambda: not (core.peers or core.scheduler._paused or core.writer._paused))


LEFT: dict[str, tuple[Callable[[RawClient], None], bool]] = {
    "a message that is being read": (lambda client: client.socket.sendall(message(BODY)), True),
    "a reading command": (lambda client: client.send(READ), True),
    "a writing command": (lambda client: client.send(WRITE), True),
    "half a message": (lambda client: client.socket.sendall(message(BODY)[:300_000]), False),
    "a message of no known kind": (
        lambda client: client.socket.sendall(struct.pack("<8i", 30, 1, 0, 999, *range(4))), False),
    "a message whose lengths are wrong": (
        lambda client: client.socket.sendall(message({"ping": 1, "$db": "t"}).replace(b"ping", b"pi\0g")), False),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_a_client_that_leaves_leaves_nothing_to_the_collector(server: headrace.Server, what: str) -> None:
    sent, runs = LEFT[what]
    assert garbage(lambda: leave(server, sent, runs=runs)) == []


@pytest.mark.parametrize("body", [READ, WRITE], ids=["a read", "a write"])
def test_a_command_whose_time_is_up_leaves_nothing_to_the_collector(
    server: headrace.Server, body: dict[str, Any]
) -> None:
    with RawClient(server.address) as client:
        assert garbage(lambda: client.ask({**body, "maxTimeMS": 5})) == []


def test_the_c_library_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """ctypes makes a class for each time, in a cycle, and a server returns memory again and again."""
    return_freed_memory()
    monkeypatch.setattr(ctypes, "CDLL", None)
    return_freed_memory()
