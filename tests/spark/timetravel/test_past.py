"""A collection as it was at a token, with writers at work since, and refused where it cannot be known."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import Int64
from pymongo.database import Database

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.past import PastUnknown, documents_by_images
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.bson import decode

Db = Database[dict[str, Any]]
KEYS: list[Any] = [*range(8), 2.5, "a", "b", Int64(99), {"x": 1}, None, True]


def at(uri: str, database: Db, token: Token) -> list[dict[str, Any]]:
    rows = documents_by_images(Snapshot(SourceOptions(uri, database.name, "c")), token)
    return sorted((decode(row[7]) for row in rows), key=repr)


def now(uri: str, database: Db) -> Token:
    feed = MongoDBStream(SourceOptions(uri, database.name, "c"))
    return feed.end_at(feed.now())


@pytest.mark.process
@pytest.mark.parametrize("seed", range(4))
def test_every_past_state_of_a_collection_can_be_read(uri: str, database: Db, seed: int) -> None:
    random_ = random.Random(seed)
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    states: list[tuple[Token, list[dict[str, Any]]]] = []
    for step in range(6):
        states.append((now(uri, database), sorted(database.c.find(), key=repr)))
        for _ in range(12):
            key = {"_id": random_.choice(KEYS)}
            if random_.random() < 0.3:
                database.c.delete_one(key)
            else:
                database.c.update_one(key, {"$push": {"steps": step}}, upsert=True)
    for token, documents in states:
        assert at(uri, database, token) == documents


def test_changes_while_it_is_read_do_not_show(uri: str, database: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_many([{"_id": number} for number in range(20)])
    token = now(uri, database)
    consistent_read = Snapshot.consistent_read

    def while_writing(self: Snapshot, chunk: Any) -> Any:
        database.c.update_many({"_id": {"$lt": 15}}, {"$inc": {"n": 1}})
        database.c.delete_one({"_id": 7})
        documents = consistent_read(self, chunk)
        database.c.update_many({}, {"$inc": {"n": 1}})
        database.c.delete_one({"_id": 3})
        database.c.replace_one({"_id": 5.5}, {}, upsert=True)
        return documents

    monkeypatch.setattr(Snapshot, "consistent_read", while_writing)
    assert at(uri, database, token) == sorted(({"_id": number} for number in range(20)), key=repr)


def test_without_images_an_untouched_document_is_known_and_a_changed_one_refused(uri: str, database: Db) -> None:
    database.c.insert_many([{"_id": 1}, {"_id": 2}])
    token = now(uri, database)
    database.c.insert_one({"_id": 3})
    assert at(uri, database, token) == [{"_id": 1}, {"_id": 2}]
    database.c.update_one({"_id": 1}, {"$set": {"a": 1}})
    with pytest.raises(PastUnknown, match="image"):
        at(uri, database, token)


def test_a_collection_that_was_dropped_since_is_refused(uri: str, database: Db) -> None:
    database.c.insert_one({"_id": 1})
    token = now(uri, database)
    database.c.drop()
    database.c.insert_one({"_id": 2})
    with pytest.raises(PastUnknown, match="drop"):
        at(uri, database, token)
