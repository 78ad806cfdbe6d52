"""Writes that take long: others have their turn, what is done stays done, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Int64
from pymongo import MongoClient

import headrace
from headrace import limits
from headrace.server import writer as writer_module
from headrace.store.store import Store
from tests.waiting import until

from ..held_writer import hold_the_writer
from ..raw import RawClient
from .holding import held

SLOW: dict[str, Any] = {
    "$expr": {"$gte": [{"$size": {"$map": {"input": {"$range": [0, 3000]}, "in": {"$add": ["$$this", "$n"]}}}}, 0]}
}
"""A filter that everything matches, a millisecond later."""
COUNT = 400


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def pausing(server: headrace.Server) -> headrace.Server:
    """A server whose commands pause at every tick."""
    server._running.scheduler.turns.seconds = 0.0
    return server


def fill(client: RawClient, count: int = COUNT, collection: str = "c") -> None:
    documents = [{"_id": key, "n": 0} for key in range(count)]
    assert client.ask({"insert": collection, "documents": documents})["n"] == count


def all_of(client: RawClient, collection: str = "c") -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = client.ask({"find": collection, "batchSize": 100_000})["cursor"]["firstBatch"]
    return documents


def operation(client: RawClient, name: str) -> dict[str, Any] | None:
    """The operation in progress that is a command of a name."""
    shown = client.ask({"currentOp": 1}, "admin")["inprog"]
    return next((item for item in shown if name in item.get("command", {})), None)


def when_running(client: RawClient, name: str) -> dict[str, Any]:
    running = until(lambda: operation(client, name))
    return running


def update_all(spec: dict[str, Any] = SLOW, **options: Any) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": spec, "u": {"$inc": {"n": 1}}, "multi": True}], **options}


LONG_WRITES: dict[str, dict[str, Any]] = {
    "bulkWrite": {
        "bulkWrite": 1, "nsInfo": [{"ns": "t.c"}],
        "ops": [{"update": 0, "filter": SLOW, "updateMods": {"$inc": {"n": 1}}, "multi": True}],
    },
    "delete": {"delete": "c", "deletes": [{"q": SLOW, "limit": 0}]},
    "findAndModify": {"findAndModify": "c", "query": SLOW, "sort": {"n": 1}, "update": {"$inc": {"n": 1}}},
    "insert": {"insert": "valid", "documents": [{"_id": key, "n": 0} for key in range(COUNT)]},
    "merge": {"aggregate": "c", "pipeline": [{"$match": SLOW}, {"$merge": "other"}], "cursor": {}},
    "out": {"aggregate": "c", "pipeline": [{"$match": SLOW}, {"$out": "other"}], "cursor": {}},
    "update": update_all(),
    "updates": {"update": "c", "updates": [{"q": {"n": key}, "u": {"$set": {"m": 1}}} for key in range(1000)]},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", LONG_WRITES)
def test_others_read_and_write_while_a_write_runs(server: headrace.Server, what: str) -> None:
    command = LONG_WRITES[what]
    with RawClient(server.address) as long, RawClient(server.address) as other:
        fill(other)
        other.ask({"create": "valid", "validator": SLOW})
        stream = other.watch("small")
        long.send(command, "admin" if what == "bulkWrite" else "t")
        when_running(other, next(iter(command)))
        for key in range(3):
            assert other.ask({"insert": "small", "documents": [{"_id": key}]})["n"] == 1
            event = other.ask({"getMore": stream, "collection": "small"})["cursor"]["nextBatch"][0]
            assert event["documentKey"] == {"_id": key}
        assert operation(other, next(iter(command)))
        assert long.receive()[1]["ok"] == 1.0


def has_changed(server: headrace.Server) -> Callable[[], bool]:
    """Whether anything was written from now on."""
    store = server._running.store
    before = store.last_position
    return lambda: store.last_position > before


ENDS: dict[str, int] = {"killOp": 11601, "gone": 279, "shutdown": 11600}


@pytest.mark.parametrize("how", ENDS)
def test_what_ends_a_write_leaves_what_was_done(how: str, tmp_path: Any) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as other, contextlib.ExitStack() as stack:
        fill(other)
        stream = other.watch("c")
        stack.enter_context(held(server, "update", has_changed(server)))
        with RawClient(server.address) as long:
            long.send(update_all())
            running = when_running(other, "update")
            until(lambda: other.ask({"count": "c", "query": {"n": 1}})["n"])
            if how == "killOp":
                other.ask({"killOp": 1, "op": running["opid"]}, "admin")
            if how == "shutdown":
                server.close()
            if how != "gone":
                reply = long.receive()[1]
                assert (reply["ok"], reply["code"]) == (0.0, ENDS[how])
        if how == "shutdown":
            with headrace.Server(tmp_path) as again, RawClient(again.address) as client:
                changed = [document["_id"] for document in all_of(client) if document["n"]]
                assert changed == list(range(len(changed))) and 0 < len(changed) < COUNT
            return
        until(lambda: not operation(other, "update"))
        changed = [document["_id"] for document in all_of(other) if document["n"]]
        assert changed == list(range(len(changed))) and 0 < len(changed) < COUNT
        events: list[Any] = []
        while len(events) < len(changed):
            events += other.ask({"getMore": stream, "collection": "c"})["cursor"]["nextBatch"]
        assert [event["documentKey"]["_id"] for event in events] == changed


def test_a_document_changed_meanwhile_must_match_again(pausing: headrace.Server) -> None:
    with RawClient(pausing.address) as long, RawClient(pausing.address) as other:
        fill(other)
        long.send(update_all({"n": {"$lt": 5}}))
        other.ask({"update": "c", "updates": [{"q": {"_id": 390}, "u": {"$set": {"n": 7}}}]})
        other.ask({"update": "c", "updates": [{"q": {"_id": 391}, "u": {"$set": {"n": 2}}}]})
        other.ask({"delete": "c", "deletes": [{"q": {"_id": 392}, "limit": 1}]})
        reply = long.receive()[1]
        after = {document["_id"]: document["n"] for document in all_of(other)}
        assert 392 not in after and reply["n"] in (COUNT - 2, COUNT - 1, COUNT)
        assert after[390] in (7, 1, 8) and after[391] in (2, 3)
        assert all(after[key] == 1 for key in range(390))


def test_a_long_document_is_decoded_changed_and_stored_in_turns_of_their_own(
    pausing: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of other clients between these turns are not lost."""
    turns = pausing._running.scheduler.turns
    with RawClient(pausing.address) as one:
        one.ask({"insert": "c", "documents": [{"_id": 1, "n": 0, "a": [1, 2], "s": ""}]})
        update: dict[str, Any] = {
            "q": {"_id": 1}, "u": {"$inc": {"n": 1, "a.$[e]": 1}}, "arrayFilters": [{"e": {"$gt": 1}}],
        }  # fmt: skip
        counts = []
        monkeypatch.setattr(limits, "VIEW_CHUNK_BYTES", 8192)
        for length in (10, 8192):
            one.ask({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"s": "x" * length}}}]})
            before = turns.pause_count
            assert one.ask({"update": "c", "updates": [update]})["nModified"] == 1
            counts.append(turns.pause_count - before)
        assert counts[1] > counts[0]
        command = {"update": "c", "updates": [update]}
        threads = [threading.Thread(target=increment_again_and_again, args=(pausing, command)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (document,) = all_of(one)
        assert (document["n"], document["a"]) == (82, [1, 84])


def increment_again_and_again(server: headrace.Server, command: dict[str, Any]) -> None:
    with RawClient(server.address) as client:
        for _ in range(20):
            assert client.ask(command)["nModified"] == 1


def test_concurrent_increments_are_all_made(pausing: headrace.Server) -> None:
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(pausing.address)) for _ in range(4)]
        fill(clients[0], 50)
        stream = clients[0].watch("c")
        for client in clients:
            client.send(update_all({"_id": {"$gte": 0}}))
        assert [client.receive()[1]["nModified"] for client in clients] == [50] * 4
        assert {document["n"] for document in all_of(clients[0])} == {4}
        events: list[Any] = []
        while len(events) < 200:
            events += clients[0].ask({"getMore": stream, "collection": "c"})["cursor"]["nextBatch"]
        assert len(events) == 200


