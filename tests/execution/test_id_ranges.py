"""The keys of `_id` agree with the documents: counts, and queries for nothing but the `_id`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

import headrace
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.order import hash_key


def first_batch(at: DrivenServer, command: dict[str, Any]) -> list[dict[str, Any]]:
    """The first batch."""
    batch: list[dict[str, Any]] = at.must("t", command)["cursor"]["firstBatch"]
    return batch


ids = (
    st.integers(-3, 3)
    | st.sampled_from([
        0.0, 1.5, -0.0, float("inf"), float("nan"), Int64(2), Decimal128("1.5"), Decimal128("7"), None, True, False,
        "", "a", "a\0", "a\0b", "ab", "b", b"", b"ab", {}, {"a": 1}, {"a": 1, "b": None}, MinKey(), MaxKey(),
        ObjectId("0" * 24), ObjectId("5" * 24), ObjectId("f" * 24), Timestamp(0, 1), Timestamp(5, 1),
        datetime(1960, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC),
    ])
)  # fmt: skip
operators = st.sampled_from(["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"])
conditions = st.one_of(
    st.dictionaries(operators, ids, min_size=1, max_size=2),
    st.builds(lambda values: {"$in": values}, st.lists(ids, max_size=4)),
    st.builds(lambda values: {"$nin": values}, st.lists(ids, max_size=3)),
    st.sampled_from([{"$exists": True}, {"$type": "string"}, {"$type": "number"}, {"$mod": [2, 0]}, Regex("^a")]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ids, max_size=12), st.lists(conditions, min_size=1, max_size=4), st.booleans())
def test_keys_of_ids_say_what_documents_do(values: list[Any], asked: list[Any], backward: bool) -> None:
    with DrivenServer(clock=FakeClock()) as at:
        for value in values:
            reply = at.run("t", {"insert": "c", "documents": [{"_id": value}]})
            if isinstance(reply, dict) and reply["n"]:
                at.must("t", {"insert": "plain", "documents": [{"v": value}]})
        sort = -1 if backward else 1
        for condition in asked:
            plain = first_batch(at, {"find": "plain", "filter": {"v": condition}, "sort": {"v": sort}})
            expected = [item["v"] for item in plain]
            for more in ({}, {"sort": {"_id": sort}}):
                got = [item["_id"] for item in first_batch(at, {"find": "c", "filter": {"_id": condition},
                                                          "projection": {"_id": 1}, **more})]  # fmt: skip
                seen = [[str(type(value)) + str(hash_key(value, None)) for value in side] for side in (got, expected)]
                assert seen[0] == seen[1] if more else sorted(seen[0]) == sorted(seen[1]), condition
            assert at.must("t", {"count": "c", "query": {"_id": condition}})["n"] == len(expected), condition


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": f"k{number:04}", "a": number} for number in range(500)]})
        server.must("t", {"insert": "n", "documents": [{"_id": number} for number in range(50)]})
        yield server


def explained(at: DrivenServer, command: dict[str, Any]) -> tuple[list[str], int, int]:
    """The stages from below, keys and documents examined."""
    reply = at.must("t", {"explain": command, "verbosity": "executionStats"})
    stage, names = reply["queryPlanner"]["winningPlan"], []
    while stage is not None:
        names.append(stage["stage"])
        stage = stage.get("inputStage")
    stats = reply["executionStats"]
    return names[::-1], stats["totalKeysExamined"], stats["totalDocsExamined"]


def test_a_range_of_ids_is_counted_without_documents(at: DrivenServer) -> None:
    wanted = {"_id": {"$gte": "k0100", "$lt": "k0400"}}
    assert at.must("t", {"count": "c", "query": wanted})["n"] == 300
    assert explained(at, {"count": "c", "query": wanted}) == (["COUNT_SCAN", "COUNT"], 300, 0)
    several = {"_id": {"$in": ["k0001", "k0002", "none"]}}
    assert explained(at, {"count": "c", "query": several}) == (["COUNT_SCAN", "COUNT"], 2, 0)
    pipeline = [{"$match": wanted}, {"$count": "n"}]
    assert first_batch(at, {"aggregate": "c", "pipeline": pipeline, "cursor": {}}) == [{"n": 300}]
    other = {"_id": {"$gte": "k0100"}, "a": 1}
    assert explained(at, {"count": "c", "query": other})[2] >= 400


def test_a_query_for_ids_alone_is_covered_by_their_keys(at: DrivenServer) -> None:
    command: dict[str, Any] = {"find": "c", "filter": {"_id": {"$gt": "k0490"}}, "projection": {"_id": 1}}
    assert explained(at, command) == (["IXSCAN", "PROJECTION_COVERED"], 9, 0)
    assert first_batch(at, command) == [{"_id": f"k{number:04}"} for number in range(491, 500)]
    last: dict[str, Any] = {"find": "c", "sort": {"_id": -1}, "limit": 2, "projection": {"_id": 1}}
    assert first_batch(at, last) == [{"_id": "k0499"}, {"_id": "k0498"}]
    assert explained(at, last)[0][:2] == ["IXSCAN", "PROJECTION_COVERED"]
    assert len(first_batch(at, {**command, "filter": {}, "sort": {"_id": 1}, "batchSize": 1000})) == 500
    assert explained(at, {**command, "projection": {"a": 1}})[2] >= 9


@pytest.mark.parametrize("sort", [{}, {"_id": 1}, {"_id": -1}])
def test_explain_counts_of_a_range_what_is_in_it_however_many_chunks_it_is_read_in(
    at: DrivenServer, sort: dict[str, int]
) -> None:
    at.must("t", {"insert": "n", "documents": [{"_id": number} for number in range(50, 1500)]})
    for bounds, count in (({"$gte": 100, "$lt": 500}, 400), ({"$gt": 100, "$lte": 500}, 400), ({"$lt": 1000}, 1000)):
        command = {"find": "n", "filter": {"_id": bounds}, "sort": sort, "batchSize": 2000}
        assert explained(at, command)[1:] == (count, count)
        assert len(first_batch(at, command)) == count
    limited = {"find": "n", "filter": {"_id": {"$gt": 100}}, "sort": sort, "limit": 5}
    assert explained(at, limited)[1:] == (5, 5)


def test_a_number_is_read_from_its_document(at: DrivenServer) -> None:
    """5 and 5.0 have one key."""
    command = {"find": "n", "filter": {"_id": {"$gte": 40}}, "projection": {"_id": 1}}
    assert explained(at, command) == (["IXSCAN", "PROJECTION_COVERED"], 10, 10)
    assert first_batch(at, command)[0] == {"_id": 40}


def test_ids_whose_keys_are_cut_are_read(at: DrivenServer) -> None:
    long = "k0450" + "x" * 2000
    at.must("t", {"insert": "c", "documents": [{"_id": long}]})
    command = {"find": "c", "filter": {"_id": {"$gt": "k0450", "$lt": "k0452"}}, "projection": {"_id": 1}}
    assert [item["_id"] for item in first_batch(at, command)] == [long, "k0451"]
    assert at.must("t", {"count": "c", "query": command["filter"]})["n"] == 2


def test_ids_of_a_collation_are_read(at: DrivenServer) -> None:
    at.must("t", {"create": "folded", "collation": {"locale": "en", "strength": 2}})
    at.must("t", {"insert": "folded", "documents": [{"_id": "A"}, {"_id": "b"}]})
    assert at.must("t", {"count": "folded", "query": {"_id": {"$gte": "a", "$lt": "b"}}})["n"] == 1


def test_ids_alone_of_documents_that_take_long_to_decode_are_read() -> None:
    """Whether 3 is an integer only the document says; the walk through the keys must not pause for it."""
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.create_index("n")
        client.d.c.insert_many([{"_id": n, "n": -n, "text": "x" * 2_000_000} for n in range(9)])
        after = client.d.c.find({"_id": {"$gt": 1}}, {"_id": 1})
        assert list(after.sort("_id", 1).skip(3)) == [{"_id": n} for n in range(5, 9)]
        covered = client.d.c.find({"n": {"$lt": -1}}, {"_id": 0, "n": 1}).hint("n_1")
        assert list(covered.sort("n", 1)) == [{"n": n} for n in range(-8, -1)]
