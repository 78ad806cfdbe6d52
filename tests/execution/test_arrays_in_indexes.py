"""The rules for arrays: queries whose matches an index would lose, or put in another order, if one were wrong."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

CASES: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = [
    # two conditions on one field, met by different elements
    ({"a": 1}, {}, [{"a": [1, 9]}], {"a": {"$gt": 5, "$lt": 3}}, {}),
    ({"a.b": 1}, {}, [{"a": [{"b": 1}, {"b": 9}]}], {"a.b": {"$gt": 5, "$lt": 3}}, {}),
    ({"a": 1}, {}, [{"a": [1, 9]}, {"a": [4]}], {"a": {"$elemMatch": {"$gt": 3, "$lt": 5}}}, {}),
    # conditions on two fields, met by different elements, and by one
    ({"a.b": 1, "a.c": 1}, {}, [{"a": [{"b": 1, "c": 9}, {"b": 2, "c": 2}]}], {"a.b": 1, "a.c": 2}, {}),
    ({"a.b": 1, "a.c": 1}, {}, [{"a": [{"b": 1, "c": 9}, {"b": 1, "c": 2}]}],
     {"a": {"$elemMatch": {"b": 1, "c": 2}}}, {}),
    ({"a.b": 1, "c": 1}, {}, [{"a": [{"b": 1}, {"b": 2}], "c": 5}], {"a.b": 2, "c": 5}, {}),
    # an order by a field of which the bounds leave out a key
    ({"a.b": 1, "a.c": 1}, {}, [{"a": {"b": 5, "c": 3}}, {"a": [{"b": 5, "c": 9}, {"b": 6, "c": 1}]}],
     {"a.b": 5}, {"a.c": 1}),
    ({"a": 1}, {}, [{"a": 7}, {"a": [1, 9]}], {"a": {"$gt": 5}}, {"a": 1}),
    # what a sparse index does not have
    ({"x.b": 1, "x.a": 1}, {"sparse": True}, [{"x": [{"a": 1, "b": 5}, {}]}], {"x.a": 1, "x.b": None}, {}),
    ({"a": 1}, {"sparse": True}, [{}, {"a": 1}], {"a": None}, {}),
    ({"a": 1}, {"sparse": True}, [{}, {"a": 1}], {}, {"a": 1}),
    # what a partial index does not have
    ({"a": 1}, {"partialFilterExpression": {"b": {"$gt": 3}}}, [{"a": 1, "b": 2}, {"a": 1, "b": 5}],
     {"a": 1, "b": {"$gt": 1}}, {}),
    ({"a": 1}, {"partialFilterExpression": {"b": {"$exists": True}}}, [{"a": 1}, {"a": 1, "b": 5}],
     {"a": 1, "b": None}, {}),
    # null, and arrays as values
    ({"a.b": 1}, {}, [{}, {"a": None}, {"a": []}, {"a": [{}]}, {"a": [{"b": 1}, {}]}, {"a": 5}], {"a.b": None}, {}),
    ({"a.b": 1}, {}, [{}, {"a": None}, {"a": []}, {"a": [{}]}, {"a": [{"b": 1}, {}]}, {"a": 5}],
     {"a.b": {"$exists": False}}, {}),
    ({"a": 1}, {}, [{"a": []}, {"a": [[]]}, {"a": [1, 2]}, {"a": [[1, 2]]}], {"a": {"$in": [[], [1, 2]]}}, {}),
    ({"a": -1}, {}, [{"a": "x"}, {"a": "x\0y"}, {"a": "y"}], {"a": {"$gt": "x"}}, {"a": -1}),
    ({"a": -1}, {}, [{"a": "x"}, {"a": "x\0y"}, {"a": "w"}], {"a": {"$lte": "x"}}, {"a": 1}),
    ({"a": 1}, {}, [{"a": "z" * 600 + "b"}, {"a": "z" * 600 + "a"}], {"a": {"$gt": "z"}}, {"a": 1}),
    ({"a.0": 1}, {}, [{"a": [5, 6]}, {"a": {"0": 5}}], {"a.0": 5}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "options", "documents", "spec", "sort"), CASES)
def test_an_index_loses_nothing_and_keeps_the_order(
    key: dict[str, Any], options: dict[str, Any], documents: list[dict[str, Any]], spec: dict[str, Any],
    sort: dict[str, Any],
) -> None:  # fmt: skip
    with DrivenServer(clock=FakeClock()) as at:
        made = [{"_id": number, **document} for number, document in enumerate(documents)]
        at.must("t", {"insert": "plain", "documents": made})
        at.must("t", {"createIndexes": "indexed", "indexes": [{"key": key, "name": "i", **options}]})
        at.must("t", {"insert": "indexed", "documents": made})
        answers = [
            at.must("t", {"find": name, "filter": spec, "sort": sort})["cursor"]["firstBatch"]
            for name in ("plain", "indexed")
        ]
        ids = [[document["_id"] for document in answer] for answer in answers]
        assert sorted(ids[0]) == sorted(ids[1]) and ids[0]
        assert not sort or ids[0] == ids[1]


@pytest.mark.parametrize(
    "index",
    [
        {"key": {"$**": 1}}, {"key": {"a.b": 1}}, {"key": {"a.b": 1}, "sparse": True},
        {"key": {"a.b": 1}, "partialFilterExpression": {"a.b": {"$exists": True}}},
    ],
)  # fmt: skip
def test_an_array_without_the_field_is_not_equal_to_null(index: dict[str, Any]) -> None:
    """Recorded answers of MongoDB showed it: such a document has no key in an index that lacks missing values."""
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"name": "i", **index}]})
        values: list[Any] = [[], [1], [[1]], [{"b": None}], {"b": 1}, {"b": None}, {}, 5]
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": value} for n, value in enumerate(values)]})
        for condition in ({"$ne": None}, {"$nin": [None, 7]}, {"$not": {"$in": [None, 7]}}):
            reply = at.must("t", {"find": "c", "filter": {"a.b": condition}, "sort": {"_id": 1}})
            assert [item["_id"] for item in reply["cursor"]["firstBatch"]] == [0, 1, 2, 4]
