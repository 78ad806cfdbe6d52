"""`min`, `max`, `returnKey` and `showRecordId` of a find; the plan cache's commands and index filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.execution.collections import batch

SORT_KEY = {"$meta": "sortKey"}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        made = [{"_id": n, "a": n // 2, "b": n % 2, "t": [n, n + 1]} for n in range(10)]
        server.must("t", {"insert": "c", "documents": made})
        for key in ({"a": 1, "b": -1}, {"b": 1}, {"t": 1}):
            server.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "_".join(key)}]})
        yield server


def ids(at: DrivenServer, **find: Any) -> Any:
    answer = batch(at.run("t", {"find": "c", **find}))
    return [item["_id"] for item in answer] if type(answer) is list else answer


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        ({"min": {"a": 3, "b": 1}, "hint": "a_b"}, [7, 6, 9, 8]),
        ({"max": {"a": 1, "b": 0}, "hint": "a_b"}, [1, 0, 3]),
        ({"min": {"a": 1, "b": 1}, "max": {"a": 2, "b": 1}, "hint": {"a": 1, "b": -1}}, [3, 2]),
        ({"min": {"a": 1, "b": 1}, "max": {"a": 3, "b": 1}, "hint": "a_b", "sort": {"a": -1, "b": 1}}, [4, 5, 2, 3]),
        ({"min": {"a": 1, "b": 1}, "max": {"a": 3, "b": 1}, "hint": "a_b", "filter": {"b": 0}}, [2, 4]),
        ({"min": {"t": 9}, "hint": "t"}, [8, 9]),
        ({"min": {"_id": 7}, "hint": {"_id": 1}}, [7, 8, 9]),
        ({"max": {"_id": 2}, "hint": {"_id": 1}}, [0, 1]),
        ({"min": {"_id": 3}, "max": {"_id": 5}, "hint": {"_id": 1}, "filter": {"_id": 4}}, [4]),
        ({"min": {"a": 3, "b": 1}}, 51173),
        ({"min": {"a": 3}, "hint": "a_b"}, 51174),
        ({"min": {"a": 3, "b": 1}, "max": {"a": 3, "b": 1}, "hint": "a_b"}, 51175),
        ({"min": {"a": 3, "b": 1}, "max": {"b": 3, "a": 1}, "hint": "a_b"}, 51176),
        ({"min": {"a": 3}, "hint": {"$natural": 1}}, 51173),
    ],
)  # fmt: skip
def test_min_and_max_bound_the_keys_of_the_hinted_index(at: DrivenServer, find: dict[str, Any], expected: Any) -> None:
    assert ids(at, **find) == expected


def test_explain_shows_the_ends_of_the_range(at: DrivenServer) -> None:
    find = {"find": "c", "min": {"a": 1, "b": 1}, "max": {"a": 2, "b": 1}, "hint": "a_b"}
    reply = at.must("t", {"explain": find, "verbosity": "executionStats"})
    bounds = reply["queryPlanner"]["winningPlan"]["inputStage"]["indexBounds"]
    assert bounds["startKey"] == {"a": 1, "b": 1} and bounds["endKey"] == {"a": 2, "b": 1}
    assert reply["executionStats"]["totalKeysExamined"] == 2


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        ({"filter": {"_id": 3}, "returnKey": True}, [{"_id": 3}]),
        ({"filter": {"a": 1}, "returnKey": True}, [{"a": 1, "b": 1}, {"a": 1, "b": 0}]),
        ({"filter": {"t": 1}, "returnKey": True}, [{"t": 1}, {"t": 1}]),
        ({"filter": {"z": None}, "limit": 1, "returnKey": True}, [{}]),
        ({"filter": {"a": 1}, "returnKey": True, "sort": {"_id": -1}}, [{"a": 1, "b": 1}, {"a": 1, "b": 0}]),
        ({"filter": {"_id": 3}, "showRecordId": True, "projection": {"_id": 1}}, [{"_id": 3, "$recordId": 4}]),
        ({"sort": {"$natural": -1}, "limit": 1, "showRecordId": True, "projection": {"_id": 1}},
         [{"_id": 9, "$recordId": 10}]),
        ({"filter": {"b": 0}, "sort": {"a": -1}, "limit": 1, "showRecordId": True, "projection": {"a": 1}},
         [{"_id": 8, "a": 4, "$recordId": 9}]),
        ({"filter": {"a": 1}, "returnKey": True, "projection": {"a": 0}}, [{"a": 1, "b": 1}, {"a": 1, "b": 0}]),
        ({"filter": {"a": 1}, "returnKey": True, "sort": {"_id": -1}, "projection": {"k.d": SORT_KEY, "e": SORT_KEY}},
         [{"a": 1, "b": 1, "k": {"d": [3]}, "e": [3]}, {"a": 1, "b": 0, "k": {"d": [2]}, "e": [2]}]),
        ({"filter": {"a": 0}, "returnKey": True, "showRecordId": True},
         [{"a": 0, "b": 1}, {"a": 0, "b": 0}]),
    ],
)  # fmt: skip
def test_keys_and_records_are_shown(at: DrivenServer, find: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert batch(at.must("t", {"find": "c", **find})) == expected


def test_a_view_has_no_keys(at: DrivenServer) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    for option in ({"returnKey": True}, {"showRecordId": True}, {"min": {"a": 1}}, {"max": {"a": 1}}):
        assert batch(at.run("t", {"find": "v", **option})) == 168


def plans(at: DrivenServer) -> Any:
    return batch(at.must("t", {"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}}))


def used(at: DrivenServer, find: dict[str, Any]) -> tuple[str | None, bool]:
    plan = at.must("t", {"explain": {"find": "c", **find}, "verbosity": "queryPlanner"})["queryPlanner"]
    return plan["winningPlan"]["inputStage"].get("indexName"), plan["indexFilterSet"]


def test_the_plan_cache_is_shown_and_cleared(at: DrivenServer) -> None:
    for value in (1, 2, 3):
        ids(at, filter={"a": value, "b": 1})
    (entry,) = plans(at)
    assert entry["isActive"] and entry["createdFromQuery"]["query"] == {"a": 2, "b": 1}
    assert entry["cachedPlan"]["inputStage"]["indexName"] == "a_b" and len(entry["candidatePlanScores"]) == 2
    plan = at.must("t", {"explain": {"find": "c", "filter": {"a": 7, "b": 0}}, "verbosity": "queryPlanner"})
    assert plan["queryPlanner"]["planCacheKey"] == entry["planCacheKey"]
    ids(at, filter={"a": 1, "b": {"$gt": 0}})
    at.must("t", {"planCacheClear": "c", "query": {"a": 5, "b": 5}})
    assert [item["createdFromQuery"]["query"] for item in plans(at)] == [{"a": 1, "b": {"$gt": 0}}]
    at.must("t", {"planCacheClear": "c"})
    assert plans(at) == []
    at.must("t", {"planCacheClear": "nowhere"})
    assert batch(at.run("t", {"planCacheClear": "c", "sort": {"a": 1}})) == 2


def test_an_index_filter_is_stronger_than_a_hint(at: DrivenServer) -> None:
    query = {"a": 1, "b": 1}
    assert used(at, {"filter": query}) == ("a_b", False)
    at.must("t", {"planCacheSetFilter": "c", "query": {"a": 0, "b": 0}, "indexes": ["b"]})
    assert used(at, {"filter": query}) == ("b", True)
    assert used(at, {"filter": query, "hint": "a_b"}) == ("b", True)
    assert used(at, {"filter": query, "sort": {"_id": 1, "a": 1}})[1] is False
    assert ids(at, filter=query) == [3]
    (listed,) = at.must("t", {"planCacheListFilters": "c"})["filters"]
    assert listed == {"query": {"a": 0, "b": 0}, "sort": {}, "projection": {}, "indexes": ["b"]}
    at.must("t", {"planCacheClearFilters": "c", "query": {"a": 0, "b": 0}})
    assert used(at, {"filter": query}) == ("a_b", False)


@pytest.mark.parametrize(
    "body",
    [
        {"planCacheSetFilter": "nowhere", "query": {"a": 1}, "indexes": ["b"]},
        {"planCacheSetFilter": "c", "indexes": ["b"]},
        {"planCacheSetFilter": "c", "query": {"a": 1}},
        {"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": []},
        {"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": [1]},
        {"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": [{}]},
    ],
)
def test_a_bad_filter_is_refused(at: DrivenServer, body: dict[str, Any]) -> None:
    assert batch(at.run("t", body)) == 2


def test_there_are_no_query_settings(at: DrivenServer) -> None:
    answer = at.must("admin", {"aggregate": 1, "pipeline": [{"$querySettings": {}}], "cursor": {}})
    assert batch(answer) == []
    assert at.run("admin", {"removeQuerySettings": "0" * 64})["code"] == 7746701
    assert batch(at.run("admin", {"setQuerySettings": "0" * 64, "settings": {}})) == 7746604


@pytest.mark.parametrize("of_index", [None, {"locale": "en", "strength": 2}])
def test_values_without_strings_bound_an_index_of_another_collation(of_index: dict[str, Any] | None) -> None:
    other = {"locale": "de"} if of_index is None else {"locale": "simple"}
    with DrivenServer(clock=FakeClock()) as at:
        documents = [{"_id": number, "a": value} for number, value in enumerate([3, None, 1, "b", "A", 2])]
        at.must("t", {"insert": "c", "documents": documents})
        index = {"key": {"a": 1}, "name": "a"} | ({} if of_index is None else {"collation": of_index})
        at.must("t", {"createIndexes": "c", "indexes": [index]})
        asked = {"hint": "a", "collation": other}
        assert ids(at, min={"a": 2}, max={"a": 4}, **asked) == [5, 0]
        assert ids(at, max={"a": True}, min={"a": 3}, sort={"a": -1}, **asked) == [3, 4, 0]  # b before A and before 3
        for value in ("s", ["s"], {"b": 1}):
            assert ids(at, min={"a": value}, **asked) == ids(at, max={"a": value}, **asked) == 51174
