"""A capped collection holds its newest documents, whatever changes it, at a cost that does not grow with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pymongo
import pytest

import headrace
from headrace.store.view import View


@pytest.fixture
def coll() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        yield client.t.create_collection("c", capped=True, size=1000, max=10)


def ids(coll: Any) -> list[Any]:
    return [document["_id"] for document in coll.find({}, {"_id": 1})]


def test_the_oldest_go_by_number(coll: Any) -> None:
    coll.insert_many([{"_id": key} for key in range(25)])
    assert ids(coll) == list(range(15, 25))
    coll.insert_one({"_id": 25})
    assert ids(coll) == list(range(16, 26))
    assert coll.count_documents({}) == coll.estimated_document_count() == 10


def test_the_oldest_go_by_size_and_the_newest_stays(coll: Any) -> None:
    coll.insert_many([{"_id": key, "text": "x" * 300} for key in range(4)])
    assert ids(coll) == [1, 2, 3]
    coll.insert_one({"_id": "large", "text": "x" * 5000})
    assert ids(coll) == ["large"]
    coll.insert_one({"_id": "small"})
    assert ids(coll) == ["small"]


def test_updates_and_deletes_count(coll: Any) -> None:
    coll.insert_many([{"_id": key} for key in range(10)])
    coll.delete_many({"_id": {"$lt": 5}})
    coll.insert_many([{"_id": key} for key in range(10, 15)])
    assert ids(coll) == list(range(5, 15))
    coll.update_one({"_id": 14}, {"$set": {"text": "x" * 950}})
    coll.insert_one({"_id": 15})
    assert ids(coll) == [14, 15]
    coll.update_one({"_id": 14}, {"$unset": {"text": 1}})
    coll.insert_many([{"_id": key} for key in range(16, 24)])
    assert ids(coll) == list(range(14, 24))


def test_upserts_and_merges_make_room_too(coll: Any) -> None:
    for key in range(12):
        coll.update_one({"_id": key}, {"$set": {"a": 1}}, upsert=True)
    assert ids(coll) == list(range(2, 12))
    coll.find_one_and_update({"_id": 12}, {"$set": {"a": 1}}, upsert=True)
    coll.database.other.insert_many([{"_id": key} for key in range(13, 16)])
    coll.database.other.aggregate([{"$merge": {"into": "c"}}])
    assert ids(coll) == list(range(6, 16))


def test_what_was_stored_before_counts_after_a_restart(tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server, pymongo.MongoClient(server.uri) as client:
        coll = client.t.create_collection("c", capped=True, size=1 << 20, max=500)
        coll.insert_many([{"_id": key} for key in range(500)])
    with headrace.Server(tmp_path) as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_one({"_id": 500})
        assert ids(client.t.c) == list(range(1, 501))


def test_an_insert_reads_no_more_documents_than_it_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        coll = client.t.create_collection("c", capped=True, size=1 << 20, max=300)
        coll.insert_many([{"_id": key} for key in range(300)])
        read = []
        by_record = View.by_record

        def counting(view: View, *arguments: Any) -> bytes | None:
            read.append(arguments)
            return by_record(view, *arguments)

        monkeypatch.setattr(View, "by_record", counting)
        for key in range(300, 310):
            coll.insert_one({"_id": key})
        assert len(read) <= 10
