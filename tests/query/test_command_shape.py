"""Shapes of queries by family: commands that differ in values alone have one hash; operators and paths count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS

from headrace.query.command_shape import command_shape, hash_of_shape

Json = dict[str, Any]
Make = Callable[[Any], Any]
VALUES: list[tuple[Any, Any]] = [
    (1, 7), (1, Int64(2**40)), (0.5, Decimal128("12")), ("x", "a longer text"), (True, False),
    (DatetimeMS(0), DatetimeMS(10**12)), (ObjectId("a" * 24), ObjectId("b" * 24)), (Binary(b"1", 0), Binary(b"22", 0)),
    ([1, 2], [3]), (["a"], ["b", "c"]), ({"q": 1}, {"q": 5, "r": "x"}), (Regex("a"), Regex("b", "i")),
]  # fmt: skip
COMPARED = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
FILTERS: list[Make] = [
    lambda v: {"a": v}, lambda v: {"a.b": v, "c": v}, *[lambda v, name=name: {"a": {name: v}} for name in COMPARED],
    lambda v: {"$or": [{"a": v}, {"b": {"$gt": v}}]}, lambda v: {"$nor": [{"a": v}]}, lambda v: {"$and": [{"a": v}]},
    lambda v: {"a": {"$not": {"$gt": v}}}, lambda v: {"a": {"$elemMatch": {"b": v, "c": {"$lt": v}}}},
    lambda v: {"a": {"$elemMatch": {"$gt": v}}}, lambda v: {"$expr": {"$eq": ["$a", {"$literal": v}]}},
]  # fmt: skip
OPERANDS: list[tuple[Json, Json]] = [
    ({"a": {"$in": [1, 2]}}, {"a": {"$in": [3, 4, 5]}}), ({"a": {"$nin": ["x"]}}, {"a": {"$nin": ["y", "z"]}}),
    ({"a": {"$all": [1]}}, {"a": {"$all": [1, 2]}}), ({"a": {"$size": 1}}, {"a": {"$size": 5}}),
    ({"a": {"$mod": [2, 0]}}, {"a": {"$mod": [7, 3]}}), ({"a": {"$exists": True}}, {"a": {"$exists": False}}),
    ({"a": {"$bitsAllSet": 3}}, {"a": {"$bitsAllSet": 9}}),
    ({"a": {"$regex": "a", "$options": "i"}}, {"a": {"$regex": "b+", "$options": "ms"}}),
    ({"$text": {"$search": "lamp"}}, {"$text": {"$search": "oil -red"}}),
    (
        {"at": {"$geoWithin": {"$centerSphere": [[0, 0], 1]}}},
        {"at": {"$geoWithin": {"$centerSphere": [[5, 5.5], 0.1]}}},
    ),
    (
        {"at": {"$near": {"$geometry": {"type": "Point", "coordinates": [0, 0]}, "$maxDistance": 5}}},
        {"at": {"$near": {"$geometry": {"type": "Point", "coordinates": [7.5, 1]}, "$maxDistance": 9}}},
    ),
    ({"a": {"$gt": 1, "$lt": 5}}, {"a": {"$gt": 2, "$lt": 9}}), ({"a": 1, "$comment": "x"}, {"a": 2}),
    ({"$expr": {"$gt": [{"$add": ["$a", 1]}, 5]}}, {"$expr": {"$gt": [{"$add": ["$a", 9]}, 0.5]}}),
]  # fmt: skip
STAGES: list[Make] = [
    lambda n: {"$match": {"a": {"$gt": n}}}, lambda n: {"$limit": n}, lambda n: {"$skip": n},
    lambda n: {"$sample": {"size": n}}, lambda n: {"$set": {"b": {"$add": ["$a", n]}}}, lambda n: {"$set": {"b": n}},
    lambda n: {"$project": {"b": {"$cond": [{"$gt": ["$a", n]}, n, "$c"]}}},
    lambda n: {"$group": {"_id": {"$mod": ["$a", n]}, "sum": {"$sum": n}}},
    lambda n: {"$bucket": {"groupBy": "$a", "boundaries": [n, n + 5], "default": n}},
    lambda n: {"$bucketAuto": {"groupBy": "$a", "buckets": n}},
    lambda n: {"$facet": {"x": [{"$match": {"a": n}}, {"$limit": n}], "y": [{"$skip": n}]}},
    lambda n: {"$lookup": {"from": "d", "let": {"v": n}, "pipeline": [{"$match": {"a": n}}], "as": "x"}},
    lambda n: {"$unionWith": {"coll": "d", "pipeline": [{"$match": {"a": n}}]}},
    lambda n: {"$graphLookup": {
        "from": "d", "startWith": n, "connectFromField": "a", "connectToField": "b", "as": "x", "maxDepth": n,
        "restrictSearchWithMatch": {"c": n},
    }},
    lambda n: {"$geoNear": {"near": [n, n], "key": "at", "maxDistance": n, "query": {"a": n}, "distanceField": "d"}},
    lambda n: {"$redact": {"$cond": [{"$eq": ["$a", n]}, "$$KEEP", "$$PRUNE"]}},
    lambda n: {"$replaceRoot": {"newRoot": {"a": n}}}, lambda n: {"$fill": {"output": {"a": {"value": n}}}},
    lambda n: {"$densify": {"field": "a", "range": {"step": n, "bounds": [n, n + 5]}}},
    lambda n: {"$documents": [{"a": n}] * n},
    lambda n: {"$setWindowFields": {
        "sortBy": {"a": 1}, "output": {"s": {"$sum": n, "window": {"documents": [-n, n]}}},
    }},
]  # fmt: skip


def hash_of(body: Json) -> str:
    return hash_of_shape(command_shape(next(iter(body)), "t", body))


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_filters_that_differ_in_values_have_one_hash(number: int) -> None:
    make = FILTERS[number]
    for one, other in VALUES:
        for command in (
            lambda spec: {"find": "c", "filter": spec}, lambda spec: {"count": "c", "query": spec},
            lambda spec: {"distinct": "c", "key": "a", "query": spec},
            lambda spec: {"aggregate": "c", "pipeline": [{"$match": spec}]},
        ):  # fmt: skip
            assert hash_of(command(make(one))) == hash_of(command(make(other))), one
            assert hash_of(command(make(one))) != hash_of(command({**make(one), "more": 1})), one
    assert len({hash_of({"find": "c", "filter": make(one)}) for one, _ in VALUES}) > 5


def test_each_filter_has_a_hash_of_its_own() -> None:
    made = [{"find": "c", "filter": spec} for spec in [make(1) for make in FILTERS] + [one for one, _ in OPERANDS]]
    assert len({hash_of(body) for body in made}) == len(made) - 2  # {a: 1} stands for `$eq`; a comment says nothing


@pytest.mark.parametrize(("one", "other"), OPERANDS)
def test_operands_of_operators_are_values(one: Json, other: Json) -> None:
    assert hash_of({"find": "c", "filter": one}) == hash_of({"find": "c", "filter": other})


@pytest.mark.parametrize("number", range(len(STAGES)))
def test_stages_that_differ_in_values_have_one_hash(number: int) -> None:
    make = STAGES[number]
    hashes = {hash_of({"aggregate": "c", "pipeline": [make(n)]}) for n in (1, 2, 7)}
    assert len(hashes) == 1
    others = {hash_of({"aggregate": "c", "pipeline": [other(1)]}) for other in STAGES if other is not make}
    assert len(others) == len(STAGES) - 1 and not hashes & others


def test_options_of_a_find() -> None:
    base = {"find": "c", "filter": {"a": 1}, "limit": 1, "skip": 2, "min": {"a": 1}, "max": {"a": 5}, "let": {"v": 1}}
    other = {"find": "c", "filter": {"a": 7}, "limit": 9, "skip": 1, "min": {"a": 2}, "max": {"a": 9}, "let": {"v": 8}}
    assert hash_of(base) == hash_of(other)
    for name in ("limit", "skip", "min", "max", "let"):
        assert hash_of({key: value for key, value in base.items() if key != name}) != hash_of(base)
    assert hash_of({**base, "batchSize": 5, "maxTimeMS": 9, "comment": "x", "hint": {"a": 1}}) == hash_of(base)
