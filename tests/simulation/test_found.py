"""Wrong answers that the simulation has found, each with few steps; they stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.commands.writing.update import _parsed
from headrace.dispatch.wait import Wait
from headrace.store.catalog_changes import collect_garbage, drop
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns
from headrace.values.bson import decode

A_1 = {"key": {"a": 1}, "name": "a_1"}


def fields(number: int, session: int = 1, *, starts: bool = False) -> dict[str, Any]:
    """The fields of a statement in a client's transaction."""
    made: dict[str, Any] = {
        "lsid": {"id": Binary(bytes([session]) * 16, 4)}, "txnNumber": Int64(number), "autocommit": False,
    }  # fmt: skip
    return {**made, "startTransaction": True} if starts else made


def creates(at: DrivenServer, name: str) -> int:
    """How many entries of the oplog create a collection of this name."""
    with at.store.reading() as view:
        entries = [decode(raw) for _, raw in view.entries(0)]
    inner = [one for entry in entries for one in (entry["o"].get("applyOps") or [entry])]
    return sum(one["op"] == "c" and one["o"].get("create") == name for one in inner)


def pauses_of(path: Path, body: dict[str, Any]) -> int:
    """How often a command pauses that has a tick at each chance."""
    with DrivenServer(path / "alone", clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        at.restart()
        return at.in_turns("t", body)[1]


class Paused:
    """A write that pauses at each tick, and what it answers in the end."""

    def __init__(self, at: DrivenServer, body: dict[str, Any]) -> None:
        self._at = at
        self._turns = Turns(seconds=0.0)
        self._request = at.request("t", body)
        self._turn: Turn | None = None
        self.answer: Any = None

    def go_on(self, count: int) -> None:
        """Take some more turns, each with a commit of its own; further ones do nothing when it has ended."""
        engine, store = self._at.engine, self._at.store
        for _ in range(count):
            if self.answer is None:
                txn = store.begin()
                if self._turn is None:
                    command = engine.command(self._request)
                    result = self._turns.run(engine.run_write, command, self._request, txn)
                else:
                    result = self._turns.resume(self._turn, txn)
                store.commit(txn)
                self._turn = result if isinstance(result, Turn) else None
                self.answer = None if isinstance(result, Turn) else result


def test_an_index_that_two_clients_ask_for_is_built_once(tmp_path: Path) -> None:
    """Documents are counted, with pauses, the first time after a start: others may begin the same build meanwhile."""
    body = {"createIndexes": "c", "indexes": [A_1]}
    for pause in range(1, pauses_of(tmp_path, body) + 1):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(3)]})
            at.restart()
            first, second = Paused(at, body), Paused(at, body)
            for write, count in ((first, pause), (second, pause), *[(first, 1), (second, 1)] * 50):
                write.go_on(count)
                listed = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
                assert [item["name"] for item in listed] in (["_id_"], ["_id_", "a_1"]), pause
            assert isinstance(first.answer, bytes)


@pytest.mark.parametrize("body", [
    {"create": "new", "validator": {"a": {"$in": [1, 2, 3]}}},
    {"createIndexes": "new", "indexes": [{**A_1, "partialFilterExpression": {"a": {"$gt": 1}}}]},
    {"insert": "new", "documents": [{"_id": 7}, {"_id": 8}]},
])  # fmt: skip
def test_a_collection_that_a_transaction_makes_is_not_made_twice(tmp_path: Path, body: dict[str, Any]) -> None:
    """The transaction makes it while the command has paused, and commits when the command waits for it."""
    for pause in range(1, pauses_of(tmp_path, body) + 1):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "other", "documents": [{"_id": 1}]})

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.run("t", {"insert": "new", "documents": [{"_id": 1}], **fields(1, starts=True)})
                elif count == pause + 1:
                    at.run("admin", {"commitTransaction": 1, **fields(1)})

            at.in_turns("t", body, between)
            at.run("admin", {"commitTransaction": 1, **fields(1)})
            assert creates(at, "new") == 1, pause


def test_an_index_build_waits_for_a_transaction_that_has_begun_while_documents_were_counted(tmp_path: Path) -> None:
    """Otherwise what the transaction deletes stays in the index."""
    body = {"createIndexes": "c", "indexes": [A_1]}
    for pause in range(1, pauses_of(tmp_path, body) + 1):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(3)]})
            at.restart()

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    delete = {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}
                    at.run("t", {**delete, **fields(1, starts=True)})
                elif count == pause + 6:
                    at.run("admin", {"commitTransaction": 1, **fields(1)})

            at.in_turns("t", body, between)
            at.run("admin", {"commitTransaction": 1, **fields(1)})
            found = at.must("t", {"find": "c", "filter": {"a": {"$gte": 0}}, "hint": "a_1"})["cursor"]["firstBatch"]
            assert [item["_id"] for item in found] == [0, 2], pause


