"""dropDatabase pauses between two collections; lists of very many errors."""

from __future__ import annotations

from typing import Any

from bson import Int64

from headrace import limits
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode


def entries(server: DrivenServer) -> list[dict[str, Any]]:
    with server.store.reading() as view:
        return [decode(entry)["o"] for _, entry in view.entries(0)]


def test_a_database_is_dropped_collection_by_collection() -> None:
    with DrivenServer() as server:
        for name in "abcdef":
            server.must("d", {"insert": name, "documents": [{"_id": 1}]})
        server.must("d", {"create": "v", "viewOn": "a", "pipeline": []})
        server.must("other", {"insert": "a", "documents": [{"_id": 1}]})

        def between(pauses: int) -> None:
            if pauses == 3:
                server.must("d", {"insert": "late", "documents": [{"_id": 1}]})

        reply, pauses = server.in_turns("d", {"dropDatabase": 1}, between)
        assert reply["dropped"] == "d" and pauses >= 7
        assert [entry["drop"] for entry in entries(server) if "drop" in entry] == [*"fedcba", "late", "system.views"]
        assert entries(server)[-1] == {"dropDatabase": 1}
        names = [item["name"] for item in server.must("admin", {"listDatabases": 1})["databases"]]
        assert "d" not in names and "other" in names


def test_messages_of_very_many_errors_end_after_a_mebibyte() -> None:
    with DrivenServer() as server:
        server.must("d", {"insert": "c", "documents": [{"_id": "x" * 10_000}]})
        body = {"insert": "c", "documents": [{"_id": "x" * 10_000}] * 200, "ordered": False}
        errors = server.in_turns("d", body)[0]["writeErrors"]
        sizes = [len(error["errmsg"]) for error in errors]
        assert len(errors) == 200 and sizes[0] > 10_000 and sizes[-1] == 0
        assert limits.ERROR_BYTES_MAX <= sum(sizes) < limits.ERROR_BYTES_MAX + sizes[0]
        assert [error["index"] for error in errors] == list(range(200))
        few = server.in_turns("d", {**body, "documents": [{"_id": "x" * 10_000}] * 2})[0]["writeErrors"]
        assert all(error["errmsg"] for error in few)


def test_an_index_is_named_by_its_name_or_its_keys() -> None:
    with DrivenServer() as server:
        server.must("d", {"create": "c"})
        assert server.run("d", {"dropIndexes": "c", "index": [{"a": 1}]})["code"] == 14  # type: ignore[index]


def test_cursors_that_are_not_there_are_listed() -> None:
    with DrivenServer() as server:
        server.must("d", {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
        opened = server.must("d", {"find": "c", "batchSize": 1})["cursor"]["id"]
        reply = server.must("d", {"killCursors": "c", "cursors": [Int64(5), opened, Int64(6)]})
        assert reply["cursorsKilled"] == [opened] and reply["cursorsNotFound"] == [5, 6]
