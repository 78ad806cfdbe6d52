"""Documents with very many keys in an index, in a server whose commands pause at every tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace.store.check.directory import check
from headrace.store.indexes.index_entries import stored_entries
from headrace.store.indexes.index_keys import KeyMaker
from headrace.store.indexes.wildcard_keys import WildcardKeyMaker

from ..raw import RawClient

COUNT = 3000
"""Elements of an array in a document of more than 256 KiB."""
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
    return {"_id": key, "n": list(numbers), "a": [{"b": n, "c": "x" * 80} for n in numbers]}


def indexed(client: RawClient, what: str) -> None:
    assert client.ask({"createIndexes": "c", "indexes": [{"name": "x", **KEYS[what]}]})["ok"]


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

    def counted(self: Any, raw: bytes, *more: Any) -> Any:
        nonlocal count
        count += 1
        return keys(self, raw, *more)

    with headrace.Server(tmp_path) as server, RawClient(server.address) as client:
        indexed(client, what)
        assert client.ask({"insert": "c", "documents": [document(1), document(2, COUNT)]})["n"] == 2
        monkeypatch.setattr(maker, "keys", counted)
        assert client.ask({"validate": "c"})["valid"]
        assert count <= 6
    count = 0
    assert check(tmp_path).problems == []
    assert count <= 6
