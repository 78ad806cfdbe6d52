"""Clients that send many messages at once: others are served in between, and what one that has gone left is not run."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.clock import monotonic
from headrace.dispatch.engine import Engine
from headrace.server import peer, scheduler
from headrace.server.scheduler import CROWDED_COUNT
from tests.waiting import until

from .raw import RawClient, message


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        running._running.scheduler.eager_seconds = 0.0
        yield running


@pytest.fixture
def served(server: headrace.Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connection of each command of the server that reads, in order."""
    numbers: list[int] = []
    original = Engine.run_read

    def run_read(self: Engine, command: Any, request: Any) -> Any:
        if self is server._running.engine:
            numbers.append(request.client.connection_id)
        return original(self, command, request)

    monkeypatch.setattr(Engine, "run_read", run_read)
    return numbers


def hold_the_loop(server: headrace.Server) -> threading.Event:
    """Keep the server from reading its sockets until the event is set."""
    held, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        go_on.wait()

    server._running.loop.call_soon_threadsafe(wait)
    held.wait()
    return go_on


def pings(count: int) -> bytes:
    return message({"ping": 1, "$db": "t"}) * count


def test_a_client_with_one_message_is_served_between_those_of_eager_ones(
    server: headrace.Server, served: list[int]
) -> None:
    with RawClient(server.address) as eager, RawClient(server.address) as second, RawClient(server.address) as other:
        numbers = [client.ask({"connectionStatus": 1})["ok"] and served[-1] for client in (eager, second, other)]
        del served[:]
        go_on = hold_the_loop(server)
        eager.socket.sendall(pings(500))
        second.socket.sendall(pings(100))
        other.send({"ping": 1})
        go_on.set()
        for client, count in ((eager, 500), (second, 100), (other, 1)):
            for _ in range(count):
                assert client.receive()[1]["ok"] == 1.0
        assert served.index(numbers[2]) < 10
        assert served.index(numbers[1]) < 10
        last_of_second = len(served) - served[::-1].index(numbers[1])
        assert last_of_second < 450


def test_what_a_client_has_left_in_the_queue_is_not_run(server: headrace.Server, served: list[int]) -> None:
    with RawClient(server.address) as other:
        other.ask({"ping": 1})
        with RawClient(server.address) as eager:
            eager.ask({"ping": 1})
            number = served[-1]
            go_on = hold_the_loop(server)
            eager.socket.sendall(pings(2000))
        go_on.set()
        until(lambda: all(one.client.connection_id != number for one in server._running.peers.copy()))
        before = served.count(number)
        for _ in range(20):
            other.ask({"ping": 1})
        assert served.count(number) == before < 2000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that a client has left before all is read")
def test_clients_that_left_before_they_were_accepted_are_not_served(server: headrace.Server, served: list[int]) -> None:
    with RawClient(server.address) as other:
        other.ask({"ping": 1})
        del served[:]
        go_on = hold_the_loop(server)
        for _ in range(200):
            with RawClient(server.address) as left:
                left.socket.sendall(pings(10))
        with RawClient(server.address) as new:
            new.send({"ping": 1})
            go_on.set()
            assert new.receive()[1]["ok"] == 1.0
            assert len(served) == 1


def test_answers_of_an_eager_client_come_in_order(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        sent = b"".join(
            message({"insert": "c", "documents": [{"_id": number}], "$db": "t"} if number % 3 else
                    {"find": "c", "$db": "t"}, request_id=number)
            for number in range(1, 200)
        )  # fmt: skip
        client.socket.sendall(sent)
        assert [client.receive()[0] for _ in range(1, 200)] == list(range(1, 200))


def test_of_many_long_commands_that_come_at_once_only_some_begin_before_others_are_served(
    server: headrace.Server, served: list[int]
) -> None:
    server._running.scheduler.turns.seconds = 0.0
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(40)]
        other = stack.enter_context(RawClient(server.address))
        clients[0].ask({"insert": "c", "documents": [{"n": number} for number in range(200)]})
        number = other.ask({"connectionStatus": 1})["ok"] and served[-1]
        del served[:]
        go_on = hold_the_loop(server)
        for client in clients:
            client.send({"find": "c", "filter": {"n": {"$lt": 0}}})
        other.send({"ping": 1})
        go_on.set()
        assert other.receive()[1]["ok"] == 1.0
        assert [client.receive()[1]["ok"] for client in clients] == [1.0] * 40
        assert served.index(number) <= CROWDED_COUNT + 2
        assert len(served) == 41


def test_a_queued_command_of_a_client_that_has_gone_is_not_run(server: headrace.Server, served: list[int]) -> None:
    server._running.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as other:
        other.ask({"insert": "c", "documents": [{"n": number} for number in range(200)]})
        go_on = hold_the_loop(server)
        for _ in range(40):
            with RawClient(server.address) as client:
                client.send({"find": "c", "filter": {"n": {"$lt": 0}}})
        go_on.set()
        until(lambda: len(server._running.peers) <= 1 and not server._running.waiting_requests())
        assert not server._running.scheduler._queued
        assert not server._running.scheduler._by_connection


def test_a_command_that_is_cut_off_for_its_memory_goes_first(server: headrace.Server) -> None:
    scheduler = server._running.scheduler
    scheduler.turns.seconds = 0.0
    positions: list[int] = []

    def cut_off() -> None:
        if len(scheduler._paused) < 5:
            server._running.loop.call_soon(cut_off)
            return
        turn = scheduler._paused[3].turn
        scheduler._out_of_memory(turn)
        positions.append([paused.turn for paused in scheduler._paused].index(turn))

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(5)]
        clients[0].ask({"insert": "c", "documents": [{"n": number} for number in range(2000)]})
        go_on = hold_the_loop(server)
        server._running.loop.call_soon_threadsafe(cut_off)
        for client in clients:
            client.send({"find": "c", "filter": {"n": {"$lt": 0}}})
        go_on.set()
        assert sorted(client.receive()[1].get("code", 0) for client in clients) == [0, 0, 0, 0, 146]
    assert positions == [0]


def served_between(
    server: headrace.Server, served: list[int], command: dict[str, Any], count: int = 4
) -> tuple[int, list[dict[str, Any]]]:
    """The number of commands that began before the ping of a client that came last, and the other clients' answers."""
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(server.address)) for _ in range(count)]
        other = opened.enter_context(RawClient(server.address))
        other.ask({"ping": 1})
        number = served[-1]
        del served[:]
        go_on = hold_the_loop(server)
        for client in clients:
            client.send(command)
        other.send({"ping": 1})
        go_on.set()
        assert other.receive()[1]["ok"] == 1.0
        return served.index(number), [client.receive()[1] for client in clients]


def test_long_messages_of_many_clients_are_read_one_after_the_other(
    server: headrace.Server, served: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_DECODED_BYTES_MAX", 1000)
    command = {"count": "c", "query": {}, "comment": "x" * 2000}
    before, answers = served_between(server, served, command)
    assert before <= 1
    assert all(answer["n"] == 0 for answer in answers)


def test_a_read_whose_document_takes_long_is_not_followed_by_another_at_once(
    server: headrace.Server, served: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [0.0]
    original = Engine.run_read

    def take_a_second(self: Engine, command: Any, request: Any) -> Any:
        answer = original(self, command, request)
        late[0] += command.name == "count"
        return answer

    monkeypatch.setattr(Engine, "run_read", take_a_second)
    monkeypatch.setattr(scheduler, "monotonic", lambda: monotonic() + late[0])
    before, answers = served_between(server, served, {"count": "c"})
    assert before <= 1
    assert all(answer["n"] == 0 for answer in answers)
