"""A commit publishes one immutable state: readers see all of it or nothing, and what they hold stays as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Int64

import headrace
from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.store import catalog_changes, retention
from headrace.store.catalog import Catalog, Collection, Index, IndexBuild
from headrace.store.lmdb import LmdbError
from headrace.store.state import StoreState
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

READS: dict[str, dict[str, Any]] = {
    "by index": {"find": "c", "filter": {"x": 3}, "sort": {"_id": 1}},
    "by another index": {"find": "c", "filter": {"y": 1}, "sort": {"_id": 1}},
    "covered": {"find": "c", "filter": {"y": {"$gte": 1}}, "projection": {"_id": 0, "y": 1}, "sort": {"y": 1}},
    "scan": {"find": "c", "hint": {"$natural": 1}},
    "by _id": {"find": "c", "filter": {"_id": {"$in": [1, 2, 99]}}, "sort": {"_id": 1}},
    "count": {"count": "c"},
    "count by index": {"count": "c", "query": {"x": 3}},
    "distinct": {"distinct": "c", "key": "x"},
    "group": {"aggregate": "c", "pipeline": [{"$group": {"_id": "$x", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}],
              "cursor": {}},
    "lookup": {"aggregate": "other", "cursor": {}, "pipeline": [
        {"$lookup": {"from": "c", "localField": "_id", "foreignField": "x", "as": "found"}}]},
    "view": {"find": "v"},
    "collections": {"listCollections": 1, "filter": {}},
    "indexes": {"listIndexes": "c"},
    "plan": {"explain": {"find": "c", "filter": {"x": 3}}, "verbosity": "queryPlanner"},
    "size": {"collStats": "c"},
}  # fmt: skip
WRITES: dict[str, dict[str, Any]] = {
    "createIndexes": {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]},
    "createIndexes, unique": {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]},
    "dropIndexes": {"dropIndexes": "c", "index": "y_1"},
    "insert": {"insert": "c", "documents": [{"_id": 99, "x": 3, "y": 1}]},
    "insert of an array": {"insert": "c", "documents": [{"_id": 99, "x": 3, "y": [1, 2]}]},
    "insert of a long _id": {"insert": "c", "documents": [{"_id": "x" * 600, "x": 3, "y": 1}]},
    "insert of many": {"insert": "c", "documents": [{"_id": n, "x": 3, "y": 1} for n in range(100, 110)]},
    "update": {"update": "c", "updates": [{"q": {"y": 1}, "u": {"$set": {"x": 3, "y": 5}}, "multi": True}]},
    "delete": {"delete": "c", "deletes": [{"q": {"x": 3}, "limit": 0}]},
    "drop": {"drop": "c"},
    "create": {"create": "new"},
    "createView": {"create": "w", "viewOn": "c", "pipeline": []},
    "collMod of a view": {"collMod": "v", "viewOn": "c", "pipeline": [{"$match": {"x": 1}}]},
    "collMod": {"collMod": "c", "validator": {"x": {"$exists": True}}},
    "collMod of an index": {"collMod": "c", "index": {"name": "y_1", "hidden": True}},
    "renameCollection": {"renameCollection": "t.c", "to": "t.d"},
    "dropDatabase": {"dropDatabase": 1},
    "capped": {"insert": "capped", "documents": [{"_id": n, "x": n} for n in range(10)]},
}  # fmt: skip


@pytest.fixture(name="at")
def _at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y_1"}]})
        at.must("t", {"insert": "c", "documents": [{"_id": n, "x": n % 4, "y": n % 3, "n": n} for n in range(20)]})
        at.must("t", {"insert": "other", "documents": [{"_id": n} for n in range(4)]})
        at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"x": 3}}]})
        at.must("t", {"create": "capped", "capped": True, "size": 4096, "max": 5})
        at.must("t", {"insert": "capped", "documents": [{"_id": -1}]})
        at.must("t", {"count": "c"})
        yield at


def answers(at: DrivenServer) -> dict[str, Any]:
    """What every read answers now, without the times of the replies."""
    replies: dict[str, Any] = {}
    for name, body in READS.items():
        reply = at.run("t", body)
        assert isinstance(reply, dict)
        replies[name] = {key: value for key, value in reply.items() if key not in ("$clusterTime", "operationTime")}
    stages = at.run("t", {"find": "capped"}), at.run("t", {"count": "capped"})
    replies["capped"] = [reply.get("cursor", reply.get("n")) for reply in stages if isinstance(reply, dict)]
    return replies


@pytest.mark.parametrize("name", WRITES)
def test_readers_see_all_of_a_write_or_nothing(at: DrivenServer, name: str) -> None:
    before = answers(at)
    seen: list[str] = []

    def between(stage: str) -> None:
        seen.append(stage)
        assert answers(at) == before, stage

    at.between = between
    at.must("admin" if name == "renameCollection" else "t", WRITES[name])
    at.between = lambda stage: None
    assert set(seen) == {"prepared", "synced"}
    after = answers(at)
    assert after != before or name == "createIndexes, unique"


def test_readers_see_nothing_of_a_write_that_is_not_prepared_yet(at: DrivenServer) -> None:
    before = answers(at)
    for name, body in WRITES.items():
        txn = at.store.begin()
        request = at.request("admin" if name == "renameCollection" else "t", body)
        at.engine.run_write(at.engine.command(request), request, txn)
        assert answers(at) == before, name
        at.store.prepare(txn)
        assert answers(at) == before, name
        at.store.abandon(txn)
        assert answers(at) == before, name


def test_what_was_pruned_and_parameters_count_from_the_commit_on(at: DrivenServer) -> None:
    store, state = at.store, at.store.state
    txn = store.begin()
    retention.prune(txn, store.last_position, 5)
    store.set_cluster_parameter(txn, "changeStreamOptions", {"x": 1})
    store.prepare(txn)
    store.sync(txn)
    assert (store.pruned_through, store.cluster_parameters) == (-1, {}) and store.state is state
    with store.reading() as view:
        assert view.oldest_position() is not None and view.state is state
    store.publish(txn)
    assert store.pruned_through > 0 and store.cluster_parameters == {"changeStreamOptions": {"x": 1}}


CACHES = {"document_fields", "fields", "key_maker", "plan_cache"}


def contents(item: Any) -> Any:
    """All that can be reached from a part of a state, as values that can be compared later."""
    if isinstance(item, Catalog | Collection | Index | IndexBuild):
        names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()) if name not in CACHES]
        return type(item).__name__, tuple((name, contents(getattr(item, name))) for name in names)
    if isinstance(item, dict):
        return tuple((key, contents(value)) for key, value in item.items())
    if isinstance(item, tuple | list):
        return tuple(map(contents, item))
    assert (
        item is None
        or isinstance(item, str | bytes | bool | int | float | frozenset | Int64 | CommandError)
        or (type(item).__module__.startswith("bson."))
    ), f"{type(item)} in a published state"
    return repr(item)


def test_a_count_that_a_reader_corrects_is_kept_unless_the_collection_has_changed(at: DrivenServer) -> None:
    def counted_by_a_reader(written: str) -> int:
        with at.store.reading() as view:
            collection = view.catalog.collections["t.c"]
            count = view.known_count(collection)
            assert count is not None
            at.must("t", {"insert": written, "documents": [{"n": 50}]})
            view.keep_count(collection, count._replace(documents=1000))
        return at.must("t", {"count": "c"})["n"]

    before = at.must("t", {"count": "c"})["n"]
    assert counted_by_a_reader("c") == before + 1
    assert counted_by_a_reader("other") == 1000


def test_nothing_that_can_be_reached_from_a_published_state_changes(at: DrivenServer) -> None:
    states: list[tuple[StoreState, Any]] = []

    def note() -> None:
        states.append((at.store.state, contents(at.store.state)))

    def committed(stage: str) -> None:
        note()

    at.between = committed
    for name, body in WRITES.items():
        note()
        at.run("admin" if name == "renameCollection" else "t", body)
        answers(at)
    for number in range(3):
        at.must("t", {"insert": "c", "documents": [{"_id": f"{number}", "a": number, "b": [number]}]})
    at.in_turns(
        "t",
        {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b_1"}, {"key": {"$**": 1}, "name": "w"}]},
        lambda count: note(),
    )
    session = {"id": b"\0" * 16}
    at.run("t", {"insert": "c", "documents": [{"_id": "x" * 700, "b": [[1]]}], "lsid": session, "txnNumber": Int64(1),
                 "startTransaction": True, "autocommit": False})  # fmt: skip
    note()
    at.run("admin", {"commitTransaction": 1, "lsid": session, "txnNumber": Int64(1), "autocommit": False})
    note()
    assert len(states) > 50
    for state, was in states:
        assert contents(state) == was


def reads_while_another_thread_commits(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], read: Callable[[], object], stage: str
) -> None:
    """Call `read` while `write`, in another thread, is between the steps of its commit: after `stage`."""
    at_stage, may_go_on = threading.Event(), threading.Event()
    original = Store.sync

    def sync(self: Store, txn: Any) -> None:
        if stage == "synced":
            original(self, txn)
        at_stage.set()
        assert may_go_on.wait(60)
        if stage == "prepared":
            original(self, txn)

    monkeypatch.setattr(Store, "sync", sync)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert at_stage.wait(60)
        read()
    finally:
        may_go_on.set()
        writer.join(60)
        monkeypatch.setattr(Store, "sync", original)


@pytest.mark.parametrize("stage", ["prepared", "synced"])
def test_threads_of_an_embedded_store_see_no_index_before_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    with headrace.open(tmp_path) as store:
        things = store.t.c
        things.insert_many([{"_id": n, "x": n % 5} for n in range(100)])

        def read() -> None:
            assert len(list(things.find({"x": 3}))) == things.count_documents({"x": 3}) == 20
            assert things.estimated_document_count() == 100 and things.distinct("x", {"x": 3}) == [3]
            assert store.t.list_collection_names() == ["c"]

        for write in (
            lambda: things.create_index("x"),
            lambda: things.drop_index("x_1"),
            lambda: things.insert_one({"_id": 1000, "x": 4}),
        ):
            reads_while_another_thread_commits(monkeypatch, write, read, stage)
            if things.find_one({"_id": 1000}):
                things.delete_one({"_id": 1000})
        reads_while_another_thread_commits(monkeypatch, things.drop, read, stage)
        assert store.t.list_collection_names() == []


def test_a_find_whose_index_is_dropped_before_its_first_look_says_so(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]})
    dropped: list[int] = []

    def drop(pause: int) -> None:
        if not dropped and pause == pauses:
            dropped.append(pause)
            at.must("t", {"dropIndexes": "c", "index": "x_1"})

    update = {"update": "c", "updates": [{"q": {"x": 3}, "u": {"$inc": {"n": 1}}, "multi": True}]}
    pauses = 0
    reply, total = at.in_turns("t", update)
    assert reply["n"] == 5 and total > 1
    for pauses in range(1, total + 1):  # noqa: B007 - `drop` looks at it
        dropped.clear()
        reply, _ = at.in_turns("t", update, drop)
        if "writeErrors" in reply:
            assert reply["writeErrors"][0]["code"] == 175
        else:
            assert reply["n"] == 5
        at.run("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]})


def test_nothing_is_remembered_of_collections_that_are_gone() -> None:
    """A commit copies the counts and the changes: they must not grow with all the collections that there ever were."""
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "other", "documents": [{}]})
        before = len(at.store.state.counts), len(at.store.next_records)
        for number in range(5):
            at.must("t", {"insert": f"c{number}", "documents": [{}, {}]})
        at.must("t", {"insert": "target", "documents": [{}]})
        at.must("admin", {"renameCollection": "t.c4", "to": "t.target", "dropTarget": True})
        for name in ("c0", "c1", "c2", "c3", "target"):
            at.must("t", {"drop": name})
        left = True
        while left:
            txn = at.store.begin()
            left = catalog_changes.collect_garbage(txn, 100)
            at.store.commit(txn)
        assert (len(at.store.state.counts), len(at.store.next_records)) == before
        assert set(at.store.catalog.changed) == {"t.target"}
        assert at.must("t", {"count": "other"})["n"] == 1


def test_a_read_that_cannot_begin_again_leaves_its_state_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise LmdbError("no reader slot is free")

    with DrivenServer() as server:
        store, context = server.store, CommandContext(server.engine)
        other, view = store.begin_read(), context.newest_view
        assert view.kv is other
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        with monkeypatch.context() as patch:
            patch.setattr(store.environment, "begin_read", fail)
            with pytest.raises(LmdbError):
                _ = context.newest_view
        context.close()
        assert other.get(b"history-id", db=other.tables["meta"]) == store.history_id
        other.abort()
