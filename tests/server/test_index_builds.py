"""Indexes are built while others write, and hold what the collection holds in the end, also after a kill."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError

import headrace
from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.dispatch.engine import Engine
from headrace.execution import index_builds
from headrace.store.catalog import Collection, IndexBuild
from headrace.store.check.directory import check
from headrace.store.indexes import index_entries
from headrace.store.write_transaction import WriteTransaction
from tests.waiting import until

from .raw import RawClient
from .test_kill import Process

INDEX = {"key": {"n": 1}, "name": "u", "unique": True}
BUILD = {"createIndexes": "c", "indexes": [INDEX, {"key": {"x": 1}, "name": "x"}]}
COUNT = 1000


def fill(client: RawClient) -> None:
    documents = [{"_id": key, "n": key} for key in range(COUNT)]
    assert client.ask({"insert": "c", "documents": documents})["n"] == COUNT


def names(client: RawClient) -> list[str]:
    return [index["name"] for index in client.ask({"listIndexes": "c"})["cursor"]["firstBatch"]]


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set, the build of a command stays behind its first documents."""
    event, current, begun = threading.Event(), index_builds._current, set[bytes]()

    def held(context: CommandContext, build: IndexBuild, collection: Collection) -> IndexBuild:
        while build.uuid in begun and not event.wait(0.001):  # which leaves the interpreter to the test
            context.tick()
        begun.add(build.uuid)
        return current(context, build, collection)

    monkeypatch.setattr(index_builds, "_current", held)
    return event


def begin_build(server: headrace.Server, client: RawClient, command: dict[str, Any] = BUILD) -> None:
    """Let the server pause at every tick, send the command, and return when the build has begun."""
    server._running.scheduler.turns.seconds = 0.0
    client.send(command)
    until(lambda: server._running.store.catalog.builds)


def test_an_index_is_built_while_others_write(tmp_path: Path, may_end: threading.Event) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        begin_build(server, builder)
        for key in range(0, COUNT, 100):
            other.send({"insert": "c", "documents": [{"_id": COUNT + key, "n": COUNT + key}]})
            other.receive()
            other.ask({"update": "c", "updates": [{"q": {"_id": key + 7}, "u": {"$set": {"n": -key - 1}}}]})
            other.ask({"delete": "c", "deletes": [{"q": {"_id": key + 8}, "limit": 1}]})
        may_end.set()
        assert builder.receive()[1]["numIndexesAfter"] == 3
        assert names(other) == ["_id_", "u", "x"]
        refused = other.ask({"insert": "c", "documents": [{"_id": -1, "n": 5}]})
        assert refused["writeErrors"][0]["code"] == 11000
        assert other.ask({"insert": "c", "documents": [{"_id": -1, "n": 8}]})["n"] == 1  # that of a deleted one
    assert check(tmp_path).problems == []


