"""convertToCapped and cloneCollectionAsCapped copy in turns; the copy has what clients write meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, encode

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.errors import Interrupted
from headrace.execution.writes.changed_documents import ChangedDocuments
from headrace.execution.writes.matches import Target
from headrace.execution.writes.output import drop_temporary, left_behind
from headrace.testing.driven import DrivenServer
from tests.killed_copies import temporary_after_kill

COUNT = 200
CONVERT: dict[str, Any] = {"convertToCapped": "c", "size": 1 << 20}
CLONE: dict[str, Any] = {"cloneCollectionAsCapped": "c", "toCollection": "copy", "size": 1 << 20}


def fill(server: DrivenServer) -> None:
    server.must("t", {"insert": "c", "documents": [{"_id": key, "n": 0} for key in range(COUNT)]})


def documents(server: DrivenServer, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.must("t", {"find": name, "batchSize": 10_000})["cursor"]["firstBatch"]
    return found


def names(server: DrivenServer) -> list[str]:
    return sorted(item["name"] for item in server.must("t", {"listCollections": 1})["cursor"]["firstBatch"])


@pytest.mark.parametrize("body", [CONVERT, CLONE], ids=["convert", "clone"])
def test_the_copy_has_what_clients_write_meanwhile(body: dict[str, Any]) -> None:
    with DrivenServer() as server:
        fill(server)
        expected: list[dict[str, Any]] = []

        def between(pauses: int) -> None:
            if pauses > 60:
                return
            for write in (
                {"insert": "c", "documents": [{"_id": 1000 + pauses, "n": pauses}]},
                {"update": "c", "updates": [{"q": {"_id": pauses * 3}, "u": {"$set": {"n": pauses}}}]},
                {"delete": "c", "deletes": [{"q": {"_id": pauses * 3 + 1}, "limit": 1}]},
                {"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]},
                {"insert": "c", "documents": [{"_id": 2, "again": pauses}]},
            ):
                server.must("t", write)
            expected[:] = documents(server, "c")

        reply, pauses = server.in_turns("t", body, between)
        assert reply["ok"] == 1.0 and pauses > COUNT
        name = "c" if body is CONVERT else "copy"
        assert documents(server, name) == expected and len(expected) > COUNT - 60 and expected[-1]["_id"] == 2
        assert server.must("t", {"count": name})["n"] == len(expected)
        assert server.must("t", {"collStats": name})["size"] == sum(len(encode(item)) for item in expected)
        assert server.must("t", {"validate": name, "full": True})["valid"]
        assert names(server) == (["c"] if body is CONVERT else ["c", "copy"]) and not server.engine.temporary


def test_a_clone_grows_before_its_readers_and_watchers() -> None:
    with DrivenServer() as server:
        fill(server)
        pipeline = [{"$changeStream": {"showExpandedEvents": True}}]
        cursor = server.must("t", {"aggregate": "copy", "pipeline": pipeline, "cursor": {}})["cursor"]["id"]
        seen: list[int] = []
        events: list[dict[str, Any]] = []

        def between(pauses: int) -> None:
            seen.append(len(documents(server, "copy")))
            reply: Any = server.run("t", {"getMore": Int64(cursor), "collection": "copy"}, time_is_up=True)
            events.extend(reply["cursor"]["nextBatch"])
            assert len(events) == 1 + seen[-1]

        server.in_turns("t", CLONE, between)
        assert seen == sorted(seen) and seen[0] < seen[-1]
        assert [event["operationType"] for event in events] == ["create", *["insert"] * seen[-1]]


def test_a_small_copy_keeps_to_its_size_while_clients_insert() -> None:
    with DrivenServer() as server:
        fill(server)

        def between(pauses: int) -> None:
            if pauses < 100:
                server.must("t", {"insert": "c", "documents": [{"_id": 1000 + pauses}]})

        assert server.in_turns("t", {**CONVERT, "size": 4096}, between)[0]["ok"] == 1.0
        left = documents(server, "c")
        assert left[-1] == {"_id": 1099} and 0 <= 4096 - sum(len(encode(item)) for item in left) < 64
        assert server.must("t", {"validate": "c", "full": True})["valid"]


@pytest.mark.parametrize("body", [CONVERT, CLONE], ids=["convert", "clone"])
@pytest.mark.parametrize(
    "change",
    [
        {"drop": "c"},
        {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]},
        {"collMod": "c", "validator": {"n": {"$exists": True}}},
    ],
    ids=["drop", "index", "options"],
)
def test_a_copy_whose_source_is_changed_leaves_nothing(body: dict[str, Any], change: dict[str, Any]) -> None:
    with DrivenServer() as server:
        fill(server)

        def between(pauses: int) -> None:
            if pauses == 3:
                server.must("t", change)

        assert server.in_turns("t", body, between)[0]["code"] == 175
        assert names(server) == ([] if "drop" in change else ["c"])


@pytest.mark.parametrize("body", [CONVERT, CLONE], ids=["convert", "clone"])
def test_an_interrupted_copy_leaves_nothing(body: dict[str, Any]) -> None:
    with DrivenServer() as server:
        fill(server)
        reply, _ = server.in_turns("t", body, interruption=Interrupted(11601, "operation was interrupted"))
        assert reply["code"] == 11601
        drop_temporary(txn := server.store.begin(), left_behind(server.engine))
        server.store.commit(txn)
        assert names(server) == ["c"] and len(documents(server, "c")) == COUNT


def test_a_crash_in_the_middle_leaves_the_source_and_what_is_dropped(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "d") as server:
        fill(server)
        assert temporary_after_kill(server, "t", CONVERT).endswith(".convertToCapped.c")
        assert names(server) == ["c"] and len(documents(server, "c")) == COUNT


def test_watchers_see_a_create_and_an_insert_for_each_document_of_a_clone() -> None:
    with DrivenServer() as server:
        fill(server)
        stage = {"$changeStream": {"showExpandedEvents": True}}
        cursor = server.must("t", {"aggregate": 1, "pipeline": [stage], "cursor": {}})["cursor"]["id"]
        server.in_turns("t", CLONE)
        read = {"getMore": cursor, "collection": "$cmd.aggregate", "batchSize": 1000}
        events: list[dict[str, Any]] = []
        while len(events) <= COUNT:  # a slow machine builds fewer events at once
            events += server.must("t", read)["cursor"]["nextBatch"]
        assert [event["operationType"] for event in events] == ["create"] + ["insert"] * COUNT
        assert {event["ns"]["coll"] for event in events} == {"copy"}


def test_it_has_the_changes_of_a_transaction_that_commits_in_the_same_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction's earlier entries are not in the oplog yet."""
    monkeypatch.setattr(limits, "TRANSACTION_ENTRY_BYTES", 100)
    session: dict[str, Any] = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    with DrivenServer() as server:
        fill(server)
        for key in range(900, 904):
            first = {"startTransaction": True} if key == 900 else {}
            server.must("t", {"insert": "c", "documents": [{"_id": key, "s": "x" * 60}], **first, **session})
        txn = server.store.begin()
        context = CommandContext(server.engine, None, txn)
        changed = ChangedDocuments(context, Target(context, txn.catalog.collections["t.c"]))
        request = server.request("admin", {"commitTransaction": 1, **session})
        server.engine.run_write(server.engine.command(request), request, txn)
        assert len(txn.staged.entries) == 4
        assert list(changed.keys().values()) == [True] * 4
        assert changed.keys() == {}
        context.close()
        server.store.abandon(txn)
