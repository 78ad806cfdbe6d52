"""Effects of a lost client: its command ends, and the cursor that it was reading is closed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.dispatch.request import Request
from headrace.store.indexes import index_builds
from tests.waiting import until

from .held_writer import hold_the_writer
from .raw import RawClient

INDEX = {"key": {"n": 1}, "name": "u", "unique": True}


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[headrace.Server]:
    with headrace.Server(tmp_path) as server:
        yield server


def cursors(server: headrace.Server) -> int:
    return len(server._running.engine.cursors)


def waiting(server: headrace.Server, name: str) -> list[Request]:
    return [request for request in server._running.waiting_requests() if request.name == name]


def test_a_client_that_goes_in_the_middle_of_a_build_is_missed(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end, fill = threading.Event(), threading.Event(), index_builds.fill

    def held(*arguments: Any) -> bool:
        has_begun.set()
        may_end.wait(30)
        return fill(*arguments)

    monkeypatch.setattr(index_builds, "fill", held)
    core = server._running
    core.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as other:
        assert other.ask({"insert": "c", "documents": [{"_id": key, "n": key} for key in range(100)]})["n"] == 100
        with RawClient(server.address) as builder:
            builder.send({"createIndexes": "c", "indexes": [INDEX]})
            until(has_begun.is_set)
        may_end.set()
        until(lambda: len(core.peers) == 1)
        until(lambda: not core.engine.builds_of_commands)
        assert other.ask({"createIndexes": "c", "indexes": [INDEX]})["note"] == "all indexes already exist"


def test_a_stream_ends_with_the_client_that_waits_for_it(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        with RawClient(server.address) as watcher:
            cursor = watcher.watch("c")
            for _ in range(2):  # the second is recognised by its bytes
                watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
                until(lambda: waiting(server, "getMore"))
                other.ask({"insert": "c", "documents": [{}]})
                watcher.receive()
            watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
            until(lambda: waiting(server, "getMore"))
            assert cursors(server) == 1
        until(lambda: not cursors(server))
        assert not waiting(server, "getMore")


def test_a_cursor_that_nobody_reads_stays_for_other_connections_of_its_client(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        other.ask({"insert": "c", "documents": [{"_id": key} for key in range(10)]})
        with RawClient(server.address) as reader:
            cursor = reader.ask({"find": "c", "batchSize": 2})["cursor"]["id"]
            stream = reader.watch("c")
            reader.ask({"getMore": cursor, "collection": "c", "batchSize": 2})
        until(lambda: len(server._running.peers) == 1)
        assert len(other.ask({"getMore": cursor, "collection": "c"})["cursor"]["nextBatch"]) == 6
        other.ask({"insert": "c", "documents": [{"_id": 10}]})
        assert len(other.ask({"getMore": stream, "collection": "c"})["cursor"]["nextBatch"]) == 1


@pytest.mark.parametrize("name", ["insert", "update"])
def test_writes_that_are_queued_are_shown_and_can_be_killed(server: headrace.Server, name: str) -> None:
    command: dict[str, Any] = {
        "insert": {"insert": "c", "documents": [{"_id": 1}]},
        "update": {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]},
    }[name]
    with RawClient(server.address) as writer, RawClient(server.address) as other:
        release = hold_the_writer(server)
        writer.send(command)
        until(lambda: waiting(server, name))
        shown = other.ask({"currentOp": 1, "$all": True}, "admin")["inprog"]
        (number,) = [item["opid"] for item in shown if name in item.get("command", {})]
        other.ask({"killOp": 1, "op": number}, "admin")
        assert writer.receive()[1]["code"] == 11601
        release()
        assert other.ask({"count": "c"})["n"] == 0


def test_reads_that_are_queued_or_woken_are_shown_and_can_be_killed(server: headrace.Server) -> None:
    core = server._running
    with RawClient(server.address) as reader, RawClient(server.address) as watcher, RawClient(server.address) as other:
        cursor = watcher.watch("c")
        other.ask({"insert": "c", "documents": [{"_id": 1}]})
        watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
        watcher.receive()
        core.scheduler._begun_count = 1000  # as if many others had begun: the next one is queued
        reader.send({"aggregate": "c", "pipeline": [], "cursor": {}})
        until(lambda: waiting(server, "aggregate"))
        watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
        until(lambda: core.notifier._parked)
        schedule, core.notifier._schedule = core.notifier._schedule, lambda: None  # type: ignore[method-assign]
        other.ask({"insert": "c", "documents": [{"_id": 2}]})
        until(lambda: core.notifier._woken)
        numbers = {
            next(iter(item["command"])): item["opid"]
            for item in other.ask({"currentOp": 1, "$all": True}, "admin")["inprog"]
            if item.get("command", {}).keys() & {"aggregate", "getMore"}
        }
        core.notifier._schedule = schedule  # type: ignore[method-assign]
        for name, client in (("aggregate", reader), ("getMore", watcher)):
            other.ask({"killOp": 1, "op": numbers[name]}, "admin")
            assert client.receive()[1]["code"] == 11601
        core.scheduler._begun_count = 0


@pytest.mark.process
def test_tail_closes_its_stream_when_it_is_terminated(server: headrace.Server) -> None:
    command = [sys.executable, "-m", "headrace", "tail", server.uri]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        until(lambda: waiting(server, "getMore"))
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    until(lambda: not cursors(server))


TCP_REPAIR = 19


def vanish(client: RawClient) -> None:
    """Close a socket without a word to the other side, as a machine does that loses its power."""
    try:
        client.socket.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError as error:
        pytest.skip(f"needs Linux and CAP_NET_ADMIN: {error}")
    client.socket.close()


@pytest.mark.long
def test_a_client_that_has_vanished_is_noticed_by_the_kernel(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEEPALIVE_SECONDS_MAX", 1)
    watcher = RawClient(server.address)
    cursor = watcher.watch("c")
    watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
    until(lambda: waiting(server, "getMore"))
    vanish(watcher)
    assert waiting(server, "getMore") and cursors(server) == 1
    until(lambda: not cursors(server))
    assert not waiting(server, "getMore") and not server._running.peers


def test_sockets_have_mongods_keepalive(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        client.ask({"ping": 1})
        (peer,) = server._running.peers
        connection = peer._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 300
        assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) <= 10
