"""Upserts: what the filter, then the update, put into the new document."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Regex, Timestamp

from headrace.errors import CommandError
from headrace.query.update.update import UpdateContext, check_upsert_filter, upsert_document
from headrace.query.update.update_parser import parse_update


def upserted(condition: dict[str, Any], update: Any) -> dict[str, Any]:
    parsed = parse_update(update)
    check_upsert_filter(condition)
    return upsert_document(parsed, condition, UpdateContext(0, Timestamp(1, 1), inserting=True), new_id=lambda: "new")


@pytest.mark.parametrize(
    ("condition", "update", "document"),
    [
        ({"b": 1, "a": 2}, {"$set": {"c": 3}}, {"_id": "new", "a": 2, "b": 1, "c": 3}),
        ({"a": 1, "_id": 7}, {"$set": {"c": 3}}, {"_id": 7, "a": 1, "c": 3}),
        ({"_id": 7, "a": 1}, {"b": 2}, {"_id": 7, "b": 2}),
        ({"a": 1}, {"b": 2, "_id": 3}, {"_id": 3, "b": 2}),
        ({"a": 1}, {"$set": {"_id": 3}}, {"_id": 3, "a": 1}),
        ({"a.b": 1, "a.c": 2}, {"$inc": {"a.b": 1}}, {"_id": "new", "a": {"b": 2, "c": 2}}),
        ({"a.0": 1}, {"$set": {}}, {"_id": "new", "a": {"0": 1}}),
        ({"a": {"$eq": [1]}}, {"$push": {"a": 2}}, {"_id": "new", "a": [1, 2]}),
        ({"a": {"$in": [1]}}, {"$set": {"b": 1}}, {"_id": "new", "a": 1, "b": 1}),
        ({"a": {"$in": [1, 1.0]}}, {"$set": {"b": 1}}, {"_id": "new", "a": 1, "b": 1}),
        ({"a": {"$in": [1, 2]}}, {"$set": {"b": 1}}, {"_id": "new", "b": 1}),
        ({"a": {"$all": [1]}}, {"$set": {"b": 1}}, {"_id": "new", "a": 1, "b": 1}),
        ({"a": Regex("x")}, {"$set": {"b": 1}}, {"_id": "new", "b": 1}),
        ({"a": {"$gt": 1}}, {"$set": {"b": 1}}, {"_id": "new", "b": 1}),
        ({"$and": [{"a": 1}, {"$or": [{"c": 2}]}]}, {"$set": {"b": 1}}, {"_id": "new", "a": 1, "c": 2, "b": 1}),
        ({"$or": [{"a": 1}, {"c": 2}]}, {"$set": {"b": 1}}, {"_id": "new", "b": 1}),
        ({"a": 1, "c": {"$in": []}}, {"$set": {"b": 1}}, {"_id": "new", "b": 1}),
        ({"$or": [{"a": 1}, {"c": {"$all": []}}]}, {"$set": {"b": 1}}, {"_id": "new", "a": 1, "b": 1}),
        ({"a": 1}, {"$setOnInsert": {"b": 1}, "$unset": {"a": 1}}, {"_id": "new", "b": 1}),
        ({"a": 1}, [{"$set": {"b": "$a"}}], {"_id": "new", "a": 1, "b": 1}),
        ({"a": 1}, {}, {"_id": "new"}),
    ],
)
def test_the_document_an_upsert_inserts(condition: Any, update: Any, document: Any) -> None:
    result = upserted(condition, update)
    assert list(result.items()) == list(document.items())


@pytest.mark.parametrize(
    ("condition", "update", "code"),
    [
        ({"$and": [{"a": 1}, {"a": 2}]}, {"$set": {"b": 1}}, 54),
        ({"a": {"$all": [1, 2]}}, {"$set": {"b": 1}}, 54),
        ({"a": 1, "a.b": 2}, {"$set": {"b": 1}}, 54),
        ({"_id": 1}, {"$set": {"_id": 2}}, 66),
        ({"_id": 1}, {"_id": 2}, 66),
        ({"_id.a": 1}, {"b": 2}, 111),
        ({}, {"$set": {"_id": [1]}}, 53),
        ({"a": 5}, {"$set": {"a.b": 1}}, 28),
        ({"$and": [{"$expr": True}]}, {"$set": {"b": 1}}, 224),
        ({"$expr": True}, {"$set": {"b": 1, "b.c": 1}}, 40),
        ({"a": 1}, {"$set": {"a.$": 1}}, 2),
    ],
)
def test_upserts_that_fail(condition: Any, update: Any, code: int) -> None:
    with pytest.raises(CommandError) as caught:
        upserted(condition, update)
    assert caught.value.code == code