def test_a_transaction_does_not_touch_a_collection_whose_index_becomes_ready(tmp_path: Path) -> None:
    """Its snapshot lacks keys of the index, and its commit would leave those of what it changes."""
    body = {"createIndexes": "c", "indexes": [A_1]}
    codes = set()
    pauses = pauses_of(tmp_path, body)
    for commit in (pauses, pauses + 1):  # those of the build; before it, the build waits for the transaction
        with DrivenServer(tmp_path / str(commit), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(3)]})
            at.restart()
            sync, synced = at.store.sync, []

            def sync_later(
                txn: Any, at: DrivenServer = at, commit: int = commit, sync: Any = sync, synced: list[Any] = synced
            ) -> None:
                synced.append(txn)
                if len(synced) == commit:
                    update = {"q": {"_id": 1}, "u": {"$inc": {"a": 10}}}
                    reply = at.run("t", {"update": "c", "updates": [update], **fields(1)})
                    assert isinstance(reply, dict)
                    codes.add(reply.get("code", 0))
                sync(txn)

            def begin(count: int, at: DrivenServer = at) -> None:
                if count == 1:
                    at.run("t", {"find": "other", **fields(1, starts=True)})

            at.store.sync = sync_later  # type: ignore[method-assign]
            at.in_turns("t", body, begin)
            at.run("admin", {"commitTransaction": 1, **fields(1)})
            for hint in ("a_1", "_id_"):
                found = at.must("t", {"find": "c", "filter": {"a": {"$gte": 0}}, "hint": hint})["cursor"]["firstBatch"]
                assert sorted(item["_id"] for item in found) == [0, 1, 2], (commit, hint)
    assert 246 in codes


def test_a_transaction_that_has_read_a_view_commits_after_the_view_was_dropped() -> None:
    """Dropping a database removes its views in the write transaction that the commit shares."""
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
        at.run("t", {"find": "v", **fields(1, starts=True)})
        at.run("t", {"insert": "c", "documents": [{"_id": 2}], **fields(1)})
        txn = at.store.begin()
        drop(txn, txn.catalog.collections["t.v"])
        request = at.request("admin", {"commitTransaction": 1, **fields(1)})
        reply = at.engine.run(at.engine.command(request), request, txn)
        at.store.commit(txn)
        assert isinstance(reply, bytes) and decode(reply)["ok"] == 1.0
        assert at.must("t", {"count": "c"})["n"] == 2


@pytest.mark.parametrize("stage", ["prepared", "synced"])
@pytest.mark.parametrize("body", [
    {"drop": "c"},
    {"createIndexes": "c", "indexes": [A_1]},
    {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}},
    {"collMod": "c", "validator": {"a": {"$gt": 1}}},
    {"create": "new"},
    {"renameCollection": "t.c", "to": "t.new"},
])  # fmt: skip
def test_a_transaction_uses_no_collection_whose_change_is_on_its_way_to_the_disk(
    stage: str, body: dict[str, Any]
) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        at.must("t", {"find": "c", "filter": {"_id": 9}, **fields(1, 9, starts=True)})  # so that it is recorded
        at.must("admin", {"abortTransaction": 1, **fields(1, 9)})
        at.must("t", {"find": "other", **fields(1, starts=True)})
        replies: list[Any] = []

        def between(now: str) -> None:
            if now == stage and not replies:
                name = "new" if "create" in body else "c"
                write = {"insert": name, "documents": [{"_id": 2, "a": 2}]}
                replies.append(at.run("t", {**write, **fields(1)}))

        at.between = between
        at.must("admin" if "renameCollection" in body else "t", body)
        assert replies[0].get("code") == 246
        reply = at.run("admin", {"commitTransaction": 1, **fields(1)})
        assert isinstance(reply, dict) and reply["code"] == 251
        at.must("t", {"insert": "c", "documents": [{"_id": 5, "a": 5}]})


