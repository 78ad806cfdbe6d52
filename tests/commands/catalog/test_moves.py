"""A collection is renamed into another database in turns, and has what others write to it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.testing.driven import DrivenServer
from tests.killed_copies import temporary_after_kill

COUNT = 300
RENAME = {"renameCollection": "a.c", "to": "b.c"}


def fill(server: DrivenServer) -> None:
    server.must("a", {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": True}]})
    server.must("a", {"insert": "c", "documents": [{"_id": key, "u": key} for key in range(COUNT)]})


def all_in(server: DrivenServer, database: str) -> dict[Any, Any]:
    documents = server.must(database, {"find": "c", "batchSize": 10_000})["cursor"]["firstBatch"]
    return {document["_id"]: document for document in documents}


def session(*, first: bool = False) -> dict[str, Any]:
    begin = {"startTransaction": True} if first else {}
    return {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False, **begin}


def test_what_others_write_meanwhile_is_in_the_copy() -> None:
    with DrivenServer() as server:
        fill(server)
        expected: dict[Any, Any] = {}

        def between(pauses: int) -> None:
            if pauses > 40:
                return
            for body in (
                {"insert": "c", "documents": [{"_id": 1000 + pauses, "u": -pauses}]},
                {"update": "c", "updates": [{"q": {"_id": pauses * 7}, "u": {"$set": {"n": pauses}}}]},
                {"delete": "c", "deletes": [{"q": {"_id": pauses * 7 + 1}, "limit": 1}]},
                {"update": "c", "updates": [{"q": {"_id": 280}, "u": {"$set": {"u": 5000}}}]},
                {"update": "c", "updates": [{"q": {"_id": 281}, "u": {"$set": {"u": 280}}}]},
                {"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]},
                {"insert": "c", "documents": [{"_id": 2, "u": f"again {pauses}"}]},
                {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"u": "was 3"}}}]},
                {"update": "c", "updates": [{"q": {"_id": 299}, "u": {"$set": {"u": 3}}}]},
            ):
                server.must("a", body)
            if pauses == 10:
                inserted = {"insert": "c", "documents": [{"_id": "t", "u": "t"}], **session(first=True)}
                server.must("a", inserted)
                server.must("admin", {"commitTransaction": 1, **session()})
            expected.clear()
            expected.update(all_in(server, "a"))

        reply, pauses = server.in_turns("admin", RENAME, between)
        assert reply["ok"] == 1.0 and pauses > 40
        assert all_in(server, "b") == expected and "t" in expected and len(expected) > COUNT
        assert all_in(server, "a") == {}
        assert server.must("b", {"count": "c"})["n"] == len(expected)
        names = [item["name"] for item in server.must("b", {"listIndexes": "c"})["cursor"]["firstBatch"]]
        assert names == ["_id_", "u"] and not server.engine.temporary
        assert [item["name"] for item in server.must("b", {"listCollections": 1})["cursor"]["firstBatch"]] == ["c"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"drop": "c"}, 175),
        ({"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}, 175),
        ({"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}}, 175),
    ],
)
def test_one_whose_source_is_changed_leaves_nothing(change: dict[str, Any], code: int) -> None:
    with DrivenServer() as server:
        fill(server)

        def between(pauses: int) -> None:
            if pauses == 3:
                server.must("a", change)

        assert server.in_turns("admin", RENAME, between)[0]["code"] == code
        assert server.must("b", {"listCollections": 1})["cursor"]["firstBatch"] == []
        assert len(all_in(server, "a")) == (0 if "drop" in change else COUNT)


def test_a_target_that_appears_meanwhile_is_not_replaced() -> None:
    with DrivenServer() as server:
        fill(server)

        def between(pauses: int) -> None:
            if pauses == 3:
                server.must("b", {"insert": "c", "documents": [{"_id": 1}]})

        assert server.in_turns("admin", RENAME, between)[0]["code"] == 48
        assert all_in(server, "b") == {1: {"_id": 1}} and len(all_in(server, "a")) == COUNT
        reply, _ = server.in_turns("admin", {**RENAME, "dropTarget": True})
        assert reply["ok"] == 1.0 and len(all_in(server, "b")) == COUNT


@pytest.mark.parametrize("has_oplog", [True, False])
def test_one_whose_documents_share_a_key_is_refused(has_oplog: bool) -> None:
    """An index with `prepareUnique` may have equal keys, but refuses further ones. The second document was lost."""
    with DrivenServer(oplog=has_oplog) as server:
        server.must("a", {"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u"}]})
        server.must("a", {"insert": "c", "documents": [{"_id": key, "u": key // 2} for key in range(4)]})
        server.must("a", {"collMod": "c", "index": {"name": "u", "prepareUnique": True}})
        reply = server.run("admin", RENAME)
        assert isinstance(reply, dict) and (reply["ok"], reply["code"]) == (0.0, 11000)
        assert set(all_in(server, "a")) == {0, 1, 2, 3}
        assert server.must("admin", {"listDatabases": 1, "nameOnly": True, "filter": {"name": "b"}})["databases"] == []
        server.must("a", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"u": 8}}}]})
        server.must("a", {"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]})
        server.must("admin", RENAME)
        assert set(all_in(server, "b")) == {0, 1, 2}


@pytest.mark.parametrize("between_copies", [True, False])
def test_one_whose_documents_share_a_key_for_a_moment_goes_on(between_copies: bool) -> None:
    with DrivenServer() as server:
        fill(server)

        def between(pauses: int) -> None:
            first, second = (0, 299) if between_copies else (298, 299)
            if pauses == 3:
                server.must("a", {"update": "c", "updates": [{"q": {"_id": first}, "u": {"$set": {"u": -1}}}]})
                server.must("a", {"update": "c", "updates": [{"q": {"_id": second}, "u": {"$set": {"u": first}}}]})

        server.in_turns("admin", RENAME, between)
        assert len(all_in(server, "b")) == COUNT


def test_a_crash_in_the_middle_leaves_the_source_and_what_is_dropped(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "d") as server:
        fill(server)
        assert temporary_after_kill(server, "admin", RENAME).startswith("b.tmp")
        assert server.must("b", {"listCollections": 1})["cursor"]["firstBatch"] == []
        assert len(all_in(server, "a")) == COUNT
