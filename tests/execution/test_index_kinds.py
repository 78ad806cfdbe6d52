"""Hashed and wildcard indexes: which operations use them and how, and that they never change a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.store.catalog import Index
from headrace.store.check.directory import check
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.index_hash import hash_of


def results(at: DrivenServer, name: str, spec: Any, sort: Any) -> Any:
    reply = at.run("t", {"find": name, "filter": spec, "sort": sort, "batchSize": 1000})
    assert isinstance(reply, dict)
    return reply["cursor"]["firstBatch"] if "cursor" in reply else reply["code"]


def winning(at: DrivenServer, command: dict[str, Any]) -> dict[str, Any]:
    """The lowest stage of the plan."""
    stage = at.must("t", {"explain": command, "verbosity": "queryPlanner"})["queryPlanner"]["winningPlan"]
    while "inputStage" in stage:
        stage = stage["inputStage"]
    return stage


@pytest.fixture
def at() -> Any:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def test_a_hashed_index_serves_equality_and_neither_ranges_nor_order(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": "hashed"}, "name": "h"}]})
    at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n / 2} for n in range(8)]})
    scan = winning(at, {"find": "c", "filter": {"a": 1}})
    assert (scan["stage"], scan["keyPattern"]) == ("IXSCAN", {"a": "hashed"})
    assert scan["indexBounds"] == {"a": [f"[{hash_of(1)}, {hash_of(1)}]"]}
    assert results(at, "c", {"a": 1}, {}) == [{"_id": 2, "a": 1.0}]
    assert len(winning(at, {"find": "c", "filter": {"a": {"$in": [1, 2, 3]}}})["indexBounds"]["a"]) == 3
    for unsuitable in ({"filter": {"a": {"$gt": 1}}}, {"sort": {"a": 1}}, {"filter": {"a": {"$exists": True}}}):
        assert winning(at, {"find": "c", **unsuitable})["stage"] == "COLLSCAN"
    assert winning(at, {"find": "c", "filter": {"a": None}})["stage"] == "IXSCAN"
    joined = at.must("t", {"aggregate": "c", "cursor": {}, "pipeline": [
        {"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": "b"}}, {"$match": {"b": {"$size": 1}}},
    ]})  # fmt: skip
    assert len(joined["cursor"]["firstBatch"]) == 8


def test_a_hashed_index_refuses_arrays_and_uniqueness(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a.b": "hashed", "c": 1}, "name": "h"}]})
    for document, path in (({"a": {"b": [1]}}, "a.b"), ({"a": [{"b": 1}]}, "a"), ({"c": [1]}, "c")):
        reply = at.run("t", {"insert": "c", "documents": [document]})
        assert isinstance(reply, dict)
        (error,) = reply["writeErrors"]
        assert error["code"] == 16766 and error["errmsg"].endswith(f"Found array at path: {path}")
    at.must("t", {"insert": "d", "documents": [{"a": [1]}]})
    for spec, code in (
        ({"key": {"a": "hashed"}}, 16766), ({"key": {"a": "hashed"}, "unique": True}, 16764),
        ({"key": {"a": "hashed", "b": "hashed"}}, 31303),
    ):  # fmt: skip
        reply = at.run("t", {"createIndexes": "d", "indexes": [{**spec, "name": "x"}]})
        assert isinstance(reply, dict) and reply["code"] == code


def test_to_hashed_index_key_is_what_the_documentation_shows(at: DrivenServer) -> None:
    pipeline = [{"$documents": [{"v": "string to hash"}, {}]}, {"$project": {"h": {"$toHashedIndexKey": "$v"}}}]
    first, second = at.must("t", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"]
    assert first == {"h": Int64(763543691661428748)} and second == {"h": Int64(hash_of(None))}


def test_equal_values_have_one_hash() -> None:
    assert hash_of(2) == hash_of(2.0) == hash_of(Int64(2)) == hash_of(Decimal128("2.00")) != hash_of("2")
    assert hash_of({"a": [1, {"b": 2}]}) == hash_of({"a": [1.0, {"b": Int64(2)}]}) != hash_of({"a": [1, {"c": 2}]})
    assert hash_of(1e300) == hash_of(float("inf")) == hash_of(Decimal128("1E+400"))


def test_a_wildcard_index_serves_conditions_on_any_path(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]})
    at.must("t", {"insert": "c", "documents": [{"_id": n, "a": {"b": n, "c": "x"}, "d": [n]} for n in range(8)]})
    scan = winning(at, {"find": "c", "filter": {"a.b": {"$gte": 6}}})
    assert (scan["stage"], scan["keyPattern"], scan["isMultiKey"]) == ("IXSCAN", {"$_path": 1, "a.b": 1}, False)
    assert scan["indexBounds"] == {"$_path": ['["a.b", "a.b"]'], "a.b": ["[6, inf]"]}
    assert winning(at, {"find": "c", "filter": {"d": 3}})["isMultiKey"] is True
    exists = winning(at, {"find": "c", "filter": {"a": {"$exists": True}}})
    assert exists["indexBounds"] == {"$_path": ['["a", "a"]', '["a.", "a/")'], "a": ["[MinKey, MaxKey]"]}
    order = winning(at, {"find": "c", "filter": {"a.b": {"$gt": 2}}, "sort": {"a.b": -1}})
    assert order["stage"] == "IXSCAN" and order["direction"] == "backward"
    for unsuitable in (
        {"a": None}, {"a.b": {"$exists": False}}, {"a.b": {"$ne": 1}}, {"a": {"b": 1, "c": "x"}}, {"d.0": 1}, {"_id": {
            "$type": "int"}},
    ):  # fmt: skip
        stage = winning(at, {"find": "c", "filter": unsuitable})
        assert stage["stage"] == "COLLSCAN" or stage["indexBounds"]["$_path"][-1].endswith('/")'), unsuitable
    assert winning(at, {"find": "c", "sort": {"a.b": 1}})["stage"] == "COLLSCAN"
    reply = at.run("t", {"find": "c", "filter": {"a": None}, "hint": "w"})
    assert isinstance(reply, dict) and reply["code"] == 291


def test_a_compound_wildcard_index_serves_its_other_fields_too(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"t": 1, "a.$**": 1}, "name": "w"}]})
    at.must("t", {"insert": "c", "documents": [{"_id": n, "t": n % 2, "a": {"b": n}} for n in range(8)]})
    at.must("t", {"insert": "c", "documents": [{"_id": 8, "t": 1}]})
    scan = winning(at, {"find": "c", "filter": {"t": 1, "a.b": {"$gt": 3}}})
    assert scan["keyPattern"] == {"t": 1, "$_path": 1, "a.b": 1}
    assert scan["indexBounds"]["t"] == ["[1, 1]"] and scan["indexBounds"]["a.b"] == ["(3, inf]"]
    assert winning(at, {"find": "c", "filter": {"t": 1}})["keyPattern"] == {"t": 1, "$_path": 1}
    assert len(results(at, "c", {"t": 1}, {})) == 5
    reply = at.run("t", {"insert": "c", "documents": [{"t": [1]}]})
    assert isinstance(reply, dict) and reply["writeErrors"][0]["code"] == 7246301


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"key": {"$**": 1}, "unique": True}, 67), ({"key": {"$**": 1}, "sparse": True}, 67),
        ({"key": {"$**": 1}, "expireAfterSeconds": 5}, 67), ({"key": {"$**": 1, "a.$**": 1}}, 7246201),
        ({"key": {"$**": "hashed"}}, 67), ({"key": {"a": 1, "$**": 1}}, 67), ({"key": {"a.b": 1, "a.$**": 1}}, 67),
        ({"key": {"a": 1}, "wildcardProjection": {"a": 1}}, 2), ({"key": {"$**": 1}, "wildcardProjection": {}}, 9),
        ({"key": {"a.$**": 1}, "wildcardProjection": {"a": 1}}, 9),
        ({"key": {"$**": 1}, "wildcardProjection": {"a": 1, "b": 0}}, 31254),
        ({"key": {"$**": "text", "a.$**": 1}}, 67),
    ],
)  # fmt: skip
def test_what_a_wildcard_index_cannot_be_is_refused(at: DrivenServer, spec: dict[str, Any], code: int) -> None:
    reply = at.run("t", {"createIndexes": "c", "indexes": [{**spec, "name": "w"}]})
    assert isinstance(reply, dict) and reply["code"] == code, reply


def test_paths_that_have_had_arrays_are_named_up_to_a_limit(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]})
    for number in range(300):
        at.must("t", {"insert": "c", "documents": [{"_id": number, f"f{number}": [number], "n": number}]})
    index = at.store.catalog.collections["t.c"].indexes[1]
    assert len(index.traits) <= 202 and "$**" in index.traits
    assert results(at, "c", {"f299": 299}, {}) == [{"_id": 299, "f299": [299], "n": 299}]
    assert winning(at, {"find": "c", "filter": {"n": 1}})["isMultiKey"] is True


def test_indexes_of_these_kinds_that_an_earlier_version_listed_get_their_entries(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"$**": 1}, "name": "w"}]})
        txn = at.store.begin()
        collection = txn.catalog.collections["t.c"]
        of_id, wildcard = collection.indexes
        listed = Index(wildcard.number, wildcard.spec, has_entries=False)
        txn.catalog.save(txn.kv, collection.changed(indexes=(of_id, listed)))
        at.store.commit(txn)
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(5)]})
        assert winning(at, {"find": "c", "filter": {"a": 3}})["stage"] == "COLLSCAN"
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert winning(at, {"find": "c", "filter": {"a": 3}})["stage"] == "IXSCAN"
        assert results(at, "c", {"a": 3}, {}) == [{"_id": 3, "a": 3}]
    assert check(tmp_path).problems == []


def test_a_text_index_that_an_early_version_only_listed_is_not_used(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": "lamp"}]})
        txn = at.store.begin()
        collection = txn.catalog.collections["t.c"]
        listed = Index(99, {"v": 2, "key": {"a": "text"}, "name": "a_text"}, has_entries=False)
        txn.catalog.save(txn.kv, collection.changed(indexes=(*collection.indexes, listed)))
        at.store.commit(txn)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 2, "a": "lamp"}]})
        with pytest.raises(CommandError) as refused:
            at.must("t", {"find": "c", "filter": {"$text": {"$search": "lamp"}}})
        assert refused.value.code == 27
        at.must("t", {"dropIndexes": "c", "index": "a_text"})
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": "text"}, "name": "a_text"}]})
        assert len(results(at, "c", {"$text": {"$search": "lamp"}}, {})) == 2
