"""Codes of errors of odd arguments, family by family: NaN, NUL in names, duplicates, literals where none may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.testing.driven import DrivenServer

DOCUMENT: dict[str, Any] = {"_id": 1, "a": 1, "list": [1, 2, 3], "o": {"x": 1}}
LONG = ".".join("a" * 201)
GRAPH = {"from": "c", "startWith": 0, "connectFromField": "a", "connectToField": "b", "as": "o"}


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [DOCUMENT]})
        yield server


def code(server: DrivenServer, command: dict[str, Any]) -> int:
    """The code of a command's error, or of its first write error; 0 where it succeeds."""
    reply = server.run("t", command)
    assert isinstance(reply, dict)
    first = reply.get("writeErrors", [reply])[0]
    return int(first.get("code", 0))


def aggregate(stage: dict[str, Any]) -> dict[str, Any]:
    return {"aggregate": "c", "pipeline": [stage], "cursor": {}}


def project(expression: Any) -> dict[str, Any]:
    return aggregate({"$project": {"r": expression}})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        *(({operator: [1, place]}, 31109) for operator in ("$round", "$trunc") for place in (math.nan, math.inf)),
        ({"$round": [1, Decimal128("NaN")]}, 51082),
        ({"$round": [1, 10.5]}, 51082),
        ({"$round": [1, "x"]}, 16004),
        ({"$round": [1, 101]}, 51083),
        *(({"$substrBytes": ["hello", start, 3]}, 31109) for start in (math.nan, math.inf, -math.inf)),
        ({"$lastN": {"n": math.nan, "input": [1]}}, 31109),
        ({"$setField": {"field": "a\0b", "input": {}, "value": 1}}, 9534700),
        ({"$unsetField": {"field": {"$const": "a\0b"}, "input": {}}}, 9534700),
        ({"$atan2": ["x", 1]}, 51044),
        ({"$atan2": [1, "x"]}, 51045),
        ({"$atan2": [None, "x"]}, 0),
        ({"$minN": 5}, 5787900),
    ],
    ids=str,
)
def test_expressions_refuse_odd_arguments(server: DrivenServer, expression: Any, expected: int) -> None:
    assert code(server, project(expression)) == expected


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        *(({"$unset": path}, 15998) for path in (".a", "a..b")),
        ({"$unset": "a\0b"}, 9527900),
        ({"$unset": ["a\0b", "$a"]}, 9527900),
        ({"$unset": LONG}, 15),
        ({"$unset": ["a", "a"]}, 31250),
        ({"$unset": ["a", "a.b"]}, 31249),
        ({"$sort": {LONG: 1}}, 15),
        ({"$sort": {"$natural": 1}}, 16410),
        *(({"$group": {"_id": {"a": value}}}, 17390) for value in (1, Int64(1), 1.5, Decimal128("1"), True, False)),
        ({"$group": {"_id": {"b": {"a": 1}}}}, 0),
        ({"$group": {"_id": {"a.b": "$a"}}}, 16412),
        *(({"$facet": {"a": [stage]}}, 40171) for stage in (1, None, "x")),
        *(({"$graphLookup": {**GRAPH, "from": source}}, 9) for source in (-1, None, {})),
        ({"$graphLookup": {name: value for name, value in GRAPH.items() if name != "from"}}, 9),
        ({"$graphLookup": {**GRAPH, "as": 0}}, 40103),
    ],
    ids=str,
)
def test_stages_refuse_odd_arguments(server: DrivenServer, stage: Any, expected: int) -> None:
    assert code(server, aggregate(stage)) == expected


@pytest.mark.parametrize(
    ("projection", "expected"),
    [
        *(({"list.$": value}, 31308) for value in ("x", None, [1])),
        ({"list.$": {"a": 1}}, 31271),
        ({".$": 1}, 5392900),
        ({"list": {"$elemMatch": {"$gte": 2}, "$slice": 1}}, 16410),
        ({"list": {"$elemMatch": {"$gte": 2}, "extra": 0}}, 16410),
        ({"list": {"$elemMatch": 5}}, 31274),
        ({"o.x": {"$elemMatch": {"$gt": 0}}}, 31275),
    ],
    ids=str,
)
def test_projections_of_a_find_refuse_odd_arguments(server: DrivenServer, projection: Any, expected: int) -> None:
    assert code(server, {"find": "c", "filter": {"list": {"$gte": 2}}, "projection": projection}) == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": [1, 1.0]}, 9),
        ({"enum": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, 9),
        ({"type": ["string", "string"]}, 9),
        ({"bsonType": ["int", "int"]}, 9),
        ({"additionalProperties": False, "properties": 5}, 14),
        ({"additionalProperties": False, "patternProperties": [1]}, 14),
        ({"exclusiveMinimum": True}, 9),
        ({"minItems": None}, 14),
        ({"maxLength": 3.0}, 0),
    ],
    ids=str,
)
def test_schemas_refuse_odd_keywords(server: DrivenServer, schema: Any, expected: int) -> None:
    assert code(server, {"find": "c", "filter": {"$jsonSchema": schema}}) == expected


@pytest.mark.parametrize("target", ["b\0", "b\0c", "\0b"])
def test_a_field_is_not_renamed_to_a_name_with_a_nul(server: DrivenServer, target: str) -> None:
    assert code(server, {"update": "c", "updates": [{"q": {}, "u": {"$rename": {"a": target}}}]}) == 9867600
