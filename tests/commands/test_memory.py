"""Commands that need more memory than they may: by way of the disk, refused, or counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Int64

from headrace.testing.driven import DrivenServer

COUNT = 3000


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        batch = [{"_id": number, "n": number * 7919 % COUNT, "text": "x" * 50} for number in range(COUNT)]
        server.run("t", {"insert": "c", "documents": batch})
        for stage in ("internalQueryMaxBlockingSortMemoryUsageBytes", "internalDocumentSourceGroupMaxMemoryBytes"):
            assert server.run("admin", {"setParameter": 1, stage: 50_000})["was"] == 100 * 1024 * 1024
        yield server


def every(server: DrivenServer, command: dict[str, Any]) -> list[dict[str, Any]]:
    """All batches of a cursor."""
    cursor = server.run("t", command)["cursor"]
    documents = cursor["firstBatch"]
    while cursor["id"]:
        cursor = server.run("t", {"getMore": cursor["id"], "collection": "c", "batchSize": 500})["cursor"]
        documents += cursor["nextBatch"]
    return list(documents)


def metrics(server: DrivenServer) -> Any:
    return server.run("admin", {"serverStatus": 1})["metrics"]["query"]


def test_a_large_sort_goes_to_disk_unless_that_is_forbidden(server: DrivenServer) -> None:
    find = {"find": "c", "sort": {"n": 1}, "projection": {"n": 1}}
    assert [document["n"] for document in every(server, find)] == list(range(COUNT))
    assert [document["n"] for document in every(server, {**find, "allowDiskUse": True})] == list(range(COUNT))
    spilled = metrics(server)["sort"]
    assert spilled["spillToDisk"] > 2 and spilled["spillToDiskBytes"] > 100_000
    refused = server.run("t", {**find, "allowDiskUse": False})
    assert (refused["code"], refused["codeName"]) == (292, "QueryExceededMemoryLimitNoDiskUseAllowed")
    assert len(every(server, {**find, "allowDiskUse": False, "limit": 100})) == 100
    assert server.run("admin", {"setParameter": 1, "allowDiskUseByDefault": False})["was"] is True
    assert server.run("t", find)["code"] == 292
    assert len(every(server, {**find, "allowDiskUse": True})) == COUNT


def test_a_large_group_goes_to_disk_unless_that_is_forbidden(server: DrivenServer) -> None:
    aggregate = {"aggregate": "c", "pipeline": [{"$group": {"_id": "$n", "text": {"$push": "$text"}}}], "cursor": {}}
    assert sorted(document["_id"] for document in every(server, aggregate)) == list(range(COUNT))
    spilled = metrics(server)["group"]
    assert spilled["spills"] > 2 and spilled["spilledRecords"] > 100 and spilled["spilledBytes"] > 100_000
    assert server.run("t", {**aggregate, "allowDiskUse": False})["code"] == 292
    view = {"create": "v", "viewOn": "c", "pipeline": aggregate["pipeline"]}
    assert server.run("t", view)["ok"] == 1
    assert server.run("t", {"find": "v", "filter": {}, "allowDiskUse": False})["code"] == 292


def test_explain_says_what_went_to_disk(server: DrivenServer) -> None:
    find = {"find": "c", "sort": {"n": 1}}
    stage = server.run("t", {"explain": find})["executionStats"]["executionStages"]
    assert stage["usedDisk"] is True and stage["spills"] > 1 and stage["spilledRecords"] > 1000
    stage = server.run("t", {"explain": {**find, "limit": 5}})["executionStats"]["executionStages"]
    assert stage["stage"] == "SORT" and stage["limitAmount"] == 5 and stage["usedDisk"] is False
    pipeline = [{"$match": {"n": {"$lt": 10}}}, {"$group": {"_id": "$n"}}]
    explained = server.run("t", {"explain": {"aggregate": "c", "pipeline": pipeline, "cursor": {}}})
    assert explained["stages"][1]["usedDisk"] is False and explained["stages"][1]["spills"] == Int64(0)


def test_what_a_cursor_holds_is_given_back_at_its_end(server: DrivenServer) -> None:
    memory = server.engine.memory
    find = {"find": "c", "sort": {"n": 1}, "batchSize": 10}
    before = memory.used
    cursor = server.run("t", find)["cursor"]["id"]
    assert memory.used > before
    server.run("t", {"killCursors": "c", "cursors": [cursor]})
    assert memory.used == before
    every(server, find)
    assert memory.used == before
    server.run("t", {**find, "batchSize": COUNT + 1})
    assert memory.used == before


def test_a_document_that_no_reply_holds_is_refused(server: DrivenServer) -> None:
    wide = {"$reduce": {
        "input": {"$range": [0, 17]}, "initialValue": "$text", "in": {"$concat": ["$$value", "$$value"]},
    }}  # fmt: skip
    pipeline = [{"$limit": 1}, {"$set": {"a": wide}}, {"$set": {"b": ["$a", "$a", "$a"]}}]
    refused = server.run("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
    assert (refused["code"], refused["codeName"]) == (10334, "BSONObjectTooLarge")


def test_what_a_killed_server_has_left_on_disk_is_removed(tmp_path: Path) -> None:
    with DrivenServer(tmp_path):
        pass
    (tmp_path / "_tmp").mkdir()
    (tmp_path / "_tmp" / "sorted").write_bytes(b"x")
    with DrivenServer(tmp_path):
        assert not (tmp_path / "_tmp" / "sorted").exists()