def test_find_and_modify_takes_a_job_only_once(pausing: headrace.Server) -> None:
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(pausing.address)) for _ in range(8)]
        fill(clients[0], 8)
        for client in clients:
            client.send({"findAndModify": "c", "query": {"n": 0}, "sort": {"_id": -1}, "update": {"$set": {"n": 1}}})
        taken = [client.receive()[1]["value"]["_id"] for client in clients]
        assert sorted(taken) == list(range(8))


def test_upserts_of_the_same_document_at_once_insert_it_once(pausing: headrace.Server) -> None:
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(pausing.address)) for _ in range(6)]
        fill(clients[0], 80)
        upsert = {"q": {"_id": 1000, "x": {"$ne": 0}}, "u": {"$inc": {"n": 1}}, "upsert": True}
        for client in clients:
            client.send({"update": "c", "updates": [upsert]})
        assert all(client.receive()[1]["n"] == 1 for client in clients)
        assert all_of(clients[0])[-1] == {"_id": 1000, "n": 6}


@pytest.mark.parametrize("output", [{"$out": "other"}, {"$merge": "other"}])
def test_what_an_out_or_a_merge_reads_is_of_one_moment(pausing: headrace.Server, output: dict[str, Any]) -> None:
    total = {"$group": {"_id": None, "n": {"$sum": "$n"}}}
    pipeline = [{"$match": SLOW}, {"$unionWith": "d"}, total, output]
    with RawClient(pausing.address) as long, RawClient(pausing.address) as other:
        fill(other)
        fill(other, collection="d")
        resumed: list[bool] = []

        def is_in_the_middle() -> bool:
            resumed.append(True)
            return len(resumed) > COUNT // 2

        with held(pausing, "aggregate", is_in_the_middle):
            long.send({"aggregate": "c", "pipeline": pipeline, "cursor": {}})
            when_running(other, "aggregate")
            until(lambda: len(resumed) > COUNT // 2)
            for collection, change in (("c", -1), ("d", 1)):
                update = {"q": {"_id": 0}, "u": {"$inc": {"n": change}}}
                assert other.ask({"update": collection, "updates": [update]})["nModified"] == 1
        assert long.receive()[1]["ok"] == 1.0
        assert [document["n"] for document in all_of(other, "other")] == [0]


@pytest.mark.parametrize("change", ["drop", "recreate", "rename"])
def test_a_write_whose_collection_is_dropped_or_renamed_fails(server: headrace.Server, change: str) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as other:
        fill(other)
        with held(server, "update"):
            long.send(update_all())
            when_running(other, "update")
            if change == "rename":
                other.ask({"renameCollection": "t.c", "to": "t.d"}, "admin")
            else:
                other.ask({"drop": "c"})
            if change == "recreate":
                fill(other, 3)
        reply = long.receive()[1]
        assert [error["code"] for error in reply["writeErrors"]] == [175]
        if change == "recreate":
            assert [document["n"] for document in all_of(other)] == [0, 0, 0]


def retryable(command: dict[str, Any]) -> dict[str, Any]:
    return {**command, "lsid": {"id": Binary(b"\x07" * 16, 4)}, "txnNumber": Int64(1)}


@pytest.mark.parametrize("kind", ["bulkWrite", "delete", "insert", "update"])
def test_a_retryable_write_that_was_cut_short_goes_on_where_it_was(kind: str, tmp_path: Any) -> None:
    count = 150
    filters = [{"n": 0, "_id": {"$in": [key, -1]}} for key in range(count)]
    command: dict[str, Any] = {
        "bulkWrite": {
            "bulkWrite": 1, "nsInfo": [{"ns": "t.c"}],
            "ops": [{"update": 0, "filter": {"_id": key}, "updateMods": {"$inc": {"n": 1}}} for key in range(count)],
        },
        "delete": {"delete": "c", "deletes": [{"q": spec, "limit": 1} for spec in filters]},
        "insert": {"insert": "valid", "documents": [{"_id": key} for key in range(count)]},
        "update": {"update": "c", "updates": [{"q": {"_id": key}, "u": {"$inc": {"n": 1}}} for key in range(count)]},
    }[kind]  # fmt: skip
    database = "admin" if kind == "bulkWrite" else "t"
    with headrace.Server(tmp_path) as server, RawClient(server.address) as other:
        other.ask({"create": "valid", "validator": {"x": None}})
        fill(other, count)
        server._running.scheduler.turns.seconds = 0.0
        stream = other.watch("valid" if kind == "insert" else "c")
        with held(server, kind, has_changed(server)):
            with RawClient(server.address) as long:
                long.send(retryable(command), database)
                when_running(other, kind)
                watched = "valid" if kind == "insert" else "c"
                until(lambda: other.ask({"getMore": stream, "collection": watched})["cursor"]["nextBatch"])
            until(lambda: not operation(other, kind))
        listed = other.ask({"aggregate": 1, "pipeline": [{"$listLocalSessions": {}}], "cursor": {}}, "t")
        assert [item["_id"]["id"] for item in listed["cursor"]["firstBatch"]] == [Binary(b"\x07" * 16, 4)]
        other.send(retryable(command), database)
        server._running.scheduler.turns.seconds = 0.005
        reply = other.receive()[1]
        assert reply["ok"] == 1.0 and reply.get("n", reply.get("nModified")) == count
        if kind == "bulkWrite":
            assert [result["idx"] for result in reply["cursor"]["firstBatch"]] == list(range(count))
        with server._running.store.reading() as view, view.kv.cursor(view.tables["sessions"]) as cursor:
            assert cursor.first() and not cursor.next(), "pieces of the progress are left"
    with headrace.Server(tmp_path) as server, RawClient(server.address) as client:
        again = client.ask(retryable(command), database)
        assert again.get("n", again.get("nModified")) == count
        if kind == "insert":
            assert len(all_of(client, "valid")) == count
        elif kind == "delete":
            assert all_of(client) == []
        else:
            assert {document["n"] for document in all_of(client)} == {1}


def fail_at(monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]) -> Callable[[int], None]:
    """Make a call of a method of the store raise: the next, or the one after so many."""
    left = [-1]
    original: Callable[..., Any] = getattr(Store, method)

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise error("injected")
        return original(*arguments, **named)

    monkeypatch.setattr(Store, method, call)

    def arm(calls: int) -> None:
        left[0] = calls

    return arm


