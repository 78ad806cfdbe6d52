"""A long document is inserted in two commits: others see it behind the second one, whenever they look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace import limits
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError, Interrupted
from headrace.store.check.directory import check
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

LONG: dict[str, Any] = {"_id": "long", "a": 7, "x": "x" * 1000}
INSERT: dict[str, Any] = {"insert": "c", "documents": [LONG]}
KILLED = Interrupted(11601, "operation was interrupted")


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREPARED_BYTES", 500)
    monkeypatch.setattr(limits, "LONG_DOCUMENT_BYTES", 500)


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as made:
        fill(made)
        yield made
        assert not made.store.before_images and not made.store.transactions.undoing
        assert made.must("d", {"validate": "c"})["valid"]


def fill(server: DrivenServer) -> None:
    server.must("d", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    server.must("d", {"insert": "c", "documents": [{"_id": key, "a": key} for key in range(5)]})


def all_in(server: DrivenServer, **options: Any) -> list[Any]:
    documents = server.must("d", {"find": "c", **options})["cursor"]["firstBatch"]
    return [document["_id"] for document in documents]


def state(server: DrivenServer) -> Any:
    """What is in the collection, looked at in every way."""
    return (
        all_in(server), all_in(server, sort={"$natural": -1}), all_in(server, hint="a", filter={"a": {"$gte": 0}}),
        all_in(server, filter={"_id": "long"}), server.must("d", {"count": "c"})["n"],
    )  # fmt: skip


def undo(server: DrivenServer) -> None:
    """What the background job does."""
    txn = server.store.begin()
    server.store.transactions.undoing[0].undo(txn)
    server.store.commit(txn)


def hidden(server: DrivenServer) -> bool:
    return bool(server.store.before_images)


def test_others_see_all_of_it_or_nothing(server: DrivenServer) -> None:
    before, seen = state(server), []

    def between(pauses: int) -> Interrupted | None:
        assert state(server) == before
        seen.append(hidden(server))
        return KILLED if hidden(server) else None

    stream = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    cursor = server.must("d", stream)["cursor"]["id"]
    reply, _ = server.in_turns("d", INSERT, between)
    assert reply["n"] == 1 and 0 < seen.count(True) < len(seen)
    forward, backward, by_index, _, count = before
    assert state(server) == ([*forward, "long"], ["long", *backward], [*by_index, "long"], ["long"], count + 1)
    (event,) = server.must("d", {"getMore": cursor, "collection": "$cmd.aggregate"})["cursor"]["nextBatch"]
    assert event["fullDocument"] == LONG and event["operationType"] == "insert"


def test_documents_of_one_message_come_in_their_order(server: DrivenServer) -> None:
    documents = [{**LONG, "_id": number} for number in range(10, 13)] + [{"_id": 13}, {**LONG, "_id": 14}]
    lsid = {"lsid": {"id": Binary(b"s" * 16, 4)}, "txnNumber": Int64(1)}
    reply, _ = server.in_turns("d", {"insert": "c", "documents": documents, **lsid})
    assert reply["n"] == 5
    assert all_in(server)[5:] == [10, 11, 12, 13, 14]
    assert server.must("d", {"insert": "c", "documents": documents, **lsid})["n"] == 5  # it was done already
    assert server.must("d", {"count": "c"})["n"] == 10


def test_records_of_what_others_insert_meanwhile_are_others(server: DrivenServer) -> None:
    def between(pauses: int) -> None:
        server.given_up([("d", {"insert": "c", "documents": [{"_id": "gone"}]})])  # the catalog is read again
        server.must("d", {"insert": "c", "documents": [{"_id": 100 + pauses}]})

    _, pauses = server.in_turns("d", INSERT, between)
    assert sorted(all_in(server), key=str) == sorted([*range(5), *range(101, 101 + pauses), "long"], key=str)
    assert server.must("d", {"count": "c"})["n"] == 6 + pauses


@pytest.mark.parametrize("document", [{"_id": "long"}, {"_id": 9, "a": 9, "u": 1}])
def test_one_that_is_refused_leaves_nothing(server: DrivenServer, document: dict[str, Any]) -> None:
    server.must("d", {"createIndexes": "c", "indexes": [
        {"key": {"u": 1}, "name": "u", "unique": True, "partialFilterExpression": {"u": {"$exists": True}}}
    ]})  # fmt: skip

    def between(pauses: int) -> None:
        if hidden(server) and not all_in(server, filter={"_id": document["_id"]}):
            server.must("d", {"insert": "c", "documents": [document]})

    reply, _ = server.in_turns("d", {"insert": "c", "documents": [{**LONG, "u": 1}]}, between)
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 11000)
    assert all_in(server) == [*range(5), document["_id"]]


@pytest.mark.parametrize("change", ["drop", "create", "rename", "cap", "index"])
def test_a_collection_that_changes_meanwhile(server: DrivenServer, change: str) -> None:
    changed = False

    def between(pauses: int) -> None:
        nonlocal changed
        if changed or not hidden(server):
            return
        changed = True
        if change in ("drop", "create"):
            server.must("d", {"drop": "c"})
        if change == "create":
            server.must("d", {"create": "c"})
        if change == "rename":
            server.must("admin", {"renameCollection": "d.c", "to": "d.other"})
        if change == "cap":
            server.must("d", {"convertToCapped": "c", "size": 10_000})
        if change == "index":
            server.must("d", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]})

    reply, _ = server.in_turns("d", INSERT, between)
    if change == "index":
        assert reply["n"] == 1 and all_in(server, filter={"x": LONG["x"]}, hint="x") == ["long"]
        return
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 175)
    assert "long" not in all_in(server) and "long" not in all_in(server, find="other")
    server.must("d", {"create": "e"})
    with server.store.reading() as view, view.kv.cursor(view.tables["documents"]) as cursor:
        assert sum(key[4:] > b"" and b"xxxxx" in value for key, value in cursor.iternext()) == 0
    server.must("d", {"insert": "c", "documents": [{"_id": "now"}]})


def test_a_transaction_reads_as_of_its_start(server: DrivenServer) -> None:
    before = all_in(server)

    def look(session: int, *, first: bool = False) -> None:
        begin = {"startTransaction": True} if first else {}
        part = {"lsid": {"id": Binary(bytes([session]) * 16, 4)}, "txnNumber": Int64(1), "autocommit": False, **begin}
        assert all_in(server, **part) == before
        part.pop("startTransaction", None)
        assert all_in(server, hint="a", filter={"a": {"$gte": 0}}, **part) == before

    seen = list[int]()

    def between(pauses: int) -> None:
        if hidden(server):
            look(1)
            look(2, first=not seen)
            seen.append(pauses)

    look(1, first=True)
    server.in_turns("d", INSERT, between)
    look(1)
    look(2)
    assert all_in(server) == [*before, "long"]
    server.must("admin", {"killAllSessions": []})


def test_where_a_transaction_has_locks_it_waits_for_them(server: DrivenServer) -> None:
    part = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    waited = list[int]()

    def between(pauses: int) -> None:
        if hidden(server) and not server.store.transactions.locks:
            mine = {"insert": "c", "documents": [{"_id": "long"}], **part, "startTransaction": True}
            server.must("d", mine)
        elif waited or (server.store.transactions.locks and not hidden(server)):
            waited.append(pauses)
            if len(waited) == 3:
                server.must("admin", {"abortTransaction": 1, **part})

    assert server.in_turns("d", INSERT, between)[0]["n"] == 1
    assert len(waited) >= 3 and all_in(server)[-1] == "long"


def test_one_that_is_refused_and_killed_leaves_nothing(server: DrivenServer) -> None:
    before: Any = None

    def between(pauses: int) -> Interrupted | None:
        nonlocal before
        if before is not None:
            return KILLED  # as the error's message is put together
        if hidden(server):
            server.must("d", {"insert": "c", "documents": [{"_id": "long"}]})
            before = state(server)
        return None

    assert server.in_turns("d", INSERT, between)[0]["code"] == 11601
    assert state(server) == before
    undo(server)
    assert state(server) == before


def test_an_empty_timestamp_is_filled(server: DrivenServer) -> None:
    document = {**LONG, "t": Timestamp(0, 0)}
    assert server.in_turns("d", {"insert": "c", "documents": [document]})[0]["n"] == 1
    stored = server.must("d", {"find": "c", "filter": {"_id": "long"}})["cursor"]["firstBatch"][0]
    assert stored["t"] != document["t"] and {**stored, "t": 0} == {**document, "t": 0}


def test_its_time_is_up(server: DrivenServer) -> None:
    clock = server.clock
    assert isinstance(clock, FakeClock)

    def between(pauses: int) -> None:
        if pauses == 2:
            clock.advance(10_000)

    before = state(server)
    with pytest.raises(CommandError) as raised:
        reply, _ = server.in_turns("d", {**INSERT, "maxTimeMS": 5000}, between)
        raise CommandError((reply.get("writeErrors") or [reply])[0]["code"], "")
    assert raised.value.code == 50
    assert state(server) == before


class _Killed(BaseException):
    """The process ends."""


def test_a_crash_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as server:
        fill(server)
        before = state(server)

        def between(pauses: int) -> None:
            if hidden(server):
                raise _Killed

        with pytest.raises(_Killed):
            server.in_turns("d", INSERT, between)
        server.restart()
        assert state(server) == before
        server.must("d", INSERT)
        assert all_in(server)[-1] == "long"
    assert not check(tmp_path).problems


def test_a_commit_that_fails_is_undone(server: DrivenServer) -> None:
    before = state(server)

    def between(pauses: int) -> None:
        if hidden(server):
            raise _Killed

    with pytest.raises(_Killed):
        server.in_turns("d", INSERT, between)
    transactions = server.store.transactions
    assert transactions.undoing and state(server) == before
    undo(server)
    assert state(server) == before
    assert not isinstance(server.run("d", INSERT), Wait)
