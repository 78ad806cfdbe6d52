"""currentOp shows each call of the program's threads that has not returned, wherever it waits, and killOp ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.errors import OperationFailure

import headrace
from tests.waiting import until


@pytest.fixture
def store() -> Iterator[Any]:
    with headrace.open(enable_test_commands=True) as opened:
        opened.t.c.insert_one({"_id": 1})
        yield opened


def shown(store: Any, name: str) -> list[int]:
    listed = store.admin.command("currentOp", {"$all": True})["inprog"]
    return [item["opid"] for item in listed if item["type"] == "op" and name in item.get("command", {})]


class Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.code: int | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except OperationFailure as error:
            self.code = error.code

    def join(self) -> int | None:
        """The code of its error, or None."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.code


def killed(store: Any, name: str, call: Callable[[], object], then: Callable[[], None] = lambda: None) -> int | None:
    """The error of a call that is shown, killed, and then may go on."""
    begun = Call(call)
    (number,) = until(lambda: shown(store, name))
    store.admin.command({"killOp": 1, "op": number})
    then()
    code = begun.join()
    assert not shown(store, name)
    return code


WRITES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "insert_one": ("insert", lambda c: c.insert_one({"_id": 2})),
    "insert with a comment": ("insert", lambda c: c.insert_one({"_id": 2}, comment="a")),
    "update_one": ("update", lambda c: c.update_one({"_id": 1}, {"$set": {"a": 1}})),
    "update_many": ("update", lambda c: c.update_many({}, {"$set": {"a": 1}})),
    "delete_many": ("delete", lambda c: c.delete_many({})),
    "drop": ("drop", lambda c: c.drop()),
    "create_index": ("createIndexes", lambda c: c.create_index("a")),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_write_that_waits_for_its_turn_is_shown_and_killed(store: Any, what: str) -> None:
    name, call = WRITES[what]
    gate = store._local.writes.gate
    assert gate.enter()
    assert killed(store, name, lambda: call(store.t.c), gate.leave) == 11601
    assert list(store.t.c.find()) == [{"_id": 1}] and list(store.t.c.index_information()) == ["_id_"]
    call(store.t.c)


def test_a_write_whose_commit_is_on_its_way_to_the_disk_is_shown(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, inner = threading.Event(), store._local.store
    sync = inner.sync

    def held(txn: Any) -> None:
        may_end.wait(60)
        sync(txn)

    monkeypatch.setattr(inner, "sync", held)
    for key, comment in ((2, None), (3, "a")):
        may_end.clear()
        assert killed(store, "insert", lambda: store.t.c.insert_one({"_id": key}, comment=comment), may_end.set) is None  # noqa: B023
    assert store.t.c.count_documents({}) == 3


@pytest.mark.parametrize("what", ["update_one", "update_many", "drop"])
def test_a_write_that_waits_for_a_lock_is_shown_and_killed(store: Any, what: str) -> None:
    name, call = WRITES[what]
    with store.start_session() as session:
        session.start_transaction()
        store.t.c.update_one({"_id": 1}, {"$set": {"a": 2}}, session=session)
        assert killed(store, name, lambda: call(store.t.c)) == 11601
        session.commit_transaction()
    assert store.t.c.find_one() == {"_id": 1, "a": 2}


@pytest.mark.parametrize("what", ["insert with a comment", "drop"])
def test_a_write_that_is_to_wait_for_a_lock_is_killed_while_its_group_is_committed(
    store: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, call = WRITES[what]
    begun, may_end, inner = threading.Event(), threading.Event(), store._local.store
    sync = inner.sync

    def held(txn: Any) -> None:
        begun.set()
        may_end.wait(60)
        sync(txn)

    with store.start_session() as session:
        session.start_transaction()
        store.t.c.insert_one({"_id": 2}, session=session)
        monkeypatch.setattr(inner, "sync", held)
        writing = Call(lambda: call(store.t.c))
        assert begun.wait(60)
        (number,) = shown(store, name)
        store.admin.command({"killOp": 1, "op": number})
        may_end.set()
        assert writing.join() == 11601
        session.abort_transaction()


def test_a_stream_that_waits_is_shown_and_killed(store: Any) -> None:
    with store.t.c.watch() as stream:
        assert killed(store, "getMore", stream.next) == 11601


def test_a_command_whose_password_is_computed_is_shown_and_killed(store: Any) -> None:
    data = {"failCommands": ["createUser"], "blockConnection": True, "blockTimeMS": 300}
    store.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})
    assert killed(store, "createUser", lambda: store.admin.command("createUser", "ann", pwd="a", roles=[])) == 11601
    assert store.admin.command("usersInfo", "ann")["users"] == []


def test_writes_of_threads_and_of_clients_are_shown_together(store: Any) -> None:
    from tests.server.raw import RawClient

    gate = store._local.writes.gate
    with store.serve() as served, RawClient(f"127.0.0.1:{served.port}") as client:
        assert gate.enter()
        client.send({"insert": "c", "documents": [{"_id": 5}]})
        begun = Call(lambda: store.t.c.insert_one({"_id": 6}))
        numbers = until(lambda: len(found := shown(store, "insert")) == 2 and found)
        for number in numbers or ():
            store.admin.command({"killOp": 1, "op": number})
        assert client.receive()[1]["code"] == 11601
        gate.leave()
        assert begun.join() == 11601
        assert store.t.c.count_documents({}) == 1