def test_a_key_that_a_transaction_locks_while_an_insert_is_being_refused_stays_locked(tmp_path: Path) -> None:
    """To tell what is a duplicate may take a pause, and after that it may be one no longer."""
    for pause in range(1, 15):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": 1}, {"_id": 8}]})
            at.must("t", {"insert": "other", "documents": [{"_id": 1}]})
            at.must("t", {"update": "other", "updates": [{"q": {}, "u": {"a": 1}}], **fields(1, 2, starts=True)})

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    txn = at.store.begin()
                    delete = {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}
                    request = at.request("t", delete)
                    assert isinstance(at.engine.run_write(at.engine.command(request), request, txn), bytes)
                    at.store.commit(txn)
                    at.must("t", {"insert": "c", "documents": [{"_id": 1, "by": "t"}], **fields(1, starts=True)})
                elif count == pause + 3:
                    at.must("admin", {"commitTransaction": 1, **fields(1)})

            body = {"insert": "c", "documents": [{"_id": 1}, {"_id": 5}], "ordered": False}
            reply, pauses = at.in_turns("t", body, between)
            at.run("admin", {"commitTransaction": 1, **fields(1)})
            assert reply["n"] == 1, pause
            found = at.must("t", {"find": "c", "filter": {}})["cursor"]["firstBatch"]
            assert sorted(item["_id"] for item in found) == [1, 5, 8], (pause, pauses)


def test_a_database_is_dropped_whose_collection_goes_while_it_is_counted(tmp_path: Path) -> None:
    """The count of a collection that is gone is not kept from one turn to the next."""
    for pause in (1, 2):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": n} for n in range(3)]})
            at.restart()

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                assert count < 50
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.must("t", {"drop": "c"})

            reply, _ = at.in_turns("t", {"dropDatabase": 1}, between)
            assert reply["ok"] == 1.0


@pytest.mark.parametrize(
    "body",
    [
        {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"n": 1}}}]},
        {"update": "c", "updates": [{"q": {"a": {"$in": [1, 2]}}, "u": {"$set": {"m": 1}}, "multi": True}]},
        {"delete": "c", "deletes": [{"q": {"a": {"$in": [1, 2]}}, "limit": 0}]},
        {"findAndModify": "c", "query": {"a": {"$in": [1, 2]}}, "update": {"$set": {"o": 1}}},
    ],
)
def test_nothing_is_written_to_a_collection_that_was_replaced_meanwhile(body: dict[str, Any]) -> None:
    """Also not by a command that paused before it had found a document, as it does while it parses."""
    for pause in range(1, 20):
        _parsed.clear()
        with DrivenServer(clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": 3, "a": 1}]})
            at.must("t", {"insert": "d", "documents": [{"_id": 1}]})
            gone = at.store.catalog.collections["t.c"].uuid
            renamed: list[int] = []

            def between(count: int, at: DrivenServer = at, pause: int = pause, renamed: list[int] = renamed) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.must("admin", {"renameCollection": "t.d", "to": "t.c", "dropTarget": True})
                    renamed.append(at.store.last_position)

            at.in_turns("t", body, between)
            if renamed:
                with at.store.reading() as view:
                    written = [decode(raw) for _, raw in view.entries(renamed[0] + 1)]
                assert not [entry for entry in written if bytes(entry.get("ui", b"")) == gone], pause


def test_an_update_by_id_changes_no_document_that_has_the_record_of_one_that_was_deleted(tmp_path: Path) -> None:
    """After a start the next record follows the last one that is there, which may be free again."""
    for pause in range(1, 12):
        _parsed.clear()
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
            at.restart()

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.must("t", {"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
                    at.must("t", {"insert": "c", "documents": [{"_id": 2}]})

            at.in_turns("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 1}}}]}, between)
            assert {"_id": 2, "n": 1} not in at.must("t", {"find": "c"})["cursor"]["firstBatch"], pause


@pytest.mark.parametrize("body", [
    {"delete": "c", "deletes": [{"q": {"_id": {"$in": [1, 2]}}, "limit": 0}]},
    {"delete": "c", "deletes": [{"q": {"_id": {"$gte": 0}}, "limit": 0}]},
    {"delete": "c", "deletes": [{"q": {"a": 1, "b": 1}, "limit": 1}]},
    {"update": "c", "updates": [{"q": {"a": 1, "b": 1}, "u": {"$set": {"m": 1}}, "multi": True}]},
    {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"m": 1}}}]},
    {"findAndModify": "c", "query": {"a": 1, "b": 1}, "update": {"$set": {"o": 1}}},
    {"findAndModify": "c", "query": {"_id": {"$gte": 2}}, "sort": {"_id": 1}, "remove": True},
])  # fmt: skip
def test_a_write_that_has_paused_looks_for_nothing_in_a_collection_that_was_dropped(body: dict[str, Any]) -> None:
    """The documents of one go bit by bit, before what leads to them: an error would say that the file is damaged."""
    indexes = [{"key": {"a": 1, "b": 1}, "name": "a_b"}, {"key": {"b": 1, "a": 1}, "name": "b_a"}]
    for pause in range(1, 30):
        _parsed.clear()
        with DrivenServer(clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": n, "a": 1, "b": 1} for n in range(3)]})
            at.must("t", {"createIndexes": "c", "indexes": indexes})

            def between(count: int, at: DrivenServer = at, pause: int = pause) -> None:
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.must("t", {"drop": "c"})
                    txn = at.store.begin()
                    collect_garbage(txn, 3)
                    at.store.commit(txn)

            reply, _ = at.in_turns("t", body, between)
            codes = {reply.get("code", 0), *(error["code"] for error in reply.get("writeErrors", ()))}
            assert codes <= {0, 175}, pause


@pytest.mark.parametrize(
    "how",
    [
        {"filter": {}},
        {"filter": {"_id": {"$gte": 0}}},
        {"sort": {"_id": 1}},
        {"sort": {"_id": 1}, "projection": {"_id": 1}},
    ],
)
def test_a_cursor_over_a_collection_that_was_dropped_is_killed(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    """Its documents go bit by bit, and others that were never seen may be among them."""
    monkeypatch.setattr(limits, "VIEW_CHUNK_COUNT", 2)
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n} for n in range(9)]})
        cursor = at.must("t", {"find": "c", "batchSize": 2, **how})["cursor"]
        at.must("t", {"drop": "c"})
        at.must("t", {"insert": "c", "documents": [{"_id": 100}]})
        reply = at.run("t", {"getMore": Int64(cursor["id"]), "collection": "c"})
        assert isinstance(reply, dict) and reply.get("code") == 175


