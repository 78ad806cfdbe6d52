"""`let`: variables are expressions, computed once, and seen wherever the command computes something."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest

import headrace

LET = {"one": 1, "text": {"$literal": "$a"}, "sum": {"$add": [1, 2]}, "chance": {"$rand": {}}}


@pytest.fixture
def coll() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number, "a": number} for number in range(4)])
        yield client.t.c


def is_(name: str) -> dict[str, Any]:
    return {"$expr": {"$eq": ["$_id", f"$${name}"]}}


def test_a_find_sees_it_in_its_filter_and_its_projection(coll: Any) -> None:
    assert list(coll.find(is_("sum"), {"_id": 0, "t": "$$text"}, let=LET)) == [{"t": "$a"}]


def test_an_aggregation_computes_it_once(coll: Any) -> None:
    results = list(coll.aggregate([{"$project": {"c": "$$chance", "t": "$$text"}}], let=LET))
    assert len({item["c"] for item in results}) == 1 and {item["t"] for item in results} == {"$a"}


def test_writes_see_it(coll: Any) -> None:
    coll.update_one(is_("one"), [{"$set": {"t": "$$text", "s": "$$sum"}}], let=LET)
    assert coll.find_one({"_id": 1}) == {"_id": 1, "a": 1, "t": "$a", "s": 3}
    assert coll.find_one_and_update(is_("sum"), [{"$set": {"t": "$$text"}}], let=LET)["_id"] == 3
    assert coll.delete_one(is_("one"), let=LET).deleted_count == 1
    models = [pymongo.DeleteOne(is_("sum"), namespace="t.c")]
    assert coll.database.client.bulk_write(models, let=LET).deleted_count == 1


def test_a_merge_that_fails_names_the_key(coll: Any) -> None:
    with pytest.raises(pymongo.errors.DuplicateKeyError) as caught:
        coll.aggregate([{"$match": {"_id": 2}}, {"$merge": {"into": "c", "whenMatched": "fail"}}])
    assert caught.value.details["keyPattern"] == {"_id": 1} and caught.value.details["keyValue"] == {"_id": 2}


def test_a_find_that_asks_for_nothing_else_sees_it_too(coll: Any) -> None:
    assert [item["_id"] for item in coll.find(is_("one"), let=LET)] == [1]
