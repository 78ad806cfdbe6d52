"""Documents with very many keys in an index: others read while one is written, and see all of it or nothing."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace import limits
from headrace.server.writer import Writer
from headrace.store.check.directory import check
from headrace.store.checksums.transaction import CheckedTransaction, _CheckedCursor
from headrace.store.indexes.index_entries import stored_entries
from headrace.store.indexes.index_keys import KeyMaker
from headrace.store.indexes.wildcard_keys import WildcardKeyMaker
from headrace.turns import TICK_COUNT, Turn
from tests.waiting import until

from ..raw import RawClient

COUNT = 6000
"""Elements of an array that is longer than what is decoded without a tick."""
KEYS: dict[str, dict[str, Any]] = {
    "array": {"key": {"n": 1}}, "unique array": {"key": {"n": 1}, "unique": True}, "path": {"key": {"a.b": 1}},
    "compound": {"key": {"a.b": 1, "a.c": -1}}, "unique path": {"key": {"a.b": 1}, "unique": True},
    "partial": {"key": {"a.b": 1}, "partialFilterExpression": {"a.b": {"$gte": 0}}}, "wildcard": {"key": {"$**": 1}},
    "prepared": {"key": {"n": 1}, "prepareUnique": True},
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    """A server whose commands pause at every tick. At the end its indexes have the keys of its documents."""
    with headrace.Server() as running:
        running._running.scheduler.turns.seconds = 0.0
        yield running
        store = running._running.store
        with store.reading() as view:
            collection = store.catalog.collections["t.c"]
            (index,) = collection.maintained
            expected: dict[bytes, bytes] = {}
            for record, raw in view.scan(collection):
                expected.update(stored_entries(index, record, raw))
            with view.kv.cursor(view.tables["indexes"]) as cursor:
                assert dict(cursor.iternext()) == expected


def document(key: int, first: int = 0, count: int = COUNT) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {"_id": key, "n": list(numbers), "a": [{"b": n, "c": "x" * 20} for n in numbers]}


def indexed(client: RawClient, what: str) -> None:
    assert client.ask({"createIndexes": "c", "indexes": [{"name": "x", **KEYS[what]}]})["ok"]


def is_in_change(server: headrace.Server) -> bool:
    group = server._running.writer._group
    return group is not None and group.in_change is not None


@pytest.mark.parametrize("what", KEYS)
def test_a_document_is_inserted_changed_and_deleted(server: headrace.Server, what: str) -> None:
    with RawClient(server.address) as client:
        indexed(client, what)
        assert client.ask({"insert": "c", "documents": [document(1)]})["n"] == 1
        assert client.ask({"insert": "c", "documents": [document(2, COUNT), {"_id": 3}]})["n"] == 2
        change = {"$push": {"n": 3 * COUNT}, "$set": {"a.0.b": -1}}
        assert client.ask({"update": "c", "updates": [{"q": {"_id": 1}, "u": change}]})["nModified"] == 1
        assert client.ask({"count": "c", "query": {"n": 3 * COUNT, "a.b": -1}})["n"] == 1
        assert client.ask({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]})["n"] == 1
        assert client.ask({"count": "c"})["n"] == 2


@pytest.mark.parametrize("what", ["prepared", "unique array", "unique path"])
def test_a_key_that_is_there_refuses_all_of_it(server: headrace.Server, what: str) -> None:
    with RawClient(server.address) as client:
        indexed(client, what)
        last = {"_id": 1, "n": COUNT - 1, "a": {"b": COUNT - 1}}
        assert client.ask({"insert": "c", "documents": [last]})["n"] == 1
        reply = client.ask({"insert": "c", "documents": [document(2)]})
        assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 11000)
        assert client.ask({"count": "c", "query": {"a.b": 0}})["n"] == 0


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set, a change stays in its middle."""
    event, changed = threading.Event(), Writer._changed

    def held(self: Writer, *arguments: Any) -> Generator[None, None, Any]:
        change = changed(self, *arguments)
        while True:
            try:
                yield next(change)
            except StopIteration as end:
                return end.value
            while not event.is_set():
                yield

    event.set()
    monkeypatch.setattr(Writer, "_changed", held)
    return event