@pytest.mark.parametrize("writes", [
    {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$unset": {"a": 1}}}]},
    {"update": "c", "updates": [{"q": {}, "u": {"$unset": {"a": 1}}, "multi": True}]},
    {"findAndModify": "c", "query": {"_id": 1}, "update": {"$unset": {"a": 1}}},
])  # fmt: skip
def test_a_write_that_ends_the_build_of_a_unique_index_waits_for_the_locks_of_its_document(
    tmp_path: Path, writes: dict[str, Any]
) -> None:
    """A duplicate does not refuse the write while the index is built: its trial must go on to the locks."""
    body = {"createIndexes": "c", "indexes": [{**A_1, "unique": True}]}
    for pause in range(1, pauses_of(tmp_path, body) + 1):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2}]})
            Paused(at, body).go_on(pause)
            change = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$push": {"b": 1}}}]}
            at.must("t", {**change, **fields(1, starts=True)})
            assert isinstance(at.run("t", writes), Wait), pause


def test_a_tailable_getmore_that_pauses_waits_for_nothing_that_came_meanwhile() -> None:
    """It reads the state of its start, and is not woken by a commit before it is parked."""
    for pause in range(1, 6):
        turns = Turns(seconds=0.0)
        with DrivenServer(clock=FakeClock()) as at:
            at.must("t", {"create": "c", "capped": True, "size": 4096})
            at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
            cursor = at.must("t", {"find": "c", "tailable": True, "awaitData": True, "filter": {"a": None}})["cursor"]
            more = at.request("t", {"getMore": Int64(cursor["id"]), "collection": "c"})
            at.must("t", {"insert": "c", "documents": [{"_id": 2, "a": 1}, {"_id": 3, "a": 1}]})
            answer, count = turns.run(at.engine.run_read, at.engine.command(more), more), 1
            while isinstance(answer, Turn):
                print(count, [list(t.touched) for t in at.store.transactions.open.values()])
                if count == pause:
                    at.must("t", {"insert": "c", "documents": [{"_id": 4}]})
                answer, count = turns.resume(answer), count + 1
            if isinstance(answer, Wait) and count > pause:
                assert answer.over is not None and answer.over(), pause


