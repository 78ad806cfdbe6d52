"""validate finds what does not agree in a collection, and repairs it on a standalone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64

from headrace.errors import CommandError
from headrace.store.catalog import Index
from headrace.store.indexes.index_rows import IndexRows, rows_of
from headrace.store.state import DocumentCount
from headrace.testing.driven import DrivenServer
from tests.store.test_checksums import damage

INDEXES = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1, "a": -1}, "name": "b_1_a_-1", "unique": True}]


@pytest.fixture(params=[True, False], ids=["set", "standalone"])
def at(request: pytest.FixtureRequest) -> Iterator[DrivenServer]:
    with DrivenServer(oplog=request.param) as server:
        server.must("t", {"createIndexes": "c", "indexes": INDEXES})
        documents = [{"_id": number, "a": [number, number + 1], "b": str(number)} for number in range(200)]
        server.must("t", {"insert": "c", "documents": documents})
        yield server


def rows(at: DrivenServer, name: str) -> tuple[IndexRows, list[tuple[bytes, bytes | None]]]:
    collection = at.store.catalog.collections["t.c"]
    made = rows_of(collection, next(index for index in collection.indexes if index.name == name))
    assert made is not None
    with at.store.reading() as view:
        return made, made.piece(view, None, 1000)


def spoil(at: DrivenServer, *changes: tuple[str, bytes, bytes | None]) -> None:
    """Put values into tables, or remove keys, behind the server's back."""
    txn = at.store.begin()
    for table, key, value in changes:
        if value is None:
            assert txn.kv.delete(key, db=txn.tables[table])
        else:
            txn.kv.put(key, value, db=txn.tables[table])
    at.store.prepare(txn)
    at.store.sync(txn)
    at.store.publish(txn)


def validated(at: DrivenServer, **options: Any) -> dict[str, Any]:
    return at.must("t", {"validate": "c", **options})


def test_a_sound_collection_is_valid(at: DrivenServer) -> None:
    background = [{"background": True}] if at.store.oplog_enabled else []
    for options in ({}, {"full": True}, *background, {"checkBSONConformance": True}):
        reply = validated(at, **options)
        assert list(reply)[:-1][:15] == [
            "ns", "uuid", "nInvalidDocuments", "nNonCompliantDocuments", "nrecords", "nIndexes", "keysPerIndex",
            "indexDetails", "valid", "repaired", "repairMode", "warnings", "errors", "extraIndexEntries",
            "missingIndexEntries",
        ]  # fmt: skip
        assert reply["valid"] and not reply["repaired"] and reply["warnings"] == reply["errors"] == []
        assert reply["nrecords"] == 200 and reply["nIndexes"] == 3
        assert reply["keysPerIndex"] == {"_id_": 200, "a_1": 400, "b_1_a_-1": 400}
        assert reply["indexDetails"]["a_1"] == {"valid": True, "spec": {"v": 2, "key": {"a": 1}, "name": "a_1"}}
        assert reply["repairMode"] == "None"
    assert "nrecords" not in validated(at, metadata=True)


def test_rows_that_are_missing_or_extra_are_listed_and_repaired(at: DrivenServer) -> None:
    made, stored = rows(at, "a_1")
    _, ids = rows(at, "_id_")
    unique, unique_rows = rows(at, "b_1_a_-1")
    other = unique.expected(b"\0" * 7 + b"\1", at_document(at, 3))[0]
    spoil(
        at,
        ("indexes", stored[0][0], None),
        ("indexes", stored[7][0][:-8] + b"\0" * 6 + b"\1\0", b""),
        ("ids", ids[5][0], None),
        ("ids", ids[5][0] + b"x", b"\0" * 7 + b"\7"),
        ("indexes", unique_rows[0][0], None),
        ("indexes", next(iter(other)), b"\0" * 7 + b"\1"),
    )
    assert made.table == "indexes"
    reply = validated(at)
    assert not reply["valid"]
    missing = [(item["indexName"], item["recordId"], item["idKey"]) for item in reply["missingIndexEntries"]]
    assert ("a_1", Int64(1), {"_id": 0}) in missing and ("_id_", Int64(6), {"_id": 5}) in missing
    assert next(item["indexKey"] for item in reply["missingIndexEntries"] if item["indexName"] == "a_1") == {"a": 0}
    extra = {(item["indexName"], item.get("recordId")) for item in reply["extraIndexEntries"]}
    assert extra == {("a_1", Int64(256)), ("_id_", Int64(7)), ("b_1_a_-1", Int64(1))}
    assert reply["warnings"] == ["Detected 4 missing index entries.", "Detected 3 extra index entries."]
    assert reply["errors"] == [f"Index with name '{name}' has inconsistencies." for name in reply["indexDetails"]]
    if at.store.oplog_enabled:
        assert at.run("t", {"validate": "c", "repair": True})["code"] == 72  # type: ignore[index]
        return
    reply = validated(at, repair=True)
    assert reply["valid"] and reply["repaired"], reply
    assert reply["numInsertedMissingIndexEntries"] == 4
    assert reply["numRemovedExtraIndexEntries"] == 2  # the third had its document's key, and has its record now
    reply = validated(at)
    assert reply["valid"] and reply["keysPerIndex"] == {"_id_": 200, "a_1": 400, "b_1_a_-1": 400}


