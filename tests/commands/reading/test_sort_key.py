"""`{$meta: "sortKey"}`, the values by which a document was sorted, in find, findAndModify and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.query.collation import parse_collation
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.execution.collections import batch

KEY = {"$meta": "sortKey"}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [
            {"_id": 1, "a": 1, "b": "x", "c": [3, 1]}, {"_id": 2, "a": 3, "b": "y", "c": []}, {"_id": 3, "b": "z"},
        ]})  # fmt: skip
        yield server


def find(at: DrivenServer, **options: Any) -> Any:
    return batch(at.run("t", {"find": "c", **options}))


def aggregate(at: DrivenServer, *stages: Any) -> Any:
    return batch(at.run("t", {"aggregate": "c", "pipeline": list(stages), "cursor": {}}))


def test_find_shows_the_values_in_the_whole_document(at: DrivenServer) -> None:
    results = find(at, sort={"a": -1, "b": 1}, projection={"k": KEY})
    assert [(item["_id"], item["k"]) for item in results] == [(2, [3, "y"]), (1, [1, "x"]), (3, [None, "z"])]
    assert results[0] == {"_id": 2, "a": 3, "b": "y", "c": [], "k": [3, "y"]}


@pytest.mark.parametrize("index", [None, {"a": 1, "b": 1}])
def test_find_shows_the_values_with_inclusion_and_exclusion(at: DrivenServer, index: Any) -> None:
    if index is not None:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": index, "name": "i"}]})
    assert find(at, sort={"a": 1}, limit=1, projection={"_id": 1, "k": KEY}) == [{"_id": 3, "k": [None]}]
    assert find(at, sort={"a": 1}, skip=2, projection={"b": 0, "c": 0, "k": KEY}) == [{"_id": 2, "a": 3, "k": [3]}]
    assert find(at, filter={"_id": 1}, sort={"a": 1}, projection={"_id": 1, "a.k": KEY}) == [
        {"_id": 1, "a": {"k": [1]}}
    ]


@pytest.mark.parametrize(("sort", "keys"), [
    ({"c": 1}, [[None], [None], [1]]), ({"c": -1}, [[3], [None], [None]]),
    ({"c": -1, "a": 1}, [[3, 1], [None, None], [None, 3]]), ({"c.0": 1}, [[None], [None], [3]]),
])  # fmt: skip
def test_an_array_shows_the_element_that_the_sort_used(at: DrivenServer, sort: dict[str, int], keys: Any) -> None:
    assert [item["k"] for item in find(at, sort=sort, projection={"_id": 1, "k": KEY})] == keys


def test_a_collation_shows_its_keys(at: DrivenServer) -> None:
    collation = parse_collation({"locale": "en"})
    assert collation is not None
    (first, *_) = find(at, sort={"b": 1}, collation={"locale": "en"}, projection={"k": KEY})
    assert first["k"] == [collation.key("x").decode("latin-1")]


def test_find_without_a_sort_is_refused(at: DrivenServer) -> None:
    for sort in ({}, {"$natural": 1}):
        reply = at.run("t", {"find": "c", "sort": sort, "projection": {"k": KEY}})
        assert isinstance(reply, dict)
        assert (reply["code"], reply["errmsg"]) == (2, "cannot use sortKey $meta projection without a sort")


@pytest.mark.parametrize("options", [{"new": False}, {"new": True}])
def test_find_and_modify_shows_the_values_before_the_change(at: DrivenServer, options: Any) -> None:
    body = {
        "findAndModify": "c",
        "sort": {"a": -1},
        "fields": {"a": 1, "k": KEY},
        "update": {"$set": {"a": 9}},
        **options,
    }
    assert at.must("t", body)["value"] == {"_id": 2, "a": 9 if options["new"] else 3, "k": [3]}


def test_find_and_modify_shows_the_values_of_what_it_removes(at: DrivenServer) -> None:
    body = {"findAndModify": "c", "sort": {"b": -1}, "fields": {"k": KEY, "_id": 1}, "remove": True}
    assert at.must("t", body)["value"] == {"_id": 3, "k": ["z"]}


def test_find_and_modify_has_none_for_what_it_inserts(at: DrivenServer) -> None:
    body = {"findAndModify": "c", "query": {"_id": 8}, "sort": {"b": -1}, "fields": {"k": KEY, "_id": 1}, "new": True}
    assert at.must("t", {**body, "update": {}, "upsert": True})["value"] == {"_id": 8}


@pytest.mark.parametrize("name", ["$addFields", "$set", "$project"])
def test_a_stage_after_a_sort_has_the_values(at: DrivenServer, name: str) -> None:
    results = aggregate(at, {"$sort": {"a": -1}}, {name: {"k": KEY}}, {"$project": {"k": 1}})
    assert results == [{"_id": 2, "k": [3]}, {"_id": 1, "k": [1]}, {"_id": 3, "k": [None]}]


def test_stages_between_may_change_the_fields_of_the_sort(at: DrivenServer) -> None:
    results = aggregate(
        at, {"$sort": {"a": -1, "b": 1}}, {"$limit": 2}, {"$match": {"_id": 1}}, {"$unwind": "$c"},
        {"$set": {"a": 0}}, {"$replaceWith": {"c": "$c"}}, {"$set": {"k": KEY, "n": {"$size": [KEY]}}},
    )  # fmt: skip
    assert results == [{"c": 3, "k": [1, "x"], "n": 2}, {"c": 1, "k": [1, "x"], "n": 2}]


def test_the_last_sort_counts(at: DrivenServer) -> None:
    results = aggregate(
        at, {"$sort": {"a": 1}}, {"$sort": {"b": -1}}, {"$limit": 1}, {"$project": {"_id": 1, "k": KEY}}
    )
    assert results == [{"_id": 3, "k": ["z"]}]


def test_a_pipeline_that_an_index_sorts_has_the_values(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "i"}]})
    results = aggregate(at, {"$match": {"a": {"$gt": 0}}}, {"$sort": {"a": -1}}, {"$project": {"_id": 1, "k": KEY}})
    assert results == [{"_id": 2, "k": [3]}, {"_id": 1, "k": [1]}]


def test_a_view_has_the_values(at: DrivenServer) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$sort": {"a": 1}}]})
    assert batch(at.run("t", {"find": "v", "limit": 1, "projection": {"_id": 1, "k": KEY}})) == [
        {"_id": 3, "k": [None]}
    ]
    shown = batch(at.run("t", {"find": "v", "sort": {"b": -1}, "limit": 1, "projection": {"_id": 1, "k": KEY}}))
    assert shown == [{"_id": 3, "k": ["z"]}]


@pytest.mark.parametrize("stages", [
    [{"$set": {"k": KEY}}], [{"$project": {"k": KEY}}],
    [{"$sort": {"a": 1}}, {"$group": {"_id": "$a"}}, {"$set": {"k": KEY}}],
    [{"$sort": {"a": 1}}, {"$group": {"_id": "$a", "k": {"$push": KEY}}}],
    [{"$sort": {"a": 1}}, {"$facet": {"f": [{"$set": {"k": KEY}}]}}], [{"$set": {"k": {"$add": [KEY, 1]}}}],
    [{"$sort": {"a": 1}}, {"$sample": {"size": 1}}, {"$set": {"k": KEY}}],
])  # fmt: skip
def test_a_stage_that_has_no_sorted_documents_is_refused(at: DrivenServer, stages: Any) -> None:
    reply = at.run("t", {"aggregate": "c", "pipeline": stages, "cursor": {}})
    assert isinstance(reply, dict) and reply["code"] == 40218
    assert "query requires sortKey metadata, but it is not available" in reply["errmsg"]


def test_a_find_shows_the_record_and_the_key_of_the_index() -> None:
    with DrivenServer() as server:
        server.must("d", {"insert": "c", "documents": [{"_id": number, "a": number % 3} for number in range(6)]})
        find = {"find": "c", "filter": {"a": 2}, "projection": {"r": {"$meta": "recordId"}, "k": {"$meta": "indexKey"}}}
        assert server.must("d", find)["cursor"]["firstBatch"] == [
            {"_id": 2, "a": 2, "r": 3},
            {"_id": 5, "a": 2, "r": 6},
        ]
        server.must("d", {"createIndexes": "c", "indexes": [{"key": {"a": -1}, "name": "a"}]})
        found = server.must("d", find | {"sort": {"_id": -1}, "limit": 1})["cursor"]["firstBatch"]
        assert found == [{"_id": 5, "a": 2, "r": 6, "k": {"a": 2}}]
        shown = {"find": "c", "filter": {"_id": 1}, "projection": {"_id": 0, "k": {"$meta": "indexKey"}, "a": 1}}
        assert server.must("d", shown | {"showRecordId": True})["cursor"]["firstBatch"] == [
            {"a": 1, "k": {"_id": 1}, "$recordId": 2}
        ]
