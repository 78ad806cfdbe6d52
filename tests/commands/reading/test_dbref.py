"""The fields of a DBRef, whose names begin with a dollar sign, may be named in field paths."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from bson import DBRef

import headrace


@pytest.fixture(scope="module")
def database() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.products.insert_many([{"_id": key, "price": 10 * key} for key in range(4)])
        client.t.orders.insert_many(
            [
                {"_id": "a", "products": [DBRef("products", 1), DBRef("products", 3)]},
                {"_id": "b", "products": [DBRef("products", 2)]},
            ]
        )
        yield client.t


def test_lookup_follows_links(database: Any) -> None:
    lookup = {"from": "products", "localField": "products.$id", "foreignField": "_id", "as": "items"}
    orders = list(database.orders.aggregate([{"$lookup": lookup}, {"$sort": {"_id": 1}}]))
    assert [[item["price"] for item in order["items"]] for order in orders] == [[10, 30], [20]]


def test_expressions_sorts_and_groups_name_them(database: Any) -> None:
    pipeline: list[dict[str, Any]] = [
        {"$unwind": "$products"},
        {"$addFields": {"key": "$products.$id", "from": "$products.$ref"}},
        {"$sort": {"products.$id": -1}},
        {"$project": {"key": 1, "from": 1, "_id": 0}},
    ]
    assert list(database.orders.aggregate(pipeline)) == [{"key": key, "from": "products"} for key in (3, 2, 1)]
    grouped = database.orders.aggregate([{"$unwind": "$products"}, {"$group": {"_id": "$products.$id"}}])
    assert sorted(group["_id"] for group in grouped) == [1, 2, 3]


def test_a_pipeline_lookup_compares_them(database: Any) -> None:
    lookup = {
        "from": "products", "let": {"ids": "$products.$id"}, "as": "items",
        "pipeline": [{"$match": {"$expr": {"$in": ["$_id", "$$ids"]}}}],
    }  # fmt: skip
    (order,) = database.orders.aggregate([{"$match": {"_id": "a"}}, {"$lookup": lookup}])
    assert [item["_id"] for item in order["items"]] == [1, 3]
