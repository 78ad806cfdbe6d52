"""Finding by a range of `_id`, and in the order of `_id`, reads only what it needs and sorts as MongoDB does."""

from __future__ import annotations

import random
from typing import Any

import pymongo
import pytest
from bson import Decimal128, Int64, ObjectId

import headrace

MIXED: list[Any] = [
    None, -5, Int64(7), 2.5, Decimal128("3.1"), "", "a", "b" * 700, "b" * 699 + "a", "b" * 900, {"x": 1}, b"\x01",
    ObjectId("64b000000000000000000001"), True, False,
]  # fmt: skip


@pytest.fixture(scope="module")
def coll() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        yield client.t.c


@pytest.fixture(autouse=True)
def empty(coll: Any) -> None:
    coll.drop()


def ids(cursor: Any) -> list[Any]:
    return [document["_id"] for document in cursor]


@pytest.mark.parametrize("direction", [1, -1])
def test_a_sort_by_id_is_the_same_in_small_batches_as_in_one(coll: Any, direction: int) -> None:
    numbers = list(range(1000))
    random.Random(1).shuffle(numbers)
    coll.insert_many([{"_id": number} for number in numbers])
    assert ids(coll.find().sort("_id", direction).batch_size(7)) == sorted(numbers, reverse=direction == -1)
    assert ids(coll.find({"_id": {"$gt": 10, "$lte": 13}}).sort("_id", direction)) == [11, 12, 13][::direction]
    assert ids(coll.find({"_id": {"$gte": 990}}).sort("_id", direction).limit(2)) == (
        [990, 991] if direction == 1 else [999, 998]
    )


@pytest.mark.parametrize("direction", [1, -1])
def test_ids_of_all_types_and_lengths_sort_as_an_aggregation_sorts_them(coll: Any, direction: int) -> None:
    coll.insert_many([{"_id": value} for value in MIXED])
    expected = ids(coll.aggregate([{"$project": {"k": "$_id"}}, {"$sort": {"k": direction}}]))
    assert ids(coll.find().sort("_id", direction)) == expected
    assert ids(coll.find().sort("_id", direction).batch_size(2)) == expected


@pytest.mark.parametrize("bound", ["", "a", "b" * 700, 2.5, 3])
@pytest.mark.parametrize("operator", ["$gt", "$gte", "$lt", "$lte"])
def test_a_range_finds_what_a_walk_finds(coll: Any, operator: str, bound: Any) -> None:
    coll.insert_many([{"_id": value} for value in MIXED])
    walked = ids(coll.find({"$or": [{"_id": {operator: bound}}]}).sort("_id", 1))
    assert ids(coll.find({"_id": {operator: bound}}).sort("_id", 1)) == walked
    assert sorted(map(str, ids(coll.find({"_id": {operator: bound}})))) == sorted(map(str, walked))


def test_inserts_between_two_batches_are_neither_skipped_nor_returned_twice(coll: Any) -> None:
    coll.insert_many([{"_id": number} for number in range(0, 1000, 2)])
    cursor = coll.find().sort("_id", 1).batch_size(10)
    seen = [next(cursor)["_id"] for _ in range(10)]
    coll.delete_one({"_id": 500})
    coll.insert_one({"_id": 999})
    seen += ids(cursor)
    assert len(seen) == len(set(seen))
    assert set(range(0, 1000, 2)) - {500} <= set(seen) <= set(range(1000))


def test_an_id_that_is_a_document_is_looked_up_and_matches_as_a_walk_does(coll: Any) -> None:
    values = [{"x": 1, "y": "a"}, {"y": "a", "x": 1}, {"x": Int64(1)}, {}, {"x": {"z": [1, 2]}}]
    coll.insert_many([{"_id": value} for value in values])
    for value in [*values, {"x": 1.0, "y": "a"}, {"x": 2}]:
        walked = ids(coll.find({"$or": [{"_id": value}]}))
        assert ids(coll.find({"_id": value})) == walked
        assert ids(coll.find({"_id": {"$in": [value]}})) == walked
    assert coll.update_one({"_id": {"x": 1.0, "y": "a"}}, {"$set": {"n": 1}}).modified_count == 1
