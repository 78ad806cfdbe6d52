"""Indexes as commands see them: kinds that are refused, counted uses, hints, and scans whose index goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.errors import CommandError
from headrace.store.view import View
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": n, "a": n % 5, "b": [n, -n]} for n in range(100)]})
        server.must(
            "t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}
        )
        yield server


def ids(at: DrivenServer, spec: dict[str, Any], **more: Any) -> list[int]:
    batch = at.must("t", {"find": "c", "filter": spec, "batchSize": 1000, **more})["cursor"]["firstBatch"]
    return [document["_id"] for document in batch]


@pytest.mark.parametrize(
    "key",
    [{"x": "text"}, {"x": "2d"}, {"x": "2dsphere"}, {"$**": "text"}, {"a": 1, "x": "text"}],
)
def test_kinds_that_no_query_would_use_are_refused(at: DrivenServer, key: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="indexes are not supported") as refused:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "x"}]})
    assert refused.value.code == 115


def test_uses_of_an_index_are_counted(at: DrivenServer) -> None:
    for _ in range(3):
        ids(at, {"a": 1})
    at.must("t", {"update": "c", "updates": [{"q": {"b": 7}, "u": {"$set": {"z": 1}}}]})
    stats = at.must("t", {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}})["cursor"]["firstBatch"]
    assert {item["name"]: item["accesses"]["ops"] for item in stats if "accesses" in item} == {"a": 3, "b": 1}


def test_documents_come_in_the_order_of_the_index_and_once(at: DrivenServer) -> None:
    assert ids(at, {"a": {"$gte": 3}}) == [*range(3, 100, 5), *range(4, 100, 5)]
    assert ids(at, {"b": {"$gte": -2, "$lte": 2}}) == list(reversed(range(100)))
    assert ids(at, {"$or": [{"a": 1}, {"b": 6}]})[:2] == [1, 6]


@pytest.mark.parametrize("command", [
    {"find": "c", "filter": {"a": 1}, "hint": "none"},
    {"count": "c", "query": {"a": 1}, "hint": {"none": 1}},
    {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}], "cursor": {}, "hint": "none"},
])  # fmt: skip
def test_a_hint_must_name_an_index(at: DrivenServer, command: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="hint provided does not correspond") as refused:
        at.must("t", command)
    assert refused.value.code == 2


def test_a_hidden_index_is_maintained_and_not_used(at: DrivenServer) -> None:
    at.must("t", {"collMod": "c", "index": {"name": "a", "hidden": True}})
    at.must("t", {"insert": "c", "documents": [{"_id": 100, "a": 1}]})
    assert ids(at, {"a": 1}) == [*range(1, 100, 5), 100]
    with pytest.raises(CommandError, match="hint provided"):
        ids(at, {"a": 1}, hint="a")
    at.must("t", {"collMod": "c", "index": {"name": "a", "hidden": False}})
    assert ids(at, {"a": 1}, hint="a") == [*range(1, 100, 5), 100]


def test_a_cursor_ends_when_its_index_is_dropped(at: DrivenServer) -> None:
    cursor = at.must("t", {"find": "c", "filter": {"a": {"$gte": 0}}, "batchSize": 2})["cursor"]["id"]
    at.must("t", {"dropIndexes": "c", "index": "a"})
    with pytest.raises(CommandError, match="index 'a' dropped") as ended:
        at.must("t", {"getMore": Int64(cursor), "collection": "c", "batchSize": 1000})
    assert ended.value.code == 175


def test_a_transaction_reads_its_writes_and_its_snapshot_through_indexes(at: DrivenServer) -> None:
    inside = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    at.must("t", {"insert": "c", "documents": [{"_id": "in", "a": 9}], "startTransaction": True, **inside})
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"a": 9}}}], **inside})
    at.must("t", {"insert": "c", "documents": [{"_id": "out", "a": 9}]})
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$set": {"a": 9}}}]})
    assert ids(at, {"a": 9}, **inside) == [2, "in"]
    assert ids(at, {"a": 2}, **inside)[:2] == [7, 12]
    assert ids(at, {"a": 9}) == [7, "out"]
    at.must("admin", {"commitTransaction": 1, **inside})
    assert ids(at, {"a": 9}) == [2, 7, "out", "in"]


@pytest.mark.parametrize(("spec", "count"), [({}, 100), ({"a": 3}, 20), ({"a": {"$in": [1, 2, 9]}}, 40), ({"a": 9}, 0)])
def test_counts_look_at_no_document(
    at: DrivenServer, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(View, "by_record", None)
    monkeypatch.setattr(View, "scan", None)
    assert at.must("t", {"count": "c", "query": spec})["n"] == count
    group = {"$group": {"_id": 1, "n": {"$sum": 1}}}
    for pipeline in ([{"$match": spec}, group], [{"$match": spec}, {"$count": "n"}]):
        batch = at.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"]
        assert [document["n"] for document in batch] == ([count] if count else [])


def test_a_count_by_a_sparse_index_that_is_named_is_of_what_it_has(at: DrivenServer) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"s": 1}, "name": "s", "sparse": True}]})
    at.must("t", {"insert": "c", "documents": [{"_id": 200, "s": 1}]})
    assert at.must("t", {"count": "c", "hint": "s"})["n"] == 1 and at.must("t", {"count": "c"})["n"] == 101


def test_a_multi_update_that_moves_its_documents_ahead_changes_each_once(at: DrivenServer) -> None:
    reply = at.must(
        "t", {"update": "c", "updates": [{"q": {"a": {"$gte": 0}}, "u": {"$inc": {"a": 1}}, "multi": True}]}
    )
    assert reply["nModified"] == 100 and len(ids(at, {"a": {"$gte": 1, "$lte": 5}})) == 100
