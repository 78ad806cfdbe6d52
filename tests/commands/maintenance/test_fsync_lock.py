"""`fsync` with `lock` on a running server: writes wait, also the server's own, and go on after `fsyncUnlock`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import ExecutionTimeout

import headrace

pytestmark = pytest.mark.long


def test_a_write_waits_for_the_unlock(tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server, MongoClient(server.uri) as client:
        collection = client.t.c
        collection.insert_one({"_id": 0})
        assert client.admin.command("fsync", lock=True)["lockCount"] == 1
        with pytest.raises(ExecutionTimeout):
            client.t.command("insert", "c", documents=[{"_id": 9}], maxTimeMS=20)
        before = (tmp_path / "data.mdb").read_bytes()
        done = threading.Event()

        def insert() -> None:
            collection.insert_one({"_id": 1})
            done.set()

        waiting = threading.Thread(target=insert)
        waiting.start()
        while not [item for item in client.admin.command("currentOp")["inprog"] if "insert" in item["command"]]:
            pass
        assert collection.count_documents({}) == 1 and not done.is_set()
        assert (tmp_path / "data.mdb").read_bytes() == before
        assert client.admin.command("fsyncUnlock")["lockCount"] == 0
        waiting.join(30)
        assert done.is_set() and collection.count_documents({}) == 2


def test_an_open_store_waits_too() -> None:
    with headrace.open() as store:
        store.t.c.insert_one({"_id": 0})
        store.admin.command("fsync", lock=True)
        done = threading.Event()

        def insert() -> None:
            store.t.c.insert_one({"_id": 1})
            done.set()

        waiting = threading.Thread(target=insert)
        waiting.start()
        while not [item for item in store.admin.command("currentOp")["inprog"] if "insert" in item["command"]]:
            pass
        assert not done.is_set()
        store.admin.command("fsyncUnlock")
        waiting.join(30)
        assert done.is_set() and store.t.c.count_documents({}) == 2


def test_a_locked_server_ends(tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server, MongoClient(server.uri) as client:
        client.t.c.insert_one({"_id": 0})
        client.admin.command("fsync", lock=True)
    with headrace.Server(tmp_path) as server, MongoClient(server.uri) as client:
        client.t.c.insert_one({"_id": 1})