@pytest.mark.parametrize("goal", ["t.d", "other.d"])
def test_a_rename_waits_for_a_transaction_that_began_while_it_waited_for_another(tmp_path: Path, goal: str) -> None:
    """It waits for one on its source, then for one on its target, and by then there may be a new one on its source."""
    for pause in range(1, 6):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            database, name = goal.split(".")
            at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
            at.must(database, {"insert": name, "documents": [{"_id": 1}]})
            at.restart()
            used = [("t", "c"), (database, name), ("t", "c")]

            def between(count: int, at: DrivenServer = at, pause: int = pause, used: Any = used) -> None:
                number = count - pause
                if 0 <= number < len(used):
                    database, name = used[number]
                    change = {"updates": [{"q": {"_id": 1}, "u": {"$set": {"a": number}}}]}
                    at.run(database, {"update": name, **change, **fields(1, number + 1, starts=True)})
                if 1 <= number <= len(used):
                    reply = at.run("admin", {"commitTransaction": 1, **fields(1, number)})
                    assert isinstance(reply, dict) and (reply["ok"] == 1.0 or reply["code"] == 251), reply

            at.in_turns("admin", {"renameCollection": "t.c", "to": goal, "dropTarget": True}, between)
            at.run("admin", {"commitTransaction": 1, **fields(1, 3)})


@pytest.mark.long
@pytest.mark.parametrize("field", ["a", "b"])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("commits_at", ["once", "the end"])
def test_a_transaction_leaves_the_entries_of_its_documents_in_an_index_that_is_built_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool, commits_at: str, field: str
) -> None:
    """Its statements read a state in which the document was not yet in the index; `b` is not in the index."""
    monkeypatch.setattr(limits, "VIEW_CHUNK_COUNT", 1)
    monkeypatch.setattr(limits, "BUILD_COUNT", 1)
    for begun in range(1, 8):
        for pause in range(begun, 12):
            with DrivenServer(tmp_path / f"{begun}-{pause}", clock=FakeClock()) as at:
                at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(4)]})
                at.must("t", {"insert": "d", "documents": [{"_id": 1}]})
                at.restart()
                build = Paused(at, {"createIndexes": "c", "indexes": [{**A_1, "unique": unique}]})
                build.go_on(begun)
                at.must("t", {"find": "d", **fields(1, starts=True)})
                build.go_on(pause - begun)
                change = {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {field: 7}}}]}
                changed = at.run("t", {**change, **fields(1)})
                if commits_at == "the end":
                    build.go_on(10)
                done = isinstance(changed, dict) and changed["ok"] == 1.0
                if done:
                    at.must("admin", {"commitTransaction": 1, **fields(1)})
                build.go_on(60)
                find = {"find": "c", "filter": {"a": {"$gte": 0}}, "hint": "a_1"}
                found = [item["a"] for item in at.must("t", find)["cursor"]["firstBatch"]]
                assert found == [0, 1, 2, 7 if done and field == "a" else 3], (begun, pause)


@pytest.mark.long
@pytest.mark.parametrize("write", [
    {"insert": "c", "documents": [{"_id": 9, "a": 3}]},
    {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"a": 3}}}]},
    {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"a": 0}}}]},
], ids=lambda write: next(iter(write)))  # fmt: skip
def test_a_transaction_brings_no_key_a_second_time_into_an_index_that_is_built_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: dict[str, Any]
) -> None:
    """Its statement writes the key before the build does, for another document."""
    monkeypatch.setattr(limits, "BUILD_COUNT", 1)
    for begun in range(1, 8):
        for pause in range(begun, 9):
            with DrivenServer(tmp_path / f"{begun}-{pause}", clock=FakeClock()) as at:
                at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(4)]})
                at.must("t", {"insert": "d", "documents": [{"_id": 1}]})
                build = Paused(at, {"createIndexes": "c", "indexes": [{**A_1, "unique": True}]})
                build.go_on(begun)
                at.must("t", {"find": "d", **fields(1, starts=True)})
                build.go_on(pause - begun)
                at.run("t", {**write, **fields(1)})
                build.go_on(9 - pause)
                at.run("admin", {"commitTransaction": 1, **fields(1)})
                build.go_on(20)
                values = [item["a"] for item in at.must("t", {"find": "c"})["cursor"]["firstBatch"]]
                indexes = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
                assert len(indexes) == 1 or len(set(values)) == len(values), (begun, pause, values)
                assert len(indexes) == 2 or len(set(values)) < len(values), (begun, pause, values)