def at_document(at: DrivenServer, number: int) -> bytes:
    with at.store.reading() as view:
        return next(raw for record, raw in view.scan(at.store.catalog.collections["t.c"]) if record[-1] == number + 1)


def test_documents_that_cannot_be_read_are_named_and_removed(at: DrivenServer) -> None:
    damage(at.store, "documents", at.store.catalog.collections["t.c"].number_key + b"\0" * 7 + b"\4")
    reply = validated(at)
    assert (reply["valid"], reply["nInvalidDocuments"], reply["corruptRecords"]) == (False, 1, [Int64(4)])
    if at.store.oplog_enabled:
        return
    reply = validated(at, repair=True)
    assert reply["valid"] and reply["numRemovedCorruptRecords"] == 1 and reply["nrecords"] == 199
    assert reply["numRemovedExtraIndexEntries"] == 5
    assert at.must("t", {"count": "c"})["n"] == 199 and validated(at)["valid"]


def test_a_wrong_count_is_set_right(at: DrivenServer) -> None:
    with at.store.reading() as view:
        view.keep_count(view.catalog.collections["t.c"], DocumentCount(1000, 0, None))
    assert validated(at)["warnings"] == [
        "The collection was counted as 1000 documents and has 200; the count is right now"
    ]
    assert at.must("t", {"count": "c"})["n"] == 200 and validated(at)["warnings"] == []


def test_what_an_index_does_not_know_of_its_documents_is_a_warning(at: DrivenServer) -> None:
    txn = at.store.begin()
    collection = txn.catalog.collections["t.c"]
    indexes = tuple(Index(index.number, index.spec) for index in collection.indexes)
    txn.catalog.save(txn.kv, collection.changed(indexes=indexes))
    at.store.commit(txn)
    assert any(text.startswith("Index a_1 lacks traits of record 1: ") for text in validated(at)["warnings"])


def test_documents_against_the_validator_are_counted(at: DrivenServer) -> None:
    at.must("t", {"collMod": "c", "validator": {"b": {"$ne": "7"}}, "validationAction": "warn"})
    reply = validated(at)
    assert reply["nNonCompliantDocuments"] == 1 and reply["valid"] and len(reply["warnings"]) == 1


def test_what_cannot_be_validated_is_refused(at: DrivenServer) -> None:
    at.must("t", {"create": "v", "viewOn": "c"})
    for body, code in (
        ({"validate": "none"}, 26), ({"validate": "v"}, 166), ({"validate": "c", "background": True, "full": True}, 72),
        ({"validate": "c", "metadata": True, "full": True}, 72),
    ):  # fmt: skip
        with pytest.raises(CommandError) as failed:
            at.must("t", body)
        assert failed.value.code == code


def test_no_repair_helps_two_documents_with_one_unique_key() -> None:
    with DrivenServer(oplog=False) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 7}, {"_id": 2, "a": 7}]})
        txn = at.store.begin()
        collection = txn.catalog.collections["t.c"]
        of_id, index = collection.indexes
        unique = Index(index.number, {**index.spec, "unique": True})
        txn.catalog.save(txn.kv, collection.changed(indexes=(of_id, unique)))
        at.store.commit(txn)
        reply = validated(at, repair=True)
        assert not reply["valid"] and reply["indexDetails"]["a_1"]["errors"] == ["record 1 has the key of another"]