@pytest.mark.parametrize("method", ["prepare", "sync"])
@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_commit_that_fails_in_the_middle_of_a_write_loses_one_turn_of_it(
    pausing: headrace.Server, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]
) -> None:
    with RawClient(pausing.address) as long, RawClient(pausing.address) as other:
        fill(other)
        arm = fail_at(monkeypatch, method, error)
        arm(100)
        long.send(update_all())
        reply = long.receive()[1]
        assert (reply["ok"], reply["code"]) == (0.0, 1)
        changed = [document["_id"] for document in all_of(other) if document["n"]]
        assert changed == list(range(len(changed))) and 0 < len(changed) < COUNT
        assert other.ask({"insert": "d", "documents": [{"_id": 1}]})["n"] == 1
        assert long.ask(update_all({"n": 0}))["n"] == COUNT - len(changed)


def test_a_retryable_write_that_lost_a_turn_goes_on_when_it_is_sent_again(
    pausing: headrace.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawClient(pausing.address) as client:
        fill(client, 40)
        arm = fail_at(monkeypatch, "prepare", OSError)
        arm(60)  # it may pause before each of them is decoded, too
        updates = [{"q": {"_id": key}, "u": {"$inc": {"n": 1}}} for key in range(40)]
        write = {"update": "c", "updates": updates, "lsid": {"id": Binary(b"\x09" * 16, 4)}, "txnNumber": Int64(1)}
        reply = client.ask(write)
        assert (reply["ok"], reply["code"], reply["errorLabels"]) == (0.0, 1, ["RetryableWriteError"])
        assert {document["n"] for document in all_of(client)} == {0, 1}
        assert client.ask(write)["n"] == 40
        assert {document["n"] for document in all_of(client)} == {1}


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_write_whose_first_turn_fails_runs_again(
    pausing: headrace.Server, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    with RawClient(pausing.address) as long, RawClient(pausing.address) as other:
        fill(other)
        monkeypatch.setattr(limits, "GROUP_SECONDS", 3600.0)  # the group has both writes
        core = pausing._running
        release = hold_the_writer(pausing)
        arm = fail_at(monkeypatch, "prepare", error)
        long.send(update_all({"n": 0}))
        other.send({"insert": "d", "documents": [{"_id": 1}]})
        until(lambda: len(core.writer._queue) >= 2)
        arm(1)
        release()
        assert other.receive()[1]["n"] == 1
        assert long.receive()[1]["n"] == COUNT
        assert {document["n"] for document in all_of(other)} == {1}


def test_the_next_write_of_a_slow_client_runs_after_the_commit_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One document of its update takes long."""
    monkeypatch.setattr(writer_module, "SLOW_SECONDS", 3600.0)
    slow = {"$set": {"n": {"$size": {"$range": [0, 2_000_000]}}}}
    update = {"update": "c", "updates": [{"q": {"_id": 1}, "u": [slow]}]}
    with headrace.Server() as server, RawClient(server.address) as long, RawClient(server.address) as other:
        other.ask({"insert": "c", "documents": [{"_id": 1}]})
        assert long.ask(update)["n"] == 1
        writer, synced, committed = server._running.writer, server._running.writer._synced, []

        def noted(group: Any, failure: Any) -> None:
            committed.append([write.request.name for write in group.clients()])
            synced(group, failure)

        monkeypatch.setattr(writer, "_synced", noted)
        release = hold_the_writer(server)
        long.send(update)
        until(lambda: len(writer._queue) == 1)
        for key in range(2, 4):
            other.send({"insert": "c", "documents": [{"_id": key}]})
        until(lambda: len(writer._queue) == 2)
        release()
        assert [client.receive()[1]["n"] for client in (other, other, long)] == [1, 1, 1]
        assert [names for names in committed if names][:2] == [["insert"], ["update"]]
        assert writer._slow_peer is not None
        assert long.ask({"insert": "c", "documents": [{}]})["n"] == 1
        assert writer._slow_peer is None


def transaction(number: int, *, first: bool = False) -> dict[str, Any]:
    begin = {"startTransaction": True} if first else {}
    return {"lsid": {"id": Binary(b"\x09" * 16, 4)}, "txnNumber": Int64(number), "autocommit": False, **begin}


@pytest.mark.parametrize("end", ["abortTransaction", "commitTransaction"])
def test_a_write_waits_in_the_middle_for_a_lock(pausing: headrace.Server, end: str) -> None:
    locked = 200
    with RawClient(pausing.address) as long, RawClient(pausing.address) as holder, RawClient(pausing.address) as other:
        fill(other)
        change = {"update": "c", "updates": [{"q": {"_id": locked}, "u": {"$set": {"n": 10}}}]}
        assert holder.ask({**change, **transaction(1, first=True)})["n"] == 1
        long.send(update_all({"_id": {"$gte": 0}}))
        until(lambda: other.ask({"count": "c", "query": {"n": 1}})["n"] >= locked)
        for _ in range(20):
            assert other.ask({"ping": 1})["ok"] == 1.0
        assert other.ask({"count": "c", "query": {"n": 1}})["n"] == locked
        assert operation(other, "update")
        assert other.ask(update_all({"_id": locked}, maxTimeMS=30))["code"] == 50
        assert holder.ask({end: 1, **transaction(1)}, "admin")["ok"] == 1.0
        assert long.receive()[1]["n"] == COUNT
        numbers = {document["_id"]: document["n"] for document in all_of(other)}
        assert numbers.pop(locked) == (11 if end == "commitTransaction" else 1)
        assert set(numbers.values()) == {1}


def test_a_write_that_waits_for_a_lock_is_killed(server: headrace.Server) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as holder, RawClient(server.address) as other:
        fill(other)
        change = {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"n": 10}}}]}
        holder.ask({**change, **transaction(1, first=True)})
        long.send(update_all({"_id": {"$gte": 0}}))
        running = when_running(other, "update")
        other.ask({"killOp": 1, "op": running["opid"]}, "admin")
        assert long.receive()[1]["code"] == 11601


@pytest.mark.long
def test_a_transactions_statement_pauses_and_has_its_session_to_itself(server: headrace.Server) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as same, RawClient(server.address) as other:
        fill(other)
        assert long.ask({"insert": "c", "documents": [{"_id": -1, "n": 0}], **transaction(1, first=True)})["n"] == 1
        with held(server, "update"):
            long.send({**update_all(), **transaction(1)})
            when_running(other, "update")
            assert other.ask({"insert": "small", "documents": [{"_id": 1}]})["n"] == 1
            same.send({"commitTransaction": 1, **transaction(1)}, "admin")
            other.ask({"ping": 1})
            assert operation(other, "update") and {document["n"] for document in all_of(other)} == {0}
        assert long.receive()[1]["n"] == COUNT + 1
        assert same.receive()[1]["ok"] == 1.0
        assert {document["n"] for document in all_of(other)} == {1}


@pytest.mark.parametrize("command", ["endSessions", "killSessions"])
def test_a_transaction_aborted_while_its_statement_has_paused(server: headrace.Server, command: str) -> None:
    with RawClient(server.address) as long, RawClient(server.address) as other:
        fill(other)
        with held(server, "update"):
            long.send({**update_all(), **transaction(1, first=True)})
            when_running(other, "update")
            other.ask({command: [transaction(1)["lsid"]]}, "admin")
        reply = long.receive()[1]
        assert reply["code"] == 251, reply
        assert {document["n"] for document in all_of(other)} == {0}


def test_an_interrupted_out_leaves_no_collection_behind(server: headrace.Server) -> None:
    def is_made() -> bool:
        return any(".tmp.agg_out." in name for name in list(server._running.store.catalog.collections))

    with RawClient(server.address) as long, RawClient(server.address) as other:
        fill(other)
        fill(other, 2, "other")
        server._running.scheduler.turns.seconds = 0.0
        with held(server, "aggregate", is_made):
            long.send({"aggregate": "c", "pipeline": [{"$out": "other"}], "cursor": {}})
            until(is_made)
            other.ask({"killOp": 1, "op": when_running(other, "aggregate")["opid"]}, "admin")
            assert long.receive()[1]["code"] == 11601
        server._running.scheduler.turns.seconds = 0.005
        listed = other.ask({"listCollections": 1})["cursor"]["firstBatch"]
        assert sorted(item["name"] for item in listed) == ["c", "other"]
        assert len(all_of(other, "other")) == 2


def test_what_an_out_has_left_at_a_crash_is_dropped(server: headrace.Server) -> None:
    names = {"tmp.agg_out.64b000000000000000000001", "tmp.agg_out.mine", "c"}
    with RawClient(server.address) as client:
        for name in names:
            client.ask({"create": name})
        core = server._running
        asyncio.run_coroutine_threadsafe(core.background.tick(), core.loop).result()
        listed = client.ask({"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"]
        assert {item["name"] for item in listed} == names - {"tmp.agg_out.64b000000000000000000001"}


@pytest.mark.long
def test_an_unacknowledged_write_goes_on_when_its_client_has_gone(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        fill(other)
        with held(server, "update"):
            with RawClient(server.address) as long:
                command = bytearray(raw_update())
                command[16] = 2  # moreToCome
                long.socket.sendall(command)
                when_running(other, "update")
            until(lambda: len(server._running.peers) == 1)
        until(lambda: not operation(other, "update"))
        assert {document["n"] for document in all_of(other)} == {1}


def raw_update() -> bytes:
    from ..raw import message

    return message({**update_all(), "$db": "t", "writeConcern": {"w": 0}})


READS_ALL: dict[str, dict[str, Any]] = {
    "collStats": {"collStats": "c"},
    "count": {"count": "c"},
    "dbStats": {"dbStats": 1},
    "drop": {"drop": "c"},
    "dropDatabase": {"dropDatabase": 1},
    "listDatabases": {"listDatabases": 1},
    "renameCollection": {"renameCollection": "t.d", "to": "t.c", "dropTarget": True},
    "validate": {"validate": "c"},
}


@pytest.mark.parametrize("name", READS_ALL)
def test_what_reads_all_of_a_collection_pauses(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.limits.COUNT_COUNT", 7)
    with headrace.Server(tmp_path) as server, RawClient(server.address) as client:
        fill(client)
        client.ask({"create": "d"})
    with headrace.Server(tmp_path) as server, RawClient(server.address) as long, RawClient(server.address) as other:
        server._running.scheduler.turns.seconds = 0.0
        stream = other.watch("c")
        long.send(READS_ALL[name], "admin" if name in ("listDatabases", "renameCollection") else "t")
        removed = other.ask({"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]})["n"]
        reply = long.receive()[1]
        assert reply["ok"] == 1.0
        if name in ("drop", "dropDatabase", "renameCollection"):
            newest = other.ask({"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 3}, "local")
            entries = [entry for entry in newest["cursor"]["firstBatch"] if "numRecords" in entry.get("o2", {})]
            assert entries[0]["o2"]["numRecords"] == COUNT - removed
        else:
            assert other.ask({"count": "c"})["n"] == COUNT - removed
        assert stream


def test_the_keys_of_a_dropped_index_go_in_the_background(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        fill(client)
        index = {"key": {"_id": 1, "n": 1}, "name": "u", "unique": True}
        client.ask({"createIndexes": "c", "indexes": [index]})
        client.ask({"dropIndexes": "c", "index": "u"})
        assert client.ask({"createIndexes": "c", "indexes": [index]})["ok"] == 1.0
        assert client.ask({"insert": "c", "documents": [{"_id": 1000, "n": 0}]})["n"] == 1
        client.ask({"drop": "c"})
        store = server._running.store

        def rows() -> int:
            with store.reading() as view:
                return int(view.kv.stat(store.tables["indexes"])["entries"])

        until(lambda: not rows())


def test_a_bulk_write_inserts_long_documents_whose_id_is_not_first() -> None:
    text = "x" * (4 * 1024 * 1024)
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        ops = [{"insert": 0, "document": {"a": text, "_id": number}} for number in range(3)]
        reply = client.admin.command({"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "d.c"}]})
        assert reply["nInserted"] == 3
        assert client.d.c.count_documents({}) == 3