@pytest.mark.parametrize(
    "body", [{"createIndexes": "c", "indexes": [A_1]}, {"drop": "c"}], ids=["createIndexes", "drop"]
)
def test_a_command_that_counts_ends_if_its_collection_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    """It counted from the start again after each pause until the dropped documents had been removed."""
    monkeypatch.setattr(limits, "COUNT_COUNT", 2)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(8)]})
        at.restart()
        counting = Paused(at, body)
        counting.go_on(2)
        txn = at.store.begin()
        drop(txn, txn.collection("t.c"))
        at.store.commit(txn)
        counting.go_on(20)
        assert counting.answer is not None


def test_an_insert_after_a_failed_group_takes_no_record_of_a_document(tmp_path: Path) -> None:
    """The group had deleted the last documents before it inserted the first one since the start."""
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(4)]})
        at.restart()
        txn = at.store.begin()
        for body in (
            {"delete": "c", "deletes": [{"q": {"_id": {"$gt": 1}}, "limit": 0}]},
            {"insert": "c", "documents": [{"_id": 8}]},
        ):
            request = at.request("t", body)
            at.engine.run_write(at.engine.command(request), request, txn)
        at.store.abandon(txn)
        at.must("t", {"insert": "c", "documents": [{"_id": 9}]})
        found = at.must("t", {"find": "c"})["cursor"]["firstBatch"]
        assert [each["_id"] for each in found] == [0, 1, 2, 3, 9]


def test_a_statement_that_has_paused_uses_no_collection_that_was_dropped_meanwhile(tmp_path: Path) -> None:
    """It is error 246 then. The commit failed, as the statement looked at the catalog of its beginning."""
    updates = [{"update": number, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 2}}} for number in (0, 1)]
    spaces = [{"ns": "t.d"}, {"ns": "t.c"}]
    codes = set()
    for when in range(6):
        with DrivenServer(tmp_path / str(when), clock=FakeClock()) as at:
            for name in ("c", "d"):
                at.must("t", {"insert": name, "documents": [{"_id": 1, "a": 1}]})
            at.must("t", {"find": "d", **fields(1, starts=True)})
            request = at.request("admin", {"bulkWrite": 1, "ops": updates, "nsInfo": spaces, **fields(1)})
            turns = Turns(seconds=0.0)
            answer = turns.run(at.engine.run_read, at.engine.command(request), request)
            for number in range(100):
                if not isinstance(answer, Turn):
                    break
                if number == when:
                    at.run("t", {"drop": "c"})
                answer = turns.resume(answer)
            reply = decode(answer)
            codes.add(reply.get("code", 0))
            if reply["ok"] == 1.0:
                at.must("admin", {"commitTransaction": 1, **fields(1)})
                assert at.must("t", {"find": "d"})["cursor"]["firstBatch"] == [{"_id": 1, "a": 2}]
    assert codes == {0, 246}


def test_a_time_series_can_be_made_again_while_its_database_is_dropped(tmp_path: Path) -> None:
    """Its view had stayed without buckets until the end of the drop, and `create` was error 26."""
    made = {"create": "m", "timeseries": {"timeField": "t", "granularity": "seconds"}}
    for pause in range(1, 6):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
            at.must("t", made)
            drop = Paused(at, {"dropDatabase": 1})
            drop.go_on(pause)
            answer = at.run("t", {**made, "timeseries": {"timeField": "t", "granularity": "minutes"}})
            assert isinstance(answer, dict) and answer.get("code", 0) in (0, 48)
            drop.go_on(60)
            assert decode(drop.answer)["ok"] == 1.0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_bulk_write_that_is_sent_again_has_a_cursor_of_its_own(tmp_path: Path, restarts: bool) -> None:
    """Its reply was stored with the cursor, which ends with the server or with its last batch."""
    session = {"lsid": {"id": Binary(bytes(16), 4)}}
    bulk: dict[str, Any] = {
        "bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": number}} for number in range(3)],
        "nsInfo": [{"ns": "t.c"}], "cursor": {"batchSize": 1}, "txnNumber": Int64(1), **session,
    }  # fmt: skip
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        seen = []
        for number in range(2):
            if number and restarts:
                at.restart()
            cursor = at.must("admin", bulk)["cursor"]
            more = {"getMore": Int64(cursor["id"]), "collection": "$cmd.bulkWrite", **session}
            seen.append([*cursor["firstBatch"], *at.must("admin", more)["cursor"]["nextBatch"]])
        assert seen == [[{"ok": 1.0, "idx": number, "n": 1} for number in range(3)]] * 2
