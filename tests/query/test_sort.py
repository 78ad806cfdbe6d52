"""Sorting documents: arrays, missing fields, several paths, and bad specifications."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.collation import parse_collation
from headrace.query.sort import parse_sort


def order(spec: dict[str, Any], values: list[Any]) -> list[int]:
    """The `_id`s of documents {_id: position, a: value}, sorted both ways, which must agree."""
    documents = [{"_id": index, **({"a": value} if value is not ... else {})} for index, value in enumerate(values)]
    sort = parse_sort(spec)
    by_key = sorted(documents, key=sort.key)
    assert sort.sorted(documents) == by_key
    return [document["_id"] for document in by_key]


@pytest.mark.parametrize(
    ("spec", "values", "ids"),
    [
        ({"a": 1}, [2, "x", None, 1, ...], [2, 4, 3, 0, 1]),
        ({"a": -1}, [2, "x", None, 1, ...], [1, 0, 3, 2, 4]),
        ({"a": 1}, [[3, 1], 2, []], [2, 0, 1]),
        ({"a": -1}, [[3, 1], 2, [], None], [0, 1, 3, 2]),
        ({"a": 1}, [[[9]], 1, "x"], [1, 2, 0]),
        ({"a.b": 1}, [[{"b": 2}, {"b": 0}], {"b": 1}, [3], []], [2, 3, 0, 1]),
        ({"a.0": 1}, [[5, 1], [2], 3], [2, 1, 0]),
        ({"a.0": 1}, [[[5]], [6], ["z"], [[4]], [[]]], [4, 1, 2, 3, 0]),
        ({"a.0": -1}, [[[5, 1]], [6], [[4, 9]]], [0, 2, 1]),
        ({"a.0.0": 1}, [[[[7]]], [[8]], [[3]]], [2, 1, 0]),
        ({"a.0.b": 1}, [[{"b": [9, 1]}], [{"b": 5}], [[{"b": 0}]]], [2, 0, 1]),
        ({"a.1": 1}, [[{"1": 5}], [0, 4]], [1, 0]),
        ({"a.b": 1, "a.c": -1}, [[{"b": 1, "c": 1}, {"b": 1, "c": 9}], {"b": 1, "c": 5}], [0, 1]),
    ],
)
def test_documents_are_sorted(spec: dict[str, Any], values: list[Any], ids: list[int]) -> None:
    assert order(spec, values) == ids


@pytest.mark.parametrize(
    ("path", "array"),
    [("a.0", [{"0": 5}]), ("a.0", [5, {"0": 1}]), ("a.1", [{"1": 5}, {"a": 1}]), ("a.0.0", [[{"0": 5}]])],
)
def test_a_number_that_may_be_an_index_or_a_field_is_refused(path: str, array: list[Any]) -> None:
    with pytest.raises(CommandError, match=r"field: '.' for array: { 0:") as refused:
        parse_sort({path: 1}).key({"a": array})
    assert refused.value.code == 16746


def test_paths_through_two_arrays_are_refused() -> None:
    with pytest.raises(CommandError) as raised:
        parse_sort({"a": 1, "b": 1}).key({"a": [1], "b": [2]})
    assert raised.value.code == 2


def test_natural_order_is_preserved_or_reversed() -> None:
    documents = [{"_id": 2}, {"_id": 1}]
    assert parse_sort({"$natural": 1}).sorted(documents) == documents
    assert parse_sort({"$natural": -1}).sorted(documents) == documents[::-1]
    assert parse_sort({}).sorted(documents) == documents


def test_a_collation_orders_strings() -> None:
    sort = parse_sort({"a": 1}, parse_collation({"locale": "en", "numericOrdering": True}))
    values = ["B", "a", "a10", "a9", "A"]
    assert [d["a"] for d in sort.sorted({"a": v} for v in values)] == ["a", "A", "a9", "a10", "B"]


@pytest.mark.parametrize(
    ("spec", "code"),
    [({"a": 5}, 15975), ({"a": "x"}, 15974), ({"": 1}, 40352), ({"a.": 1}, 40353), ({"a..b": 1}, 15998),
     ({"$a": 1}, 16410), ({"$natural": 2}, 2), ({"$natural": 1, "a": 1}, 2), ({"a": {"$meta": "textScore"}}, 40218)],
)  # fmt: skip
def test_a_bad_sort_is_refused_with_its_code(spec: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_sort(spec)
    assert raised.value.code == code
