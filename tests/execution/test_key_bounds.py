"""Scans that seek by the bounds of all fields: what they read, and that pauses and order change nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from bson import Decimal128, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given

from headrace import limits
from headrace.execution.planner.key_bounds import end_of_value
from headrace.query.sort import parse_sort
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.keystring.decoding import value_end
from headrace.values.keystring.encoding import encode_value
from tests.execution.collections import batch, values

DOCUMENTS = [{"_id": n, "a": n % 20, "b": n % 7, "s": f"Name {n % 50}", "t": f"x{n % 3}"} for n in range(1000)]


@pytest.fixture(scope="module")
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": DOCUMENTS})
        for name, key in (("ab", {"a": 1, "b": 1}), ("s", {"s": 1}), ("tsb", {"t": -1, "s": 1, "b": -1})):
            server.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": name}]})
        yield server


def ids(at: DrivenServer, spec: dict[str, Any], **more: Any) -> list[Any]:
    return [item["_id"] for item in batch(at.must("t", {"find": "c", "filter": spec, "batchSize": 2000, **more}))]


def stats(at: DrivenServer, command: dict[str, Any]) -> Any:
    return at.must("t", {"explain": command, "verbosity": "executionStats"})["executionStats"]


CASES = [
    ({"a": {"$gte": 2, "$lte": 12}, "b": 3}, "ab", 40),
    ({"a": {"$gt": 15}, "b": {"$in": [0, 6]}}, "ab", 20),
    ({"t": {"$gt": "x0"}, "s": "Name 7"}, "tsb", 10),
    ({"t": {"$in": ["x0", "x2"]}, "s": {"$gt": "Name 3"}, "b": {"$gt": 5}}, "tsb", 200),
    ({"s": {"$regex": "^name 7$", "$options": "i"}}, "s", 1000),
    ({"t": {"$gte": "x1"}, "s": {"$regex": "4$"}, "b": 2}, "tsb", 700),
]


@pytest.mark.parametrize("sort", [None, 1, -1])
@pytest.mark.parametrize(("spec", "index", "left_out_max"), CASES)
def test_only_what_is_in_all_bounds_is_fetched(
    at: DrivenServer, spec: dict[str, Any], index: str, left_out_max: int, sort: int | None
) -> None:
    expected = sorted(ids(at, spec, hint={"$natural": 1}))
    more: dict[str, Any] = {"hint": index}
    if sort is not None:
        pattern = {"ab": {"a": 1, "b": 1}, "s": {"s": 1}, "tsb": {"t": -1, "s": 1, "b": -1}}[index]
        more["sort"] = {name: way * sort for name, way in pattern.items()}
    assert expected and sorted(ids(at, spec, **more)) == expected
    ran = stats(at, {"find": "c", "filter": spec, **more})
    assert ran["totalDocsExamined"] == len(expected)
    assert ran["totalKeysExamined"] <= len(expected) + left_out_max
    assert ran["executionStages"]["inputStage"]["nReturned"] == len(expected)
    if sort is not None:
        order = parse_sort(more["sort"])
        keys = [order.key(DOCUMENTS[number]) for number in ids(at, spec, **more)]
        assert keys == sorted(keys)


@pytest.mark.parametrize(("spec", "index", "left_out_max"), CASES)
def test_counts_and_writes_read_the_same(at: DrivenServer, spec: dict[str, Any], index: str, left_out_max: int) -> None:
    expected = len(ids(at, spec, hint={"$natural": 1}))
    assert at.must("t", {"count": "c", "query": spec, "hint": index})["n"] == expected
    ran = stats(at, {"count": "c", "query": spec, "hint": index})
    assert ran["totalKeysExamined"] <= expected + left_out_max
    ran = stats(at, {"delete": "c", "deletes": [{"q": spec, "limit": 0, "hint": index}]})
    assert ran["totalDocsExamined"] == expected == ran["executionStages"]["nWouldDelete"]
    scan = ran["executionStages"]["inputStage"]["inputStage"]
    assert scan["nReturned"] == expected and scan["keysExamined"] == ran["totalKeysExamined"]


def test_a_range_and_a_value_are_covered(at: DrivenServer) -> None:
    command = {"find": "c", "filter": {"t": {"$gt": "x0"}, "s": "Name 7"}, "projection": {"t": 1, "s": 1, "_id": 0}}
    ran = stats(at, command)
    assert ran["executionStages"]["stage"] == "PROJECTION_COVERED" and ran["totalDocsExamined"] == 0
    assert (
        stats(at, {"count": "c", "query": command["filter"]})["executionStages"]["inputStage"]["stage"] == "COUNT_SCAN"
    )


def test_a_walk_that_leaves_out_keys_goes_on_behind_a_pause(at: DrivenServer) -> None:
    spec = {"a": {"$gte": 0}, "b": 3}
    with mock.patch.object(limits, "VIEW_CHUNK_COUNT", 2), mock.patch.object(limits, "COUNT_COUNT", 3):
        for sort in ({"a": 1}, {"a": -1}):
            reply = at.must("t", {"find": "c", "filter": spec, "sort": sort, "hint": "ab", "batchSize": 5})["cursor"]
            read = [item["_id"] for item in reply["firstBatch"]]
            while reply["id"]:
                reply = at.must("t", {"getMore": reply["id"], "collection": "c", "batchSize": 5})["cursor"]
                read += [item["_id"] for item in reply["nextBatch"]]
            assert sorted(read) == [item["_id"] for item in DOCUMENTS if item["b"] == 3]
        assert at.must("t", {"count": "c", "query": spec, "hint": "ab"})["n"] == len(read)
        update = {"q": spec, "u": {"$set": {"seen": True}}, "multi": True, "hint": "ab"}
        assert at.must("t", {"update": "c", "updates": [update]})["nModified"] == len(read)


def test_a_first_field_with_few_values_is_skipped() -> None:
    with DrivenServer(clock=FakeClock()) as server:
        server.must(
            "t", {"insert": "c", "documents": [{"_id": n, "a": n % 20, "b": n % 7, "c": n} for n in range(1000)]}
        )
        for name, key in (("ab", {"a": 1, "b": 1}), ("cb", {"c": 1, "b": 1})):
            server.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": name}]})
        ran = stats(server, {"find": "c", "filter": {"b": 3}})
        assert ran["executionStages"]["inputStage"]["indexName"] == "ab"
        assert ran["nReturned"] == ran["totalDocsExamined"] == 143 and ran["totalKeysExamined"] <= 143 + 41
        assert server.must("t", {"count": "c", "query": {"b": {"$in": [1, 3]}}})["n"] == 286
        server.must("t", {"dropIndexes": "c", "index": "ab"})
        assert stats(server, {"find": "c", "filter": {"b": 3}})["executionStages"]["stage"] == "COLLSCAN"


@given(values.filter(lambda value: type(value) is not list))
def test_the_end_of_a_value_in_a_key(value: Any) -> None:
    key = b"1234" + encode_value(value) + b"<next\0\x04"
    assert end_of_value(key, 4) == value_end(key, 4) == len(key) - 7


@pytest.mark.parametrize(
    "value",
    [0.5, 1.5, -3, -(1 << 62), 1 << 62, 255, 256, 127.25, Decimal128("0.1"), Decimal128("5"), None, True, "", "a\0\0b",
     ObjectId("5" * 24), DatetimeMS(-1), Timestamp(5, 6), {"a": [1]}],
)  # fmt: skip
def test_the_end_of_a_value_of_each_type(value: Any) -> None:
    key = b"1234" + encode_value(value)
    assert end_of_value(key + b"\x04", 4) == len(key)


def test_a_count_with_a_limit_looks_at_no_more_keys(at: DrivenServer) -> None:
    for spec in ({"a": {"$gte": 2, "$lte": 12}, "b": 3}, {"a": {"$gt": 3}}, {"s": {"$gt": "Name 3"}}):
        assert at.must("t", {"count": "c", "query": spec, "skip": 2, "limit": 5})["n"] == 5
        ran = stats(at, {"count": "c", "query": spec, "skip": 2, "limit": 5})
        assert ran["totalKeysExamined"] <= 7 + 20 and ran["totalDocsExamined"] == 0
    assert stats(at, {"count": "c", "query": {"zz": None}, "limit": 5})["totalDocsExamined"] <= 64
    assert at.must("t", {"count": "c", "query": {"_id": {"$gte": 990}}, "limit": 20})["n"] == 10


def test_a_pattern_that_is_a_prefix_is_covered_and_counted(at: DrivenServer) -> None:
    spec = {"s": {"$regex": "^Name 1"}}
    expected = sum(document["s"].startswith("Name 1") for document in DOCUMENTS)
    ran = stats(at, {"find": "c", "filter": spec, "projection": {"s": 1, "_id": 0}})
    assert ran["executionStages"]["stage"] == "PROJECTION_COVERED"
    assert (ran["nReturned"], ran["totalDocsExamined"]) == (expected, 0)
    ran = stats(at, {"count": "c", "query": spec})
    assert ran["executionStages"]["inputStage"]["stage"] == "COUNT_SCAN" and ran["totalDocsExamined"] == 0
    assert at.must("t", {"count": "c", "query": spec})["n"] == expected
    for pattern, options in (("^Name 1.", ""), ("^name 1", "i"), ("^Name 1*", "")):
        spec = {"s": {"$regex": pattern, "$options": options}}
        assert at.must("t", {"count": "c", "query": spec})["n"] == len(ids(at, spec, hint={"$natural": 1}))
