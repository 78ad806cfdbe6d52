"""collStats and dbStats with the sizes of indexes, dataSize, dbHash, compact, reIndex, and collections made capped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import encode

from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

DOCUMENTS = [{"_id": number, "a": number % 7, "text": "x" * number} for number in range(100)]


@pytest.fixture(params=[True, False], ids=["set", "standalone"])
def at(request: pytest.FixtureRequest) -> Iterator[DrivenServer]:
    with DrivenServer(oplog=request.param) as server:
        indexes = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"text": 1}, "name": "text_1", "unique": True}]
        server.must("t", {"createIndexes": "c", "indexes": indexes})
        server.must("t", {"insert": "c", "documents": DOCUMENTS})
        yield server


def code_of(at: DrivenServer, body: dict[str, Any], db: str = "t") -> int:
    with pytest.raises(CommandError) as failed:
        at.must(db, body)
    return failed.value.code


def ids(at: DrivenServer, name: str = "c") -> list[Any]:
    return [item["_id"] for item in at.must("t", {"find": name, "batchSize": 1000})["cursor"]["firstBatch"]]


def test_statistics_have_the_sizes_of_indexes(at: DrivenServer) -> None:
    stats = at.must("t", {"collStats": "c"})
    assert stats["nindexes"] == 3 and list(stats["indexSizes"]) == ["_id_", "a_1", "text_1"]
    assert all(size > 1000 for size in stats["indexSizes"].values())
    assert stats["totalIndexSize"] == sum(stats["indexSizes"].values())
    assert stats["totalSize"] == stats["totalIndexSize"] + stats["storageSize"]
    scaled = at.must("t", {"collStats": "c", "scale": 100})
    assert scaled["totalIndexSize"] == stats["totalIndexSize"] // 100
    assert scaled["indexSizes"]["a_1"] == stats["indexSizes"]["a_1"] // 100
    database = at.must("t", {"dbStats": 1, "scale": 10})
    assert database["indexSize"] == stats["totalIndexSize"] / 10 and database["dataSize"] == stats["size"] / 10
    assert database["totalSize"] == stats["totalSize"] / 10 and 0 < database["fsUsedSize"] < database["fsTotalSize"]
    assert code_of(at, {"dbStats": 1, "scale": 0}) == 51024
    assert at.must("t", {"collStats": "none"})["totalIndexSize"] == 0


def test_statistics_of_a_database_have_free_storage_where_asked_for(at: DrivenServer) -> None:
    free = ["freeStorageSize", "indexFreeStorageSize", "totalFreeStorageSize"]
    for asked, expected in ((1, free), (True, free), (0, []), (None, [])):
        shown = at.must("t", {"dbStats": 1, "freeStorage": asked})
        assert [name for name in shown if "Free" in name or "free" in name] == expected
    assert code_of(at, {"dbStats": 1, "freeStorage": "x"}) == 14
    assert code_of(at, {"dbStats": 1, "unknown": 1}) == 40415


def test_the_collection_of_views_is_counted(at: DrivenServer) -> None:
    before = at.must("t", {"dbStats": 1})["collections"]
    at.must("t", {"create": "seen", "viewOn": "c", "pipeline": []})
    shown = at.must("t", {"dbStats": 1})
    assert (shown["collections"], shown["views"]) == (before + 1, 1)


def test_data_size_counts_all_or_a_range(at: DrivenServer) -> None:
    reply = at.must("admin", {"dataSize": "t.c"})
    assert (reply["size"], reply["numObjects"], reply["estimate"]) == (
        sum(map(len, map(encode, DOCUMENTS))),
        100,
        False,
    )
    some = at.must("t", {"dataSize": "t.c", "keyPattern": {"_id": 1}, "min": {"_id": 10}, "max": {"_id": 20}})
    assert (some["size"], some["numObjects"]) == (sum(map(len, map(encode, DOCUMENTS[10:20]))), 10)
    assert at.must("t", {"dataSize": "t.c", "min": {"a": 3}, "max": {"a": 4}})["numObjects"] == 14
    assert at.must("t", {"dataSize": "t.none"})["size"] == 0
    assert code_of(at, {"dataSize": "t.c", "min": {"b": 3}, "max": {"b": 4}}) == 2
    assert code_of(at, {"dataSize": "t.c", "min": {"a": 3}}) == 2


def test_the_hash_of_a_database_depends_on_its_data_alone(at: DrivenServer) -> None:
    first = at.must("t", {"dbHash": 1})
    assert first["collections"].keys() == {"c"} and first["capped"] == [] and first["uuids"].keys() == {"c"}
    for database, order in (("same", reversed(DOCUMENTS)), ("less", DOCUMENTS[1:])):
        at.must(database, {"insert": "c", "documents": list(order)})
    assert at.must("same", {"dbHash": 1})["md5"] == first["md5"]
    assert at.must("less", {"dbHash": 1})["md5"] != first["md5"]
    at.must("t", {"insert": "other", "documents": [{"_id": 1}]})
    at.must("t", {"create": "log", "capped": True, "size": 4096})
    reply = at.must("t", {"dbHash": 1})
    assert reply["collections"]["c"] == first["collections"]["c"] and reply["capped"] == ["log"]
    assert at.must("t", {"dbHash": 1, "collections": ["c"]})["md5"] == first["md5"]


def test_compact_and_reindex(at: DrivenServer) -> None:
    assert at.must("t", {"compact": "c", "force": True})["bytesFreed"] == 0
    assert 0 <= at.must("t", {"compact": "c", "dryRun": True})["bytesFreed"] < 20_000_000
    assert code_of(at, {"compact": "none", "force": True}) == 26
    if at.store.oplog_enabled:
        assert code_of(at, {"compact": "c"}) == code_of(at, {"reIndex": "c"}) == 20
        return
    at.must("t", {"compact": "c"})
    reply = at.must("t", {"reIndex": "c"})
    assert reply["nIndexes"] == reply["nIndexesWas"] == 3
    assert [spec["name"] for spec in reply["indexes"]] == ["_id_", "a_1", "text_1"]
    assert at.must("t", {"validate": "c"})["valid"]


def test_a_collection_becomes_capped_with_its_newest_documents(at: DrivenServer) -> None:
    at.must("t", {"collMod": "c", "validator": {"_id": {"$gte": 0}}})
    at.must("t", {"convertToCapped": "c", "size": 4096})
    size = 0
    fits = [item["_id"] for item in reversed(DOCUMENTS) if (size := size + len(encode(item))) <= 4096]
    assert ids(at) == fits[::-1] and at.must("t", {"count": "c"})["n"] == len(fits)
    (shown,) = at.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
    assert shown["options"] == {"validator": {"_id": {"$gte": 0}}, "capped": True, "size": 4096}
    stats = at.must("t", {"collStats": "c"})
    assert (stats["capped"], stats["maxSize"], stats["nindexes"]) == (True, 4096, 1)
    at.must("t", {"insert": "c", "documents": [{"_id": 1000}]})
    assert ids(at)[-1] == 1000 and at.must("t", {"collStats": "c"})["size"] <= 4096
    assert at.must("t", {"validate": "c"})["valid"]


def test_a_capped_copy_leaves_the_collection_as_it_is(at: DrivenServer) -> None:
    at.must("t", {"cloneCollectionAsCapped": "c", "toCollection": "copy", "size": 1 << 20})
    assert ids(at, "copy") == ids(at) == list(range(100))
    assert code_of(at, {"cloneCollectionAsCapped": "c", "toCollection": "copy", "size": 4096}) == 48
    for name, code in (("none", 26), ("$c", 73), ("c$", 73)):
        assert code_of(at, {"cloneCollectionAsCapped": name, "toCollection": "d", "size": 4096}) == code
    assert code_of(at, {"convertToCapped": "none", "size": 4096}) == 26
    assert code_of(at, {"convertToCapped": "c", "size": 0}) == 72
    at.must("t", {"create": "v", "viewOn": "c"})
    assert code_of(at, {"convertToCapped": "v", "size": 4096}) == 166


def test_watchers_see_the_rename() -> None:
    with DrivenServer() as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        body = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}
        cursor = at.must("t", body)["cursor"]["id"]
        at.must("t", {"convertToCapped": "c", "size": 4096})
        batch = at.must("t", {"getMore": cursor, "collection": "$cmd.aggregate"})["cursor"]["nextBatch"]
        assert [event["operationType"] for event in batch][-1] == "rename" and batch[-1]["to"]["coll"] == "c"


@pytest.mark.parametrize(
    ("database", "body", "made"),
    [
        ("t", {"convertToCapped": "c", "size": 1 << 20}, "t.c"),
        ("t", {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": 1 << 20}, "t.d"),
        ("admin", {"renameCollection": "t.c", "to": "other.c"}, "other.c"),
    ],
)
def test_a_copy_pauses_only_where_an_oplog_has_what_changes_meanwhile(
    at: DrivenServer, database: str, body: dict[str, Any], made: str
) -> None:
    reply, pauses = at.in_turns(database, body)
    assert reply["ok"] == 1.0 and (pauses > 0) == at.store.oplog_enabled
    name, _, collection = made.partition(".")
    found = at.must(name, {"find": collection, "batchSize": 1000})["cursor"]["firstBatch"]
    assert found == DOCUMENTS
