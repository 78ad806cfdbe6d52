"""One client's bad message, and faults injected at every seam between shell and core: everybody else goes on."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Int64

import headrace
from headrace.dispatch.engine import Engine
from headrace.server.notifier import Notifier
from headrace.server.peer import Peer
from headrace.store.store import Store
from headrace.wire.connection import Connection
from tests.waiting import until

from .held_writer import hold_the_writer
from .raw import RawClient, message

_BROKEN_DOCUMENT = b"\x0d\x00\x00\x00\x10a\x00\x01\x00\x00\x00\xff\x00"  # its last element has no known type
_MALFORMED_OP_QUERY = (
    struct.pack("<iiii", 16 + 4 + 11 + 8 + len(_BROKEN_DOCUMENT), 9, 0, 2004)
    + struct.pack("<i", 0) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1) + _BROKEN_DOCUMENT
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


def insert(client: RawClient, collection: str, key: int) -> dict[str, Any]:
    return client.ask({"insert": collection, "documents": [{"_id": key}]})


def waiting_get_more(collection: str, cursor: Int64) -> bytes:
    body = {"getMore": cursor, "collection": collection, "maxTimeMS": 20_000, "$db": "t"}
    return message(body, request_id=7)


def test_a_malformed_query_behind_an_insert_stops_no_other_write(server: headrace.Server) -> None:
    with RawClient(server.address) as attacker, RawClient(server.address) as other:
        attacker.socket.sendall(message({"insert": "a", "documents": [{"_id": 1}], "$db": "t"}) + _MALFORMED_OP_QUERY)
        assert attacker.receive()[1]["n"] == 1
        assert insert(other, "b", 1)["n"] == 1
        assert insert(other, "b", 2)["n"] == 1


def test_a_malformed_query_behind_a_waiting_get_more_stops_no_stream(server: headrace.Server) -> None:
    with (
        RawClient(server.address) as attacker,
        RawClient(server.address) as watcher,
        RawClient(server.address) as other,
    ):
        first, second = attacker.watch("c"), watcher.watch("c")
        attacker.socket.sendall(waiting_get_more("c", first) + _MALFORMED_OP_QUERY)
        watcher.socket.sendall(waiting_get_more("c", second))
        for key in range(3):
            assert insert(other, "c", key)["n"] == 1
            events = watcher.receive()[1]["cursor"]["nextBatch"]
            assert [event["documentKey"]["_id"] for event in events] == [key]
            watcher.socket.sendall(waiting_get_more("c", second))


class Fault:
    """Makes the next call of a method raise, once it is armed. `of`: of one object, as other stores may be open."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, error: type[Exception], of: object = None
    ) -> None:  # fmt: skip
        self.armed = False
        original: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.armed and of in (None, arguments[0]):
                self.armed = False
                raise error("injected")
            return original(*arguments, **options)

        monkeypatch.setattr(owner, method, call)


CLIENT_SEAMS = [
    (Connection, "next_event"), (Engine, "command"), (Engine, "run_read"), (Engine, "run_stream"),
    (Engine, "run_write"), (Notifier, "park"), (Peer, "_answer"), (Peer, "_begin"), (Peer, "run"), (Peer, "start"),
]  # fmt: skip
ERRORS = [MemoryError, RecursionError, RuntimeError]


@pytest.mark.parametrize(("owner", "method"), CLIENT_SEAMS)
@pytest.mark.parametrize("what", ["insert", "ping", "getMore"])
def test_an_exception_in_one_clients_turn_is_that_clients_alone(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, what: str
) -> None:
    with contextlib.ExitStack() as opened:
        attacker, watcher, other = (opened.enter_context(RawClient(server.address)) for _ in range(3))
        first, second = attacker.watch("c"), watcher.watch("c")
        watcher.socket.sendall(waiting_get_more("c", second))
        attacker.ask({"create": "x"}, "another")
        fault = Fault(monkeypatch, owner, method, RuntimeError)
        until(lambda: server._running.notifier._parked)
        fault.armed = True
        attacker.send({
            "getMore": {"getMore": first, "collection": "c", "maxTimeMS": 1},
            "insert": {"insert": "x", "documents": [{"_id": 1}]},
            "ping": {"ping": 1},
        }[what], "another" if what == "insert" else "t")  # fmt: skip
        with contextlib.suppress(ConnectionError):
            attacker.receive()
        fault.armed = False
        assert insert(other, "c", 1)["n"] == 1
        assert [event["documentKey"] for event in watcher.receive()[1]["cursor"]["nextBatch"]] == [{"_id": 1}]
        assert server.failure is None


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", ["prepare", "sync"])
def test_a_commit_that_fails_once_is_made_again(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]
) -> None:
    core = server._running
    fault = Fault(monkeypatch, Store, method, error, of=core.store)
    with RawClient(server.address) as client:
        core.loop.call_soon_threadsafe(core.background.stop)  # a job in the same commit would make each run alone
        insert(client, "a", 0)
        fault.armed = True
        assert insert(client, "a", 1)["ok"] == 0.0  # it was alone, so it is the one that has failed
        assert insert(client, "a", 1)["n"] == 1
        assert client.ask({"count": "a"})["n"] == 2


@pytest.mark.parametrize("method", ["begin", "publish"])
def test_a_store_that_cannot_go_on_ends_the_server_and_hangs_nobody(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fault = Fault(monkeypatch, Store, method, RuntimeError, of=server._running.store)
    with RawClient(server.address) as client, RawClient(server.address) as idle:
        idle.ask({"ping": 1})
        fault.armed = True
        client.send({"insert": "a", "documents": [{"_id": 1}]})
        assert client.is_cut_off() and idle.is_cut_off()
        assert server.failure is not None and "injected" in server.failure


def test_a_failing_write_costs_the_others_of_its_group_one_more_run(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: dict[int, int] = {}
    original = Engine.run_write

    def run_write(self: Engine, command: Any, request: Any, txn: Any) -> Any:
        key = request.body["documents"][0]["_id"]
        runs[key] = runs.get(key, 0) + 1
        if key % 10 == 5:
            raise RecursionError("injected")
        return original(self, command, request, txn)

    monkeypatch.setattr(Engine, "run_write", run_write)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(server.address)) for _ in range(50)]
        release = hold_the_writer(server)
        for key, client in enumerate(clients):
            client.send({"insert": "g", "documents": [{"_id": key}]})
        release()
        replies = [client.receive()[1] for client in clients]
        assert [key for key, reply in enumerate(replies) if reply["ok"] == 0.0] == [5, 15, 25, 35, 45]
        assert all(reply["code"] == 15 for reply in replies[5::10])
        assert max(runs.values()) <= 2
        assert clients[0].ask({"count": "g"})["n"] == 45


def test_ids_of_replies_begin_again_after_two_billion(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        client.ask({"ping": 1})
        for peer in server._running.peers:
            peer._replies = 2**31 - 2
        for _ in range(4):
            assert client.ask({"ping": 1})["ok"] == 1.0
