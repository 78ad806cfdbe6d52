"""Projections of finds and of `$project`: what is kept, dropped, computed, and refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.query.projection import parse_projection

NESTED = {"_id": 1, "x": 9, "a": [1, {"b": 2, "c": 3}, [{"b": 4}, 5]], "s": {"b": 6}}


@pytest.mark.parametrize(
    ("spec", "document", "result"),
    [
        ({}, {"_id": 1, "a": 2}, {"_id": 1, "a": 2}),
        ({"b": 1, "a": 1}, {"_id": 1, "a": 2, "b": 3, "c": 4}, {"_id": 1, "a": 2, "b": 3}),
        ({"a": True, "_id": 0.0}, {"_id": 1, "a": 2, "b": 3}, {"a": 2}),
        ({"a": 0}, {"_id": 1, "a": 2, "b": 3}, {"_id": 1, "b": 3}),
        ({"_id": 0}, {"_id": 1, "a": 2}, {"a": 2}),
        ({"_id": 1}, {"_id": 1, "a": 2}, {"_id": 1}),
        ({"a.b": 1}, NESTED, {"_id": 1, "a": [{"b": 2}, [{"b": 4}]]}),
        ({"a.b": 0}, NESTED, {"_id": 1, "x": 9, "a": [1, {"c": 3}, [{}, 5]], "s": {"b": 6}}),
        ({"x.b": 1}, NESTED, {"_id": 1}),
        ({"s": {"b": 1}}, NESTED, {"_id": 1, "s": {"b": 6}}),
        ({"x": "$s.b"}, NESTED, {"_id": 1, "x": 6}),
        ({"y": "$nope", "x": 1}, NESTED, {"_id": 1, "x": 9}),
        ({"x.y": "$s.b"}, NESTED, {"_id": 1, "x": {"y": 6}}),
        ({"a.z": "$x"}, {"_id": 1, "x": 9, "a": [1, {"b": 2}]}, {"_id": 1, "a": [{"z": 9}, {"z": 9}]}),
        (
            {"a.z": "$x", "a.b": 1},
            {"_id": 1, "x": 9, "a": [1, {"b": 2}]},
            {"_id": 1, "a": [{"z": 9}, {"b": 2, "z": 9}]},
        ),
        ({"a": {"$slice": 2}}, {"_id": 1, "a": [1, 2, 3], "b": 4}, {"_id": 1, "a": [1, 2], "b": 4}),
        ({"a": {"$slice": -2}, "b": 1}, {"_id": 1, "a": [1, 2, 3], "b": 4, "c": 5}, {"_id": 1, "a": [2, 3], "b": 4}),
        ({"a": {"$slice": [1, 1]}, "c": 0}, {"_id": 1, "a": [1, 2, 3], "c": 5}, {"_id": 1, "a": [2]}),
        ({"a": {"$slice": [-9, 2]}}, {"_id": 1, "a": [1, 2, 3]}, {"_id": 1, "a": [1, 2]}),
        ({"a.b": {"$slice": 1}}, {"_id": 1, "a": [{"b": [1, 2]}, 3]}, {"_id": 1, "a": [{"b": [1]}, 3]}),
        ({"a": {"$elemMatch": {"$gt": 1}}}, {"_id": 1, "a": [1, 2, 3], "b": 1}, {"_id": 1, "a": [2]}),
        ({"a": {"$elemMatch": {"$gt": 5}}}, {"_id": 1, "a": [1]}, {"_id": 1}),
        (
            {"a": {"$elemMatch": {"b": 2}}, "x": 1},
            {"_id": 1, "a": [{"b": 2}], "x": 3},
            {"_id": 1, "x": 3, "a": [{"b": 2}]},
        ),
    ],
)
def test_find_projection(spec: dict[str, Any], document: dict[str, Any], result: dict[str, Any]) -> None:
    before = repr(document)
    got = parse_projection(spec, kind="find")(document)
    assert (got, list(got)) == (result, list(result))
    assert repr(document) == before


@pytest.mark.parametrize(
    ("criteria", "spec", "document", "result"),
    [
        ({"a": {"$gt": 1}}, {"a.$": 1}, {"_id": 1, "a": [1, 2, 3]}, {"_id": 1, "a": [2]}),
        ({"a.b": 2}, {"a.$": 1}, {"_id": 1, "a": [{"b": 1}, {"b": 2}]}, {"_id": 1, "a": [{"b": 2}]}),
        ({"a": 1}, {"a.$": 1}, {"_id": 1, "a": 1}, {"_id": 1, "a": 1}),
        ({"s.a": 2}, {"s.a.$": 1}, {"_id": 1, "s": {"a": [1, 2], "b": 1}}, {"_id": 1, "s": {"a": [2]}}),
        ({}, {"g.$": 1}, {"_id": 1, "x": [1]}, {"_id": 1}),
        ({"x": 1}, {"a.b.c.$": 1}, {"x": [1], "a": [{"b": [[{"c": 1, "d": 2}]]}]}, {"a": [{"b": [[{"c": 1}]]}]}),
        ({"x.y": 1}, {"a.b.$": 1}, {"x": {"y": [0, 1]}, "a": [{"b": [1]}, {"b": [4]}]}, {"a": [{"b": [4]}]}),
        ({"$and": [{"a": 3}, {"a": 2}, {"a": 1}]}, {"b.$": 1}, {"a": [1, 2, 3], "b": [4, 5, 6]}, {"b": [4]}),
        ({"a": {"$in": [3, 2]}}, {"b.$": 1}, {"a": [1, 2, 3], "b": [4, 5, 6]}, {"b": [5]}),
        ({"$or": [{"a": 3}, {"a": 2}]}, {"b.$": 1}, {"a": [1, 2, 3], "b": [4, 5, 6]}, {"b": [5]}),
        ({"a": {"$elemMatch": {"$elemMatch": {"$eq": 3}}}}, {"b.$": 1}, {"a": [[1], [3]], "b": [5, 7]}, {"b": [7]}),
        ({"a": 1}, {"b": {"$slice": 1}, "a.$": 1}, {"a": [1, 2], "b": [3, 4]}, {"a": [1], "b": [3]}),
    ],
)
def test_the_positional_projection_gives_the_element_that_matched(
    criteria: dict[str, Any], spec: dict[str, Any], document: dict[str, Any], result: dict[str, Any]
) -> None:
    assert parse_projection(spec, kind="find", predicate=parse_filter(criteria))(document) == result


@pytest.mark.parametrize(
    ("kind", "spec", "code"),
    [
        ("find", {"a": 1, "b": 0}, 31254),
        ("find", {"a": 0, "b": 1}, 31253),
        ("find", {"a": 0, "b": "$c"}, 31310),
        ("find", {"a": 1, "a.b": 1}, 31249),
        ("find", {"a.b": 1, "a": 1}, 31250),
        ("find", {"a": {"$slice": 1}, "a.b": 1}, 31249),
        ("find", {"a": {}}, 51270),
        ("find", {"a.$": 0}, 31395),
        ("find", {"a.$": 1, "b": 0}, 31254),
        ("find", {"a.$": 1, "b.$": 1}, 31276),
        ("find", {"a.$": 1, "b": {"$elemMatch": {"c": 1}}}, 31255),
        ("find", {"a.$": 1, "b.d": {"$elemMatch": {"c": 1}}}, 31255),
        ("find", {"b": {"$elemMatch": {"c": 1}}, "a.$": 1}, 31256),
        ("find", {"a.$": {"$slice": 1}}, 31271),
        ("find", {"b": {"a.$": 1}}, 31271),
        ("find", {"b": 0, "a.$": 1}, 31395),
        ("find", {"a.$": False}, 31395),
        ("find", {"a.$.b": 1}, 31394),
        ("find", {".$": 1}, 5392900),
        ("find", {"a.$": 1, "a": 1}, 31250),
        ("find", {"a.$": 1, "a.b": 1}, 31249),
        ("find", {"a.$": "x"}, 31308),
        ("find", {"a.$": None}, 31308),
        ("find", {"a": {"$elemMatch": 1}}, 31274),
        ("find", {"a.b": {"$elemMatch": {"c": 1}}}, 31275),
        ("find", {"a": {"$slice": "x"}}, 28667),
        ("find", {"a": {"$slice": [1, -1]}}, 28667),
        ("find", {"a..b": 1}, 15998),
        ("find", {"a.": 1}, 40353),
        ("find", {"$a": 1}, 16410),
        ("find", {"a": {"$meta": "textScore"}}, 40218),
        ("find", {"a": {"$meta": "nope"}}, 17308),
        ("aggregate", {}, 51272),
        ("aggregate", {"a.$": 1}, 31324),
    ],
)
def test_a_bad_projection_is_refused_with_its_code(
    kind: Literal["find", "aggregate"], spec: dict[str, Any], code: int
) -> None:
    with pytest.raises(CommandError) as raised:
        parse_projection(spec, kind=kind)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("criteria", "document", "code"),
    [
        ({}, {"a": [1]}, 51246),
        ({"b": 1}, {"a": [1], "b": 1}, 51246),
        ({"b": [4, 5]}, {"a": [1], "b": [4, 5]}, 51246),
        ({"$or": [{"a": 1}, {"b": 5}]}, {"a": [1], "b": [5]}, 51246),
        ({"$or": [{"a": {"$gt": 1}}, {"a": 1}]}, {"a": [1]}, 51246),
        ({"$nor": [{"a": -1}]}, {"a": [1]}, 51246),
        ({"a": {"$not": {"$elemMatch": {"$eq": 100}}}}, {"a": [1]}, 51246),
        ({"b": 3}, {"a": [1], "b": [1, 3]}, 51247),
    ],
)
def test_a_positional_projection_needs_an_element_that_matched(
    criteria: dict[str, Any], document: dict[str, Any], code: int
) -> None:
    projection = parse_projection({"a.$": 1}, kind="find", predicate=parse_filter(criteria))
    with pytest.raises(CommandError) as raised:
        projection(document)
    assert raised.value.code == code
