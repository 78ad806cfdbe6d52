"""The commit of a large transaction is made in pieces: others see all of it or nothing, whenever they look."""

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
from headrace.store.data_file import UnusableDirectory
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

COUNT = 60


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMIT_PIECE_COUNT", 7)


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as made:
        fill(made)
        yield made


def fill(server: DrivenServer) -> None:
    server.must("d", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    images = {"create": "c2", "changeStreamPreAndPostImages": {"enabled": True}}
    server.must("d", images)
    for name in ("c", "c2"):
        server.must("d", {"insert": name, "documents": [{"_id": key, "a": key % 5} for key in range(0, COUNT, 2)]})


def part_of(number: int = 1, session: int = 9, *, first: bool = False) -> dict[str, Any]:
    begin = {"startTransaction": True} if first else {}
    return {"lsid": {"id": Binary(bytes([session]) * 16, 4)}, "txnNumber": Int64(number), "autocommit": False, **begin}


def write_much(server: DrivenServer) -> None:
    """A transaction that inserts, updates, deletes, inserts what it has deleted, and makes a collection."""
    odd = [{"_id": key, "a": key % 5} for key in range(1, COUNT, 2)]
    server.must("d", {"insert": "c", "documents": odd, **part_of(first=True)})
    update = {"q": {"_id": {"$gte": 20}}, "u": {"$inc": {"a": 10}}, "multi": True}
    server.must("d", {"update": "c", "updates": [update], **part_of()})
    server.must("d", {"delete": "c", "deletes": [{"q": {"_id": {"$lt": 10}}, "limit": 0}], **part_of()})
    server.must("d", {"insert": "c", "documents": [{"_id": 4, "a": 77}], **part_of()})
    server.must("d", {"update": "c2", "updates": [{"q": {}, "u": {"$set": {"b": 1}}, "multi": True}], **part_of()})
    server.must("d", {"insert": "new", "documents": [{"_id": key} for key in range(20)], **part_of()})


def commit_in_turns(server: DrivenServer, between: Callable[[int], object], body: Any = None) -> dict[str, Any]:
    """The reply to the commit; `between` is called at each pause, and may raise."""
    interruption = Interrupted(11601, "operation was interrupted")  # which a commit does not mind
    command = body or {"commitTransaction": 1, **part_of()}
    reply, pauses = server.in_turns("admin", command, between, interruption=interruption)
    assert pauses > 20
    return reply


def all_in(server: DrivenServer, name: str = "c", **options: Any) -> list[dict[str, Any]]:
    return list(server.must("d", {"find": name, "batchSize": 1000, **options})["cursor"]["firstBatch"])


def state(server: DrivenServer) -> Any:
    """What is in the database, looked at in every way."""
    return (
        [all_in(server, name, sort={"_id": 1}) for name in ("c", "c2", "new")],
        all_in(server, filter={"a": {"$gte": 0}}, hint="a"),
        all_in(server, sort={"$natural": -1}),
        [all_in(server, filter={"_id": key}) for key in (1, 4, 6, 30)],
        server.must("d", {"count": "c"})["n"], server.must("d", {"count": "c", "query": {"a": {"$gte": 10}}})["n"],
        server.must("d", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"].__len__(),
    )  # fmt: skip


def uncut() -> Any:
    """What the commit in one piece leaves."""
    with DrivenServer(clock=FakeClock()) as server:
        fill(server)
        write_much(server)
        server.must("admin", {"commitTransaction": 1, **part_of()})
        return state(server)


def test_others_see_all_of_a_commit_or_nothing(server: DrivenServer) -> None:
    before = state(server)
    write_much(server)
    seen = []
    assert commit_in_turns(server, lambda pauses: seen.append(state(server)))["ok"] == 1.0
    assert all(item == before for item in seen)
    assert state(server) == uncut()


def test_what_others_write_meanwhile_is_there_and_has_other_records(server: DrivenServer) -> None:
    write_much(server)

    def between(pauses: int) -> None:
        server.must("d", {"insert": "c", "documents": [{"_id": 1000 + pauses, "a": 3}]})
        server.must("d", {"update": "c", "updates": [{"q": {"a": 3, "_id": {"$gt": 1000}}, "u": {"$inc": {"b": 1}}}]})
        if pauses % 5 == 0:
            server.given_up([("d", {"insert": "c", "documents": [{"_id": "gone"}]})])  # the catalog is read again

    commit_in_turns(server, between)
    late = [item for item in all_in(server) if item["_id"] == "gone" or item["_id"] >= 1000]
    assert [item["_id"] for item in late] == list(range(1001, 1001 + len(late))) and late[0]["b"] == len(late)
    expected = uncut()[0][0]
    assert [item for item in all_in(server, sort={"_id": 1}) if item["_id"] < 1000] == expected
    assert server.must("d", {"count": "c"})["n"] == len(expected) + len(late) == len(all_in(server))


def test_a_transaction_reads_as_of_its_start_whenever_that_was(server: DrivenServer) -> None:
    before = all_in(server)
    read = {"find": "c", "batchSize": 1000}
    server.must("d", {**read, **part_of(session=1, first=True)})
    write_much(server)

    def look(session: int, *, first: bool = False) -> None:
        answered = server.must("d", {**read, **part_of(session=session, first=first)})["cursor"]["firstBatch"]
        assert answered == before

    def between(pauses: int) -> None:
        look(1)
        if pauses == 12:
            look(2, first=True)
        elif pauses > 12:
            look(2)

    commit_in_turns(server, between)
    for key in (1, 50):
        server.must("d", {"update": "c", "updates": [{"q": {"_id": key}, "u": {"$set": {"late": True}}}]})
    for session in (1, 2):
        look(session)
        body = {"update": "c", "updates": [{"q": {"_id": 30}, "u": {"$inc": {"a": 1}}}], **part_of(session=session)}
        assert server.run("d", body)["code"] == 112  # type: ignore[index]
    assert not server.store.before_images
    assert len(all_in(server)) == len(uncut()[0][0])


def test_its_locks_hold_to_the_end(server: DrivenServer) -> None:
    write_much(server)

    def between(pauses: int) -> None:
        update = {"update": "c", "updates": [{"q": {"_id": 30}, "u": {"$inc": {"a": 1}}}]}
        assert isinstance(server.run("d", update), Wait)
        assert isinstance(server.run("d", {"drop": "c"}), Wait)
        for name in ("abortTransaction", "commitTransaction"):
            assert isinstance(server.run("admin", {name: 1, **part_of()}), Wait)
        server.must("admin", {"killAllSessions": []})

    commit_in_turns(server, between)
    assert not server.store.transactions.locks


def test_its_events_come_once_and_in_order(server: DrivenServer) -> None:
    stream = {"aggregate": 1, "pipeline": [{"$changeStream": {"fullDocumentBeforeChange": "whenAvailable"}}]}
    cursor = server.must("d", {**stream, "cursor": {"batchSize": 0}})["cursor"]["id"]
    write_much(server)
    count = len(server.store.transactions.open[bytes([9]) * 16].operations)

    def events() -> list[dict[str, Any]]:
        reply = server.run("d", {"getMore": cursor, "collection": "$cmd.aggregate", "batchSize": 1000})
        return [] if isinstance(reply, Wait) else reply["cursor"]["nextBatch"]

    def between(pauses: int) -> None:
        assert not events()

    commit_in_turns(server, between)
    seen = events()
    assert len(seen) == count - 1  # all but the collection that it makes
    changes = [event for event in seen if event["operationType"] in ("insert", "update", "delete")]
    assert len({event["clusterTime"] for event in changes}) == 1
    tokens = [event["_id"]["_data"] for event in seen]
    assert tokens == sorted(set(tokens))
    images = [event["fullDocumentBeforeChange"] for event in changes if event["ns"]["coll"] == "c2"]
    assert [image["_id"] for image in images] == list(range(0, COUNT, 2))


class _Killed(BaseException):
    """The process ends."""


@pytest.mark.long
def test_a_crash_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    pauses = unfinished = 0
    while True:
        pauses += 5
        with DrivenServer(tmp_path / str(pauses), clock=FakeClock()) as server:
            fill(server)
            write_much(server)
            before = state(server)

            def between(count: int, at: int = pauses) -> None:
                if count == at:
                    raise _Killed

            try:
                commit_in_turns(server, between)
            except _Killed:
                server.store.close()
                try:
                    assert not check(tmp_path / str(pauses)).problems
                except UnusableDirectory as error:
                    assert "start its server once" in str(error)
                    unfinished += 1
                server.restart()
                assert state(server) == before
                fill_again = {"insert": "c", "documents": [{"_id": "late"}]}
                server.must("d", fill_again)
                assert not server.store.transactions.locks
            else:
                assert state(server) == uncut()
                break
        assert not check(tmp_path / str(pauses)).problems
    assert unfinished > 5


def test_a_commit_that_fails_in_the_middle_is_undone_and_its_transaction_aborted(server: DrivenServer) -> None:
    before = state(server)
    write_much(server)

    def between(pauses: int) -> None:
        if pauses == 60:
            raise _Killed

    with pytest.raises(_Killed):
        commit_in_turns(server, between)
    transactions = server.store.transactions
    while transactions.undoing:
        assert state(server) == before
        assert isinstance(server.run("d", {"update": "c", "updates": [{"q": {"_id": 30}, "u": {"a": 1}}]}), Wait)
        txn = server.store.begin()
        transactions.undoing[0].undo(txn)
        server.store.commit(txn)
    assert state(server) == before and not transactions.locks and not server.store.before_images
    assert server.run("admin", {"commitTransaction": 1, **part_of()})["code"] == 251  # type: ignore[index]


def test_one_that_fails_before_its_first_piece_can_be_sent_again(server: DrivenServer) -> None:
    before = state(server)
    write_much(server)

    def between(pauses: int) -> None:
        if pauses == 2:
            raise _Killed

    with pytest.raises(_Killed):
        commit_in_turns(server, between)
    assert state(server) == before
    server.engine.checked_out.clear()
    commit_in_turns(server, lambda pauses: None)
    assert state(server) == uncut()
