"""Commands that MongoDB reads by hand: names of other types, fields of any type, fields that it does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.testing.driven import DrivenServer

OTHERS: list[Any] = [
    1, Int64(1), 1.5, math.nan, Decimal128("1"), True, False, Binary(b"x"), ObjectId(), DatetimeMS(0), Regex("x"),
    Timestamp(1, 1), Code("x"), MinKey(), MaxKey(),
]  # fmt: skip
"""Neither a string nor a document, an array or null."""
PLANNING = ("planCacheClear", "planCacheClearFilters", "planCacheListFilters", "planCacheSetFilter")
FILTER = {"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": [{"a": 1}]}


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        server.must("t", {"create": "v", "viewOn": "c"})
        yield server


def code(server: DrivenServer, body: dict[str, Any]) -> int:
    reply = server.run("t", body)
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


@pytest.mark.parametrize("name", [*PLANNING, "validate", "reIndex"])
def test_a_name_of_another_type_is_an_invalid_namespace(server: DrivenServer, name: str) -> None:
    for value in (*OTHERS, None, {}, [], "", "a\0b"):
        assert code(server, {**FILTER, name: value} if name == "planCacheSetFilter" else {name: value}) == 73, value


@pytest.mark.parametrize("name", PLANNING)
def test_views_are_refused_and_unknown_fields_are_not(server: DrivenServer, name: str) -> None:
    more = {"query": {"a": 1}, "indexes": [{"a": 1}]}
    assert code(server, {name: "v", **more}) == 166
    assert code(server, {name: "c", **more, "foo": 1, "Query": 1}) == 0
    for comment in (*OTHERS, None, {}, [1], "x"):
        assert code(server, {name: "c", **more, "comment": comment}) == 0
    assert code(server, {name: "missing", **more}) == (2 if name == "planCacheSetFilter" else 0)


@pytest.mark.parametrize("field", ["query", "sort", "projection", "collation", "indexes"])
def test_the_parts_of_a_filter_have_their_types(server: DrivenServer, field: str) -> None:
    for value in (*OTHERS, None, "x"):
        assert code(server, {**FILTER, field: value}) == 2, value
    assert code(server, {**FILTER, field: []}) == (2 if field in ("collation", "indexes") else 0)
    assert code(server, {**FILTER, field: {}}) == (2 if field == "indexes" else 0)


@pytest.mark.parametrize("name", ["planCacheClear", "planCacheClearFilters"])
def test_a_shape_is_looked_at_where_there_is_a_collection(server: DrivenServer, name: str) -> None:
    for field in ("query", "sort", "projection", "collation"):
        for value in (*OTHERS, None, "x", {}, [1, 2]):
            assert code(server, {name: "missing", "query": {"a": 1}, field: value}) == 0
    assert code(server, {name: "c", "query": 1}) == code(server, {name: "c", "sort": {"a": 1}}) == 2


@pytest.mark.parametrize(
    "option", ["full", "background", "metadata", "checkBSONConformance", "enforceFastCount", "fixMultikey"]
)
def test_an_option_of_validate_has_any_type(server: DrivenServer, option: str) -> None:
    for value in (*OTHERS, None, {}, [], "x"):
        assert code(server, {"validate": "c", option: value}) == 0, value


def test_what_is_no_number_counts_as_true(server: DrivenServer) -> None:
    for value in ("x", "", {}, [], ObjectId(), 1, math.nan, True):
        assert code(server, {"validate": "c", "metadata": True, "full": value}) == 72, value
        assert code(server, {"validate": "c", "repair": value}) == 72
    for value in (0, -0.0, False, None, Decimal128("0")):
        assert code(server, {"validate": "c", "metadata": True, "full": value}) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": True, "full": True}, {"metadata": True, "checkBSONConformance": True},
        {"metadata": True, "background": True}, {"checkBSONConformance": True, "repair": True},
        {"background": True, "full": True},
    ],
)  # fmt: skip
def test_options_of_validate_that_do_not_go_together(server: DrivenServer, options: dict[str, Any]) -> None:
    assert code(server, {"validate": "c", **options}) == 72


def test_a_standalone_does_not_validate_in_the_background() -> None:
    with DrivenServer(oplog=False) as standalone:
        standalone.must("t", {"insert": "c", "documents": [{}]})
        assert code(standalone, {"validate": "c", "background": "x"}) == 115
        assert code(standalone, {"validate": "c", "background": 0}) == 0