def test_others_read_meanwhile_and_see_nothing_of_it(
    server: headrace.Server, monkeypatch: pytest.MonkeyPatch, may_end: threading.Event
) -> None:
    monkeypatch.setattr(limits, "COMMIT_PIECE_COUNT", 16)
    monkeypatch.setattr(limits, "ENTRY_COUNT", 4 * COUNT)  # beyond it, an entry is not put in one commit
    with RawClient(server.address) as client, RawClient(server.address) as other:
        indexed(client, "array")
        assert other.ask({"insert": "c", "documents": [{"_id": 0, "n": 0}]})["n"] == 1
        for body, before, after in (
            ({"insert": "c", "documents": [document(1, count=3 * COUNT)]}, 1, 2),
            ({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, 2, 1),
        ):  # fmt: skip
            may_end.clear()
            client.send(body)
            seen = []
            until(lambda: is_in_change(server))
            while is_in_change(server):
                seen.append(other.ask({"count": "c", "query": {"n": {"$lte": 10}}, "hint": "x"})["n"])
                if len(seen) > 3:
                    may_end.set()
            assert client.receive()[1]["n"] == 1
            assert set(seen[:-1]) == {before}
            assert other.ask({"count": "c", "query": {"n": {"$lte": 10}}, "hint": "x"})["n"] == after


def test_few_keys_are_put_between_two_pauses(server: headrace.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    put_many, delete, pause = _CheckedCursor.putmulti, CheckedTransaction.delete, Turn.pause
    count, most, pauses = 0, 0, 0

    def counted(call: Any) -> Any:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal count, most
            count += len(arguments[1]) if call is put_many else 1
            most = max(most, count)
            return call(*arguments, **options)

        return change

    def paused(turn: Turn, waits_for: Any = None) -> None:
        nonlocal count, pauses
        count, pauses = 0, pauses + 1
        pause(turn, waits_for)

    monkeypatch.setattr(_CheckedCursor, "putmulti", counted(put_many))
    monkeypatch.setattr(CheckedTransaction, "delete", counted(delete))
    monkeypatch.setattr(Turn, "pause", paused)
    with RawClient(server.address) as client:
        indexed(client, "array")
        for body in (
            {"insert": "c", "documents": [document(1)]},
            {"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"n": {"$range": [COUNT, 2 * COUNT]}}}]}]},
            {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
        ):
            pauses = 0
            assert client.ask(body)["n"] == 1
            assert pauses > COUNT // TICK_COUNT  # as keys are made, and as they are put
    assert TICK_COUNT <= most <= limits.COMMIT_PIECE_COUNT + TICK_COUNT


TRANSACTION: dict[str, Any] = {"lsid": {"id": Binary(b"1" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}


@pytest.mark.parametrize("has_locks", [False, True])
@pytest.mark.parametrize("conflicts", [False, True])
def test_a_transaction_that_runs_in_the_middle(
    server: headrace.Server, may_end: threading.Event, has_locks: bool, conflicts: bool
) -> None:
    def ask_in(body: dict[str, Any], database: str = "t", **options: Any) -> dict[str, Any]:
        return other.ask({**body, **TRANSACTION, **options}, database)

    with RawClient(server.address) as client, RawClient(server.address) as other:
        indexed(client, "unique array")
        assert other.ask({"insert": "c", "documents": [{"_id": 0, "n": -1}]})["n"] == 1
        begun = ask_in({"find": "c"}, startTransaction=True, readConcern={"level": "snapshot"})
        assert len(begun["cursor"]["firstBatch"]) == 1
        if has_locks:
            assert ask_in({"insert": "c", "documents": [{"_id": 7, "n": -7}]})["n"] == 1
        may_end.clear()
        client.send({"insert": "c", "documents": [document(1)]})
        until(lambda: is_in_change(server))
        reply = ask_in({"insert": "c", "documents": [{"_id": 8, "n": COUNT - 1 if conflicts else -8}]})
        assert is_in_change(server)
        may_end.set()
        if conflicts and has_locks:  # the change is still tried, and waits for the lock
            assert ask_in({"commitTransaction": 1}, "admin")["ok"] == 1.0
            assert client.receive()[1]["writeErrors"][0]["code"] == 11000
            assert other.ask({"count": "c"})["n"] == 3
            return
        assert client.receive()[1]["n"] == 1
        if conflicts:
            assert reply.get("code") in (None, 112)
            assert ask_in({"commitTransaction": 1}, "admin")["code"] == 251
            assert other.ask({"count": "c"})["n"] == 2
            return
        assert reply["n"] == 1
        assert len(ask_in({"find": "c"})["cursor"]["firstBatch"]) == 2 + has_locks
        assert ask_in({"commitTransaction": 1}, "admin")["ok"] == 1.0
        assert other.ask({"count": "c"})["n"] == 3 + has_locks


@pytest.mark.parametrize("what", ["array", "unique path"])
def test_a_transaction_inserts_changes_and_deletes(server: headrace.Server, what: str) -> None:
    with RawClient(server.address) as client:
        indexed(client, what)
        assert client.ask({"insert": "c", "documents": [document(1)]})["n"] == 1
        options = {"lsid": {"id": Binary(b"1" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}
        writes: list[dict[str, Any]] = [
            {"insert": "c", "documents": [document(2, COUNT), document(3, 2 * COUNT)], "startTransaction": True},
            {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$push": {"n": 3 * COUNT}, "$set": {"a.0.b": -1}}}]},
            {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
        ]
        assert [client.ask({**write, **options})["n"] for write in writes] == [2, 1, 1]
        assert client.ask({"count": "c", "query": {"n": 3 * COUNT}})["n"] == 0
        assert client.ask({"commitTransaction": 1, **options}, "admin")["ok"] == 1.0
        assert client.ask({"count": "c", "query": {"n": 3 * COUNT, "a.b": -1}})["n"] == 1


@pytest.mark.parametrize("what", ["unique array", "wildcard"])
def test_a_check_makes_its_keys_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    maker: Any = WildcardKeyMaker if what == "wildcard" else KeyMaker
    keys, count = maker.keys, 0

    def counted(self: Any, raw: bytes) -> Any:
        nonlocal count
        count += 1
        return keys(self, raw)

    with headrace.Server(tmp_path) as server, RawClient(server.address) as client:
        indexed(client, what)
        assert client.ask({"insert": "c", "documents": [document(1), document(2, COUNT)]})["n"] == 2
        monkeypatch.setattr(maker, "keys", counted)
        assert client.ask({"validate": "c"})["valid"]
        assert count <= 6
    count = 0
    assert check(tmp_path).problems == []
    assert count <= 6
