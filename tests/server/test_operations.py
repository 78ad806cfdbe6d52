"""currentOp shows each command that has come and has not been answered, wherever it waits, and killOp ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace.commands.users import changing_users
from headrace.server import writer as writer_module
from tests.waiting import until

from .held_writer import hold_the_writer
from .raw import RawClient


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[headrace.Server]:
    with headrace.Server(tmp_path, enable_test_commands=True) as server, RawClient(server.address) as client:
        client.ask({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        client.ask({"create": "d"})
        yield server


def shown(other: RawClient, name: str) -> list[int]:
    """The numbers of the operations that run a command."""
    listed = other.ask({"currentOp": 1, "$all": True}, "admin")["inprog"]
    return [item["opid"] for item in listed if item["type"] == "op" and name in item.get("command", {})]


def number_of(other: RawClient, name: str) -> int:
    (number,) = until(lambda: shown(other, name))
    return number


def kill(other: RawClient, number: int) -> None:
    assert other.ask({"killOp": 1, "op": number}, "admin")["ok"] == 1.0


def assert_is_killed(client: RawClient, other: RawClient, name: str, then: Callable[[], object] = lambda: None) -> None:
    """It is shown once, and ends with 11601; `then` is called behind killOp."""
    kill(other, number_of(other, name))
    then()
    assert client.receive()[1]["code"] == 11601
    until(lambda: not shown(other, name))


def blocked_derivation(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Passwords are computed once this is set."""
    may_end, original = threading.Event(), changing_users.derive_all

    def derive_all(*arguments: Any) -> Any:
        may_end.wait(60)
        return original(*arguments)

    monkeypatch.setattr(changing_users, "derive_all", derive_all)
    return may_end