@pytest.mark.parametrize("is_unique", [False, True])
def test_the_keys_of_long_documents_are_put_in_several_transactions(
    monkeypatch: pytest.MonkeyPatch, is_unique: bool
) -> None:
    put_new, counts = index_entries.put_new, Counter[WriteTransaction]()

    def counted(txn: WriteTransaction, *others: Any) -> None:
        counts[txn] += len(others[2])
        put_new(txn, *others)

    monkeypatch.setattr(limits, "BUILD_BYTES", 16 * 1024)
    monkeypatch.setattr(index_entries, "put_new", counted)
    keys = 3000
    with headrace.Server() as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        running = server._running
        for key in range(20):
            numbers = [*range(key * keys, (key + 1) * keys)]
            assert other.ask({"insert": "c", "documents": [{"_id": key, "n": numbers}]})["n"] == 1
        running.scheduler.turns.seconds = 0.0
        builder.send({"createIndexes": "c", "indexes": [{**INDEX, "unique": is_unique}]})
        inserted = 0
        while len(counts) < 5:
            inserted += 1
            assert other.ask({"insert": "c", "documents": [{"n": -inserted}]})["n"] == 1
        other.ask({"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$pop": {"n": 1}}}]})
        other.ask({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
        assert builder.receive()[1]["ok"] == 1.0
        assert len(counts) > 10 and max(counts.values()) <= keys
        expected: dict[bytes, bytes] = {}
        with running.store.reading() as view:
            collection = running.store.catalog.collections["t.c"]
            for record, raw in view.scan(collection):
                expected.update(index_entries.stored_entries(collection.maintained[0], record, raw))
            with view.kv.cursor(view.tables["indexes"]) as cursor:
                assert dict(cursor.iternext()) == expected


@pytest.mark.parametrize("how", ["a duplicate", "killOp", "drop", "dropIndexes"])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, may_end: threading.Event, how: str) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        if how == "a duplicate":
            other.ask({"insert": "c", "documents": [{"_id": "last", "n": 3}]})
        begin_build(server, builder)
        if how == "killOp":
            shown = other.ask({"currentOp": 1}, "admin")["inprog"]
            number = next(item["opid"] for item in shown if "createIndexes" in item.get("command", {}))
            other.ask({"killOp": 1, "op": number}, "admin")
        if how == "drop":
            other.ask({"drop": "c"})
        if how == "dropIndexes":
            assert other.ask({"dropIndexes": "c", "index": "x"})["ok"] == 1
        may_end.set()
        code = builder.receive()[1]["code"]
        assert code == {"a duplicate": 11000, "killOp": 11601, "drop": 276, "dropIndexes": 276}[how]
        assert not server._running.store.catalog.builds
        if how != "drop":
            assert names(other) == ["_id_"]
            assert other.ask({"insert": "c", "documents": [{"_id": "more", "n": 3}]})["n"] == 1
    assert check(tmp_path).problems == []


def test_a_build_goes_on_when_another_write_fails_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_end: threading.Event
) -> None:
    original = Engine.run_write

    def run_write(self: Engine, command: Any, request: Any, txn: Any) -> Any:
        answer = original(self, command, request, txn)
        if request.body.get("documents") == [{"_id": "fails"}]:
            raise MemoryError("injected")
        return answer

    monkeypatch.setattr(Engine, "run_write", run_write)
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        begin_build(server, builder)
        store = server._running.store
        (begun,) = store.catalog.builds.values()
        assert other.ask({"insert": "d", "documents": [{"_id": "fails"}]})["code"] == 1
        (again,) = store.catalog.builds.values()
        assert (again.uuid, again.indexes[0].number) == (begun.uuid, begun.indexes[0].number)
        assert other.ask({"insert": "c", "documents": [{"_id": "a", "n": "a"}]})["n"] == 1
        may_end.set()
        assert builder.receive()[1]["numIndexesAfter"] == 3
        assert not store.catalog.builds
        assert names(other) == ["_id_", "u", "x"]
    assert check(tmp_path).problems == []


