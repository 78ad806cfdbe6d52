"""Many index entries of a document come and go in pieces: others see them behind the last one, with the document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.dispatch.wait import Wait
from headrace.errors import Interrupted
from headrace.store.check.directory import check
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

KILLED = Interrupted(11601, "operation was interrupted")
OLD = {"_id": "many", "a": list(range(40)), "u": list(range(100, 140))}
NEW = {"_id": "many", "a": list(range(20, 60)), "u": list(range(120, 160)), "b": 1}
FEW = {"_id": "many", "a": 7}
WRITES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any]]] = {
    "insert": (None, OLD, {"insert": "c", "documents": [OLD]}),
    "upsert": (None, OLD, {"update": "c", "updates": [{"q": {"_id": "many"}, "u": OLD, "upsert": True}]}),
    "replace": (OLD, NEW, {"update": "c", "updates": [{"q": {"_id": "many"}, "u": NEW}]}),
    "grow": (FEW, OLD, {"update": "c", "updates": [{"q": {"_id": "many"}, "u": {"$set": {k: OLD[k] for k in "au"}}}]}),
    "shrink": (OLD, FEW, {"update": "c", "updates": [{"q": {"a": 7}, "u": FEW}]}),
    "modify": (OLD, NEW, {"findAndModify": "c", "query": {"a": 39}, "update": NEW}),
    "delete": (OLD, None, {"delete": "c", "deletes": [{"q": {"_id": "many"}, "limit": 1}]}),
    "remove": (OLD, None, {"findAndModify": "c", "query": {"a": 30}, "remove": True}),
}
PART = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
by_write = pytest.mark.parametrize("write", WRITES)
in_pieces = pytest.mark.parametrize("write", [name for name in WRITES if name != "upsert"])


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREPARED_BYTES", 20)
    monkeypatch.setattr(limits, "ENTRY_COUNT", 20)
    monkeypatch.setattr(limits, "COMMIT_PIECE_COUNT", 16)


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as made:
        yield made
        assert not made.store.before_images and not made.store.transactions.undoing
        assert not made.store.transactions.locks
        assert made.must("d", {"validate": "c"})["valid"]


def fill(server: DrivenServer, write: str) -> None:
    create_indexes(server)
    server.must("d", {"insert": "c", "documents": [{"_id": key, "a": key} for key in range(5)]})
    before = WRITES[write][0]
    if before is not None:
        server.must("d", {"insert": "c", "documents": [before]})


def create_indexes(server: DrivenServer) -> None:
    partial = {"partialFilterExpression": {"u": {"$exists": True}}}
    server.must("d", {"createIndexes": "c", "indexes": [
        {"key": {"a": 1}, "name": "a"}, {"key": {"u": -1}, "name": "u", "unique": True, **partial}
    ]})  # fmt: skip


def all_in(server: DrivenServer, **options: Any) -> list[Any]:
    return list(server.must("d", {"find": "c", **options})["cursor"]["firstBatch"])


def state(server: DrivenServer, **options: Any) -> Any:
    """What is in the collection, looked at in every way."""
    ranges: tuple[tuple[str, dict[str, Any]], ...] = (("a", {"a": {"$gte": 0}}), ("u", {"u": {"$gte": 0}}))
    walks = [all_in(server, hint=hint, filter=filter_, **options) for hint, filter_ in ranges]
    back = [all_in(server, hint=hint, filter=filter_, sort={hint: -1}, **options) for hint, filter_ in ranges]
    points = [
        [document["_id"] for document in all_in(server, filter={path: value}, hint=path, **options)]
        for path, values in (("a", (7, 30, 50)), ("u", (110, 130, 150))) for value in values
    ]  # fmt: skip
    counts = [
        server.must("d", {"aggregate": "c", "pipeline": [{"$match": filter_}, {"$count": "n"}], "cursor": {},
                          **options})["cursor"]["firstBatch"]
        for filter_ in ({}, {"a": {"$gte": 3}}, {"_id": {"$gte": 0}})
    ]  # fmt: skip
    values = [server.must("d", {"distinct": "c", "key": key, **options})["values"] for key in "au"]
    return all_in(server, **options), walks, back, points, counts, values


def undo(server: DrivenServer) -> None:
    """What the background job does."""
    while server.store.transactions.undoing:
        txn = server.store.begin()
        server.store.transactions.undoing[0].undo(txn)
        server.store.commit(txn)


def hidden(server: DrivenServer) -> bool:
    return bool(server.store.before_images)


@by_write
def test_others_see_all_of_it_or_nothing(server: DrivenServer, write: str) -> None:
    fill(server, write)
    before, seen = state(server), list[bool]()

    def between(pauses: int) -> Interrupted | None:
        seen.append(hidden(server))
        if hidden(server):
            assert state(server) == before
            assert seen.count(True) % 5 or server.must("d", {"validate": "c"})["valid"]
        return KILLED if seen.count(True) > 8 else None  # before that an insert claims its keys, and can be killed

    stream = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    cursor = server.must("d", stream)["cursor"]["id"]
    reply, _ = server.in_turns("d", WRITES[write][2], between)
    assert reply["ok"] == 1.0 and not reply.get("writeErrors")
    assert write == "upsert" or seen.count(True) > 4
    after = WRITES[write][1]
    assert [document for document in all_in(server) if document["_id"] == "many"] == [after][: after is not None]
    after_state = state(server)
    server.must("d", {"dropIndexes": "c", "index": "*"})
    create_indexes(server)
    assert state(server) == after_state
    (event,) = server.must("d", {"getMore": cursor, "collection": "$cmd.aggregate"})["cursor"]["nextBatch"][:1]
    assert event["documentKey"] == {"_id": "many"}


@in_pieces
def test_who_writes_the_same_waits(server: DrivenServer, write: str) -> None:
    """The document, its `_id`, a unique key that comes; not others."""
    fill(server, write)
    waits, others = list[Any](), 0
    after = WRITES[write][1]

    def between(pauses: int) -> None:
        nonlocal others
        if not hidden(server) or not server.store.transactions.locks:
            return
        before = state(server)
        waits.append(server.run("d", {"update": "c", "updates": [{"q": {"_id": "many"}, "u": {"$set": {"z": 1}}}]}))
        waits.append(server.run("d", {"insert": "c", "documents": [{"_id": "many"}]}))
        if after is not None and "u" in after:
            waits.append(server.run("d", {"insert": "c", "documents": [{"_id": "other", "u": after["u"][-1]}]}))
        update, insert, *unique = waits
        assert isinstance(update, Wait) or WRITES[write][0] is None  # to update what is not there changes nothing
        assert isinstance(insert, Wait) or insert["writeErrors"][0]["code"] == 11000
        assert all(isinstance(answer, Wait) for answer in unique)
        del waits[:]
        transaction = {"update": "c", "updates": [{"q": {"a": {"$gte": 0}}, "u": {"$set": {"z": 1}}, "multi": True}]}
        assert write == "insert" or server.run("d", {**transaction, **PART, "startTransaction": True})["code"] == 112
        others += 1
        server.must("d", {"insert": "c", "documents": [{"_id": f"o{others}", "a": "o"}]})
        assert len(state(server)[0]) == len(before[0]) + 1
        PART["txnNumber"] = Int64(PART["txnNumber"] + 1)

    reply, _ = server.in_turns("d", WRITES[write][2], between)
    assert others > 3 and reply["ok"] == 1.0 and not reply.get("writeErrors")
    later = {"update": "c", "updates": [{"q": {"_id": "many"}, "u": {"$set": {"z": 1}}}]}
    assert not isinstance(server.run("d", later), Wait)


@in_pieces
def test_a_transaction_reads_as_of_its_start(server: DrivenServer, write: str) -> None:
    fill(server, write)
    before = state(server)

    def look(session: int, *, first: bool = False) -> None:
        part = {"lsid": {"id": Binary(bytes([session]) * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}
        if first:
            server.must("d", {"find": "c", **part, "startTransaction": True})
        assert state(server, **part) == before

    seen = list[int]()

    def between(pauses: int) -> None:
        if hidden(server):
            seen.append(pauses)
            if len(seen) % 3 == 1:
                look(1)
                look(2, first=len(seen) == 1)

    look(1, first=True)
    server.in_turns("d", WRITES[write][2], between)
    look(1)
    look(2)
    assert state(server) != before and seen
    server.must("admin", {"killAllSessions": []})


@in_pieces
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_crash_in_the_middle_leaves_nothing(tmp_path: Path, write: str, at: int) -> None:
    class Ended(BaseException):
        """The process ends."""

    with DrivenServer(tmp_path, clock=FakeClock()) as server:
        fill(server, write)
        before, count = state(server), 0

        def between(pauses: int) -> None:
            nonlocal count
            count += hidden(server)
            if count == at:
                raise Ended

        with pytest.raises(Ended):
            server.in_turns("d", WRITES[write][2], between)
        server.restart()
        assert state(server) == before
        server.must("d", WRITES[write][2])
        assert state(server) != before
    assert not check(tmp_path).problems


@in_pieces
def test_a_commit_that_fails_is_undone(server: DrivenServer, write: str) -> None:
    class Failed(BaseException):
        """The group of writes fails."""

    fill(server, write)
    before, seen = state(server), list[bool]()

    def between(pauses: int) -> None:
        seen.append(hidden(server))
        if seen.count(True) == 4:
            raise Failed

    with pytest.raises(Failed):
        server.in_turns("d", WRITES[write][2], between)
    assert server.store.transactions.undoing and state(server) == before
    undo(server)
    assert state(server) == before
    server.must("d", WRITES[write][2])
    assert state(server) != before


@pytest.mark.parametrize("change", ["drop", "rename", "cap", "index", "drop index"])
@in_pieces
def test_a_collection_that_changes_meanwhile(server: DrivenServer, write: str, change: str) -> None:
    fill(server, write)
    changes: dict[str, Callable[[], Any]] = {
        "drop": lambda: server.must("d", {"drop": "c"}),
        "rename": lambda: server.must("admin", {"renameCollection": "d.c", "to": "d.other"}),
        "cap": lambda: server.must("d", {"convertToCapped": "c", "size": 100_000}),
        "index": lambda: server.must("d", {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}),
        "drop index": lambda: server.must("d", {"dropIndexes": "c", "index": "a"}),
    }
    is_changed = False

    def between(pauses: int) -> None:
        nonlocal is_changed
        if hidden(server) and server.store.transactions.locks and not is_changed:
            is_changed = True
            changes[change]()
        elif is_changed:
            undo(server)

    reply, _ = server.in_turns("d", WRITES[write][2], between)
    undo(server)
    assert is_changed
    if change in ("drop", "rename") or reply.get("writeErrors") or not reply["ok"]:
        assert reply.get("n") == 0 or (reply.get("writeErrors") or [reply])[0]["code"] == 175
        if change == "rename":
            server.must("admin", {"renameCollection": "d.other", "to": "d.c"})
        server.must("d", {"insert": "c", "documents": [{"_id": "now"}]})
    else:
        assert reply["ok"] == 1.0 and not reply.get("writeErrors")
        after = WRITES[write][1]
        assert [document for document in all_in(server) if document["_id"] == "many"] == [after][: after is not None]


@in_pieces
def test_it_waits_for_the_locks_of_a_transaction(server: DrivenServer, write: str) -> None:
    fill(server, write)
    locking = {"insert": "c", "documents": [{"_id": "many"}]}
    if WRITES[write][0] is not None:
        locking = {"update": "c", "updates": [{"q": {"_id": "many"}, "u": {"$set": {"z": 1}}}]}
    server.must("d", {**locking, **PART, "startTransaction": True})
    waited = list[int]()

    def between(pauses: int) -> None:
        waited.append(pauses)
        if len(waited) == 12:
            server.must("admin", {"abortTransaction": 1, **PART})

    reply, _ = server.in_turns("d", WRITES[write][2], between)
    PART["txnNumber"] = Int64(PART["txnNumber"] + 1)
    assert reply["ok"] == 1.0 and not reply.get("writeErrors") and len(waited) > 12
    after = WRITES[write][1]
    assert [document for document in all_in(server) if document["_id"] == "many"] == [after][: after is not None]


def test_a_key_that_another_has_refuses_all_of_it(server: DrivenServer) -> None:
    fill(server, "grow")
    server.must("d", {"insert": "c", "documents": [{"_id": "other", "u": 139}]})
    before = state(server)
    for write in (WRITES["grow"][2], {"insert": "c", "documents": [{**OLD, "_id": "more"}]}):
        reply, _ = server.in_turns("d", write, lambda pauses: None)
        assert reply["writeErrors"][0]["code"] == 11000
        assert state(server) == before
    assert not server.store.transactions.undoing
