"""createIndexes: the keys and options that it takes, and the codes of what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64, MinKey, Regex

from headrace.testing.driven import DrivenServer

A = {"a": 1}
WILD = {"$**": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        yield server


def code(server: DrivenServer, *specs: dict[str, Any]) -> int:
    """The code of the last request to create an index, in a new collection; 0 where it succeeds."""
    server.run("t", {"drop": "c"})
    replies = [server.run("t", {"createIndexes": "c", "indexes": [spec]}) for spec in specs]
    last = replies[-1]
    return int(last.get("code", 0))


@pytest.mark.parametrize("value", [1, -1, 2, Int64(1), 0.5, -1.9, math.inf, Decimal128("-1"), "hashed"], ids=str)
def test_a_direction_is_any_number_but_zero(server: DrivenServer, value: Any) -> None:
    assert code(server, {"key": {"a": value}, "name": "n"}) == 0


def test_a_decimal_gives_the_direction_of_a_key(server: DrivenServer) -> None:
    assert code(server, {"key": {"a": Decimal128("-1")}, "name": "n"}) == 0
    server.must("t", {"insert": "c", "documents": [{"a": 1}, {"a": 3}, {"a": 2}]})
    find = {"find": "c", "hint": "n", "filter": {"a": {"$gt": 0}}, "projection": {"_id": 0}}
    assert server.must("t", find)["cursor"]["firstBatch"] == [{"a": 3}, {"a": 2}, {"a": 1}]


@pytest.mark.parametrize(
    "value",
    [
        0,
        -0.0,
        math.nan,
        Decimal128("0"),
        Decimal128("NaN"),
        True,
        None,
        [],
        {},
        "abc",
        Regex("a"),
        MinKey(),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["a", "$**", "a.$**"])
def test_no_other_value_is_a_direction(server: DrivenServer, path: str, value: Any) -> None:
    assert code(server, {"key": {path: value}, "name": "n"}) == 67


@pytest.mark.parametrize(
    "path", ["", "a.", ".a", "a..b", "$a", "a.$b", "$id", "a.$**.$**", "$**.$**", "$**.a", "a.$**.b"]
)
def test_a_path_that_no_field_has(server: DrivenServer, path: str) -> None:
    assert code(server, {"key": {path: 1}, "name": "n"}) == 67


OPTIONS: list[tuple[dict[str, Any], int]] = [
    *(({"key": A, "v": value}, 2) for value in (1.5, math.nan, math.inf, Decimal128("NaN"), Int64(2**40), 1e300)),
    *(({"key": A, "v": value}, 67) for value in (0, 3, 5.0, Decimal128("5"))),
    *(({"key": A, "v": value}, 0) for value in (1, 2.0, Decimal128("2"), Int64(2))),
    *(({"key": A, "hidden": value}, 14) for value in (1, 0.0, None, "x", [])),
    *(({"key": A, name: None}, 14) for name in ("v", "name", "collation", "partialFilterExpression")),
    ({"key": WILD, "wildcardProjection": None}, 14),
    ({"key": None}, 14),
    ({}, 9),
    ({"key": A, "expireAfterSeconds": None}, 67),
    ({"key": A, "collation": {}}, 2),
    ({"key": {"_id": -1}}, 2),
    ({"key": {"_id": 1.0}}, 0),
    ({"key": {"_id": 2}}, 0),
    ({"key": {"_id": math.inf}}, 0),
    ({"key": {"a": "wildcard"}}, 7246202),
    ({"key": {"$**": "wildcard"}}, 67),
    ({"key": WILD, "v": 1}, 67),
    ({"key": {**WILD, **A}}, 67),
    ({"key": {**WILD, **A}, "wildcardProjection": {"b": 0}}, 7246209),
    ({"key": {**WILD, **A}, "wildcardProjection": {"a": 0}}, 0),
    ({"key": WILD, "wildcardProjection": {"a": 1, "b": 0}}, 31254),
    ({"key": WILD, "wildcardProjection": {"a": 0, "b": 1}}, 31253),
    ({"key": WILD, "wildcardProjection": {"_id": 0, "a": 1}}, 0),
    *(({"key": WILD, "wildcardProjection": {"a": value}}, 51271) for value in ("1", [1], None, {"$slice": 1})),
    ({"key": {"a": "text"}, "default_language": None}, 67),
    *(({"key": A, "partialFilterExpression": {name: {}}}, 224) for name in ("$expr", "$jsonSchema")),
    *(({"key": A, "partialFilterExpression": {"$and": [{name: "x"}]}}, 2) for name in ("$text", "$where")),
    *(({"key": {"a": "2d"}, name: None}, 0) for name in ("bits", "min", "max")),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "expected"), OPTIONS, ids=str)
def test_the_options_of_an_index(server: DrivenServer, spec: dict[str, Any], expected: int) -> None:
    assert code(server, {"name": "n", **spec}) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"key": A, "name": "n"}, {"key": A, "name": "n"}, 0),
        ({"key": A, "name": "n"}, {"key": A, "name": "m"}, 85),
        ({"key": A, "name": "n"}, {"key": {"b": 1}, "name": "n"}, 86),
        ({"key": A, "name": "n"}, {"key": A, "name": "n", "unique": True}, 86),
        ({"key": A, "name": "n"}, {"key": A, "name": "n", "hidden": True}, 85),
        ({"key": A, "name": "n"}, {"key": A, "name": "n", "expireAfterSeconds": 5}, 85),
        ({"key": {"a": "text"}, "name": "n"}, {"key": {"b": "text"}, "name": "n"}, 85),
        ({"key": {"a": "text"}, "name": "n"}, {"key": {"b": "text"}, "name": "m"}, 85),
    ],
    ids=str,
)
def test_an_index_like_another(
    server: DrivenServer, first: dict[str, Any], second: dict[str, Any], expected: int
) -> None:
    assert code(server, first, second) == expected