def test_a_build_is_seen_while_it_goes_on(tmp_path: Path, may_end: threading.Event) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        begin_build(server, builder)
        shown = other.ask({"listIndexes": "c", "includeBuildUUIDs": True})["cursor"]["firstBatch"]
        uuid = shown[1]["buildUUID"]
        assert [item.get("buildUUID") for item in shown] == [None, uuid, uuid] and shown[1]["spec"]["name"] == "u"
        assert names(other) == ["_id_", "u", "x"]
        info = other.ask({"listIndexes": "c", "includeIndexBuildInfo": True})["cursor"]["firstBatch"]
        assert info[0]["spec"]["name"] == "_id_" and info[2]["indexBuildInfo"]["buildUUID"] == uuid
        operations = other.ask({"currentOp": 1}, "admin")["inprog"]
        (progress,) = [item["progress"] for item in operations if "progress" in item]
        assert 0 <= progress["done"] <= progress["total"] == COUNT
        stats = other.ask({"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}})["cursor"]["firstBatch"]
        assert [item.get("building") for item in stats] == [None, True, True]
        may_end.set()
        assert builder.receive()[1]["numIndexesAfter"] == 3
        steps = [{"$match": {"op": "c", "ns": "t.$cmd"}}, {"$project": {"o": 1}}]
        entries = other.ask({"aggregate": "oplog.rs", "pipeline": steps, "cursor": {}}, "local")["cursor"]["firstBatch"]
        named = [next(iter(entry["o"])) for entry in entries]
        assert named == ["create", "startIndexBuild", "commitIndexBuild"]
        assert {entry["o"]["indexBuildUUID"] for entry in entries[1:]} == {uuid}


def test_what_an_index_that_is_being_built_cannot_hold_ends_the_build_and_not_the_write(
    tmp_path: Path, may_end: threading.Event
) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        begin_build(server, builder)
        assert other.ask({"insert": "c", "documents": [{"_id": "second", "n": 0}]})["n"] == 1
        may_end.set()
        answer = builder.receive()[1]
        assert answer["code"] == 11000 and answer["keyValue"] == {"n": 0}
        assert names(other) == ["_id_"] and other.ask({"count": "c", "query": {"n": 0}})["n"] == 2
    assert check(tmp_path).problems == []


def test_a_build_goes_on_by_itself_when_its_client_has_gone(tmp_path: Path, may_end: threading.Event) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as other:
        fill(other)
        with RawClient(server.address) as builder:
            begin_build(server, builder)
        until(lambda: not server._running.engine.builds_of_commands)
        answer = other.ask({"createIndexes": "c", "indexes": [INDEX]})  # which waits for it
        assert answer["note"] == "all indexes already exist"
        assert names(other) == ["_id_", "u", "x"]
    assert check(tmp_path).problems == []


def test_an_index_becomes_unique_while_others_write(tmp_path: Path, may_end: threading.Event) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        may_end.set()
        other.ask({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
        may_end.clear()
        other.ask({"collMod": "c", "index": {"name": "n", "prepareUnique": True}})
        begin_build(server, builder, {"collMod": "c", "index": {"name": "n", "unique": True}})
        assert names(other) == ["_id_", "n"]
        assert other.ask({"insert": "c", "documents": [{"_id": "a", "n": 5}]})["writeErrors"][0]["code"] == 11000
        assert other.ask({"insert": "c", "documents": [{"_id": "a", "n": "a"}]})["n"] == 1
        may_end.set()
        assert builder.receive()[1]["unique_new"] is True
        assert other.ask({"insert": "c", "documents": [{"_id": "b", "n": "a"}]})["writeErrors"][0]["code"] == 11000
    assert check(tmp_path).problems == []


MODELS = [
    pymongo.IndexModel([("n", 1)], name="n", unique=True),
    pymongo.IndexModel([("tags", -1), ("n", 1)], name="tags"),
    pymongo.IndexModel([("$**", 1)], name="wildcard", wildcardProjection={"text": 1, "inner": 1}),
    pymongo.IndexModel([("text", "hashed")], name="hashed"),
    pymongo.IndexModel([("text", 1)], name="collated", collation={"locale": "sv", "strength": 1}),
]
MANY = 12_000


def keep_writing(server: Process, seed: int) -> None:
    """Write until the server is gone."""
    chooser = random.Random(seed)
    with server.client(serverSelectionTimeoutMS=2000) as client:
        try:
            for number in range(1_000_000):
                key = MANY + seed * 1_000_000 + number
                client.t.c.insert_one({"_id": key, "n": key, "tags": [1, number], "text": "å"})
                client.t.c.update_one(
                    {"_id": chooser.randrange(MANY)}, {"$set": {"text": f"Å{number}", "inner.x": [1]}}
                )
                client.t.c.delete_one({"_id": chooser.randrange(MANY)})
        except PyMongoError:
            return


def send_build(server: Process) -> None:
    with server.client() as client:
        try:
            client.t.c.create_indexes(MODELS)
        except PyMongoError:
            return


def built(client: pymongo.MongoClient[dict[str, Any]]) -> bool:
    shown = client.t.command("listIndexes", "c", includeBuildUUIDs=True)["cursor"]["firstBatch"]
    return len(shown) == 6 and all("buildUUID" not in item for item in shown)


@pytest.mark.process
def test_a_killed_server_goes_on_with_its_builds(tmp_path: Path) -> None:
    """Takes some ten seconds: 12,000 documents are indexed five times over, and the server is started four times."""
    with Process(tmp_path) as server:
        with server.client() as client:
            documents = [{"_id": n, "n": n, "tags": [n % 7, n % 3], "text": f"Text {n % 50}"} for n in range(MANY)]
            client.t.c.insert_many(documents)
        done = -1
        for life in range(3):
            threads = [threading.Thread(target=keep_writing, args=(server, life))]
            with server.client() as client:
                indexes = client.t.command("listIndexes", "c", includeBuildUUIDs=True)["cursor"]["firstBatch"]
            if len(indexes) == 1:  # or not begun: nobody has been told that it has
                threads.append(threading.Thread(target=send_build, args=(server,)))
            for thread in threads:
                thread.start()
            with server.client() as client:
                while True:  # until the build has come further than in the life before
                    is_alive = threads[-1].is_alive()
                    operations = client.admin.command("currentOp")["inprog"]
                    progress = [item["progress"]["done"] for item in operations if "progress" in item]
                    if (progress and progress[0] > done) or (life and built(client)):
                        break
                    assert is_alive, "the build, or whoever writes, has ended before"
            done = max([done, *progress])
            server.kill()
            for thread in threads:
                thread.join()
            assert check(tmp_path).problems == []
            server.start()
        with server.client() as client:
            client.t.c.create_indexes(MODELS)  # which waits for them
            assert built(client)
            assert client.t.c.count_documents({"text": "TEXT 7"}, collation=MODELS[4].document["collation"]) == (
                client.t.c.count_documents({"text": {"$regex": "^text 7$", "$options": "i"}}, hint={"$natural": 1})
            )
        server.kill()
    assert check(tmp_path).problems == []