def test_a_command_whose_password_is_computed_is_shown_and_killed(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = blocked_derivation(monkeypatch)
    with RawClient(server.address) as client, RawClient(server.address) as other:
        client.send({"createUser": "ann", "pwd": "a", "roles": []}, "admin")
        assert_is_killed(client, other, "createUser", may_end.set)
        assert other.ask({"usersInfo": "ann"}, "admin")["users"] == []
        assert client.ask({"ping": 1})["ok"] == 1.0


def test_a_command_that_a_fail_point_holds_is_shown_and_killed(server: headrace.Server) -> None:
    with RawClient(server.address) as client, RawClient(server.address) as other:
        data = {"failCommands": ["insert"], "blockConnection": True, "blockTimeMS": 300}
        other.ask({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}, "admin")
        client.send({"insert": "c", "documents": [{"_id": 2}]})
        assert_is_killed(client, other, "insert")
        assert other.ask({"count": "c"})["n"] == 1


def test_a_write_whose_commit_is_on_its_way_to_the_disk_is_shown(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SLOW_COMMIT_MS", -1.0)
    has_begun, may_end, store = threading.Event(), threading.Event(), server._running.store
    sync = store.sync

    def held(txn: Any) -> None:
        has_begun.set()
        may_end.wait(60)
        sync(txn)

    monkeypatch.setattr(store, "sync", held)
    with RawClient(server.address) as client, RawClient(server.address) as other:
        client.send({"insert": "c", "documents": [{"_id": 2}]})
        until(has_begun.is_set)
        kill(other, number_of(other, "insert"))  # which comes too late
        may_end.set()
        assert client.receive()[1]["n"] == 1
        assert not shown(other, "insert")


MULTI = {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]}


def test_writes_whose_transaction_a_thread_begins_are_shown_and_killed(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, may_begin = server._running, threading.Event()
    begin = core.store.environment.begin_write_in

    def held(call: Any) -> Any:
        may_begin.wait(30)
        return begin(call)

    clients = [RawClient(server.address) for _ in range(3)]
    with RawClient(server.address) as other:
        monkeypatch.setattr(core.store.environment, "begin_write_in", held)
        core.writer._commit_ms = 1000.0  # as on a slow disk
        release = hold_the_writer(server)
        for key, client in enumerate(clients, 10):
            client.send({"insert": "c", "documents": [{"_id": key}]})
            until(lambda count=key - 9: len(core.writer.requests()) == count)
        release()
        until(lambda: core.writer._group is not None)
        try:
            numbers = until(lambda: shown(other, "insert"))
            assert len(numbers) == 3
            for number in sorted(numbers)[:2]:  # the first of the group is among them
                kill(other, number)
            killed = [peer for peer in core.peers if peer.client.connection_id in sorted(numbers)[:2]]
            until(lambda: all(peer.request is None for peer in killed))
        finally:
            may_begin.set()
        assert [client.receive()[1].get("code", 0) for client in clients] == [11601, 11601, 0]
        assert other.ask({"count": "c", "query": {"_id": {"$gte": 10}}})["n"] == 1
    for client in clients:
        client.socket.close()


def transaction(client: RawClient, **body: Any) -> dict[str, Any]:
    """A statement of the client's transaction."""
    lsid = {"id": Binary(bytes(16), 4)}
    return client.ask({**body, "lsid": lsid, "txnNumber": Int64(1), "autocommit": False})


SET = {"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}
BLOCKED: dict[str, dict[str, Any]] = {
    "update": {"update": "c", "updates": [SET]},
    "delete": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},  # in a turn, which pauses
    "drop": {"drop": "c"},
    "createIndexes": {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]},
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_write_that_waits_for_a_lock_is_shown_and_killed(server: headrace.Server, name: str) -> None:
    with RawClient(server.address) as client, RawClient(server.address) as other, RawClient(server.address) as holder:
        assert transaction(holder, update="c", updates=[SET], startTransaction=True)["n"] == 1
        client.send(BLOCKED[name])
        assert_is_killed(client, other, name)
        assert transaction(holder, update="c", updates=[SET])["n"] == 1
        assert client.ask({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1, "a": 1}]


def test_a_write_that_is_to_wait_for_a_lock_is_killed_while_its_group_is_committed(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "SLOW_COMMIT_MS", -1.0)
    may_end, store = threading.Event(), server._running.store
    sync = store.sync
    with RawClient(server.address) as client, RawClient(server.address) as other, RawClient(server.address) as holder:
        assert transaction(holder, update="c", updates=[SET], startTransaction=True)["n"] == 1
        monkeypatch.setattr(store, "sync", lambda txn: (may_end.wait(60), sync(txn)))
        client.send(BLOCKED["drop"])
        until(lambda: server._running.writer._group is not None and server._running.writer._group.answers)
        kill(other, number_of(other, "drop"))
        may_end.set()
        assert client.receive()[1]["code"] == 11601


@pytest.mark.parametrize("name", ["drop", "update"])
def test_a_write_whose_lock_is_gone_is_killed_before_it_runs_again(server: headrace.Server, name: str) -> None:
    """Between the end of the transaction, which wakes it, and its next run: in the notifier, or in the writer."""
    core: Any = {"drop": server._running.notifier, "update": server._running.writer}[name]
    with RawClient(server.address) as client, RawClient(server.address) as other, RawClient(server.address) as holder:
        assert transaction(holder, update="c", updates=[SET], startTransaction=True)["n"] == 1
        client.send(BLOCKED[name])
        until(lambda: server._running.notifier._parked or server._running.writer._blocked)
        schedule, core._schedule = core._schedule, lambda: None
        holder.ask({"killSessions": [{"id": Binary(bytes(16), 4)}]}, "admin")
        (number,) = shown(other, name)
        kill(other, number)
        core._schedule = schedule
        server._running.loop.call_soon_threadsafe(schedule)
        assert client.receive()[1]["code"] == 11601
        assert client.ask({"find": "c"})["cursor"]["firstBatch"] == [{"_id": 1, "a": 1}]


def test_a_getmore_that_waits_is_shown_and_killed(server: headrace.Server) -> None:
    with RawClient(server.address) as client, RawClient(server.address) as other:
        cursor = client.watch("c")
        for _ in range(3):  # the later ones are recognised by their bytes
            client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000})
            assert_is_killed(client, other, "getMore")
            cursor = client.watch("c")


@pytest.mark.parametrize("name", ["aggregate", "update"])
def test_a_command_that_has_paused_is_shown_and_killed(server: headrace.Server, name: str) -> None:
    server._running.scheduler.turns.seconds = 0.0
    with RawClient(server.address) as client, RawClient(server.address) as other:
        for start in range(0, 20_000, 5000):
            other.ask({"insert": "d", "documents": [{"_id": start + key} for key in range(5000)]})
        command = {
            "aggregate": {"aggregate": "d", "pipeline": [{"$group": {"_id": "$a", "n": {"$sum": 1}}}], "cursor": {}},
            "update": {"update": "d", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]},
        }[name]
        client.send(command)
        assert_is_killed(client, other, name)


def test_a_client_that_has_gone_leaves_no_operation(server: headrace.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = blocked_derivation(monkeypatch)
    with RawClient(server.address) as other:
        with RawClient(server.address) as client:
            client.send({"createUser": "ann", "pwd": "a", "roles": []}, "admin")
            number_of(other, "createUser")
        until(lambda: not shown(other, "createUser"))
        may_end.set()
        assert other.ask({"usersInfo": "ann"}, "admin")["users"] == []
