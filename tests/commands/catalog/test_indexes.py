"""Indexes as commands see them: kinds that are refused, counted uses, hints, and scans whose index goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.errors import CommandError
from headrace.store.check.directory import check
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


def test_uses_of_an_index_are_counted(at: DrivenServer) -> None:
    for _ in range(3):
        ids(at, {"a": 1})
    at.must("t", {"update": "c", "updates": [{"q": {"b": 7}, "u": {"$set": {"z": 1}}}]})
    stats = at.must("t", {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}})["cursor"]["firstBatch"]
    assert {item["name"]: item["accesses"]["ops"] for item in stats} == {"_id_": 0, "a": 3, "b": 1}


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


def test_an_index_becomes_unique_in_two_steps(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "x": n % 4} for n in range(6)]})
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]})
        unique = {"collMod": "c", "index": {"name": "x", "unique": True}}
        with pytest.raises(CommandError) as raised:
            at.must("t", unique)
        assert raised.value.code == 72
        reply = at.must("t", {"collMod": "c", "index": {"keyPattern": {"x": 1}, "prepareUnique": True}})
        assert (reply["prepareUnique_old"], reply["prepareUnique_new"]) == (False, True)
        assert at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"][1]["prepareUnique"] is True
        for write in (
            {"insert": "c", "documents": [{"_id": 9, "x": 1}]},
            {"insert": "c", "documents": [{"_id": 9, "x": 7}, {"_id": 10, "x": 1}]},
            {"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"x": 3}}}]},
        ):
            refused = at.run("t", write)
            assert isinstance(refused, dict) and refused["writeErrors"][0]["code"] == 11000
        at.must("t", {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"y": 3}}}]})
        for dry in ({}, {"dryRun": True}):
            refused = at.run("t", {**unique, **dry})
            assert isinstance(refused, dict) and refused["code"] == 359
            assert refused["violations"] == [{"ids": [0, 4]}, {"ids": [1, 5]}]
        at.must("t", {"delete": "c", "deletes": [{"q": {"_id": {"$in": [4, 5]}}, "limit": 0}]})
        assert "unique_new" not in at.must("t", {**unique, "dryRun": True})
        assert at.must("t", unique)["unique_new"] is True
        spec = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"][1]
        assert spec == {"v": 2, "key": {"x": 1}, "name": "x", "unique": True}
        refused = at.run("t", {"insert": "c", "documents": [{"_id": 11, "x": 2}]})
        assert isinstance(refused, dict) and refused["writeErrors"][0]["code"] == 11000
        assert [item["_id"] for item in at.must("t", {"find": "c", "filter": {"x": 2}})["cursor"]["firstBatch"]] == [2]
    assert check(tmp_path).problems == []


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"key": {}}, 67), ({"key": {"a": 0}}, 67), ({"key": {"a": True}}, 67), ({"key": {"a": "btree"}}, 67),
        ({"key": {"a..b": 1}}, 67), ({"key": {"$a": 1}}, 67), ({"key": {f"f{n}": 1 for n in range(33)}}, 13103),
        ({"key": {"a": 1}, "name": ""}, 67), ({"key": {"a": 1}, "name": "*"}, 2), ({"key": {"a": 1}, "v": 3}, 67),
        ({"key": {"a": 1}, "v": 1.5}, 2), ({"key": {"a": 1}, "strange": 1}, 197),
        ({"key": {"_id": 1}, "sparse": True}, 197), ({"key": {"_id": 1}, "hidden": True}, 2),
        ({"key": {"_id": 1}, "collation": {"locale": "sv"}}, 2),
        ({"key": {"_id": 1}, "expireAfterSeconds": 1}, 197), ({"key": {"a": 1, "b": 1}, "expireAfterSeconds": 1}, 67),
        ({"key": {"a": 1}, "expireAfterSeconds": -1}, 67), ({"key": {"a": 1}, "expireAfterSeconds": 2**31}, 67),
        ({"key": {"a": 1}, "expireAfterSeconds": "x"}, 67),
        ({"key": {"a": 1}, "unique": True, "prepareUnique": True}, 67),
        ({"key": {"a": 1}, "sparse": True, "partialFilterExpression": {"a": 1}}, 67),
        ({"key": {"a": 1}, "partialFilterExpression": {"a": {"$ne": 1}}}, 67),
        ({"key": {"a": 1}, "partialFilterExpression": {"a": {"$exists": False}}}, 67),
        ({"key": {"a": 1}, "partialFilterExpression": {"$expr": {"$eq": ["$a", 1]}}}, 224),
        ({"key": {"a": 1}, "partialFilterExpression": {"a": {"$regex": "x"}}}, 67),
    ],
)  # fmt: skip
def test_what_an_index_cannot_be_is_refused(at: DrivenServer, spec: dict[str, Any], code: int) -> None:
    reply = at.run("t", {"createIndexes": "d", "indexes": [{"name": "x", **spec}]})
    assert isinstance(reply, dict) and reply["code"] == code, reply


def test_partial_filters_may_be_what_mongodb_allows(at: DrivenServer) -> None:
    for number, covered in enumerate((
        {}, {"a": 1}, {"a": {"$gt": 1, "$lte": 5}}, {"a": {"$exists": True}}, {"a": {"$type": "string"}},
        {"a": {"$in": [1, 2]}}, {"$or": [{"a": 1}, {"$and": [{"b": 1}, {"c": {"$lt": 1}}]}]},
    )):  # fmt: skip
        at.must("t", {"createIndexes": "e", "indexes": [
            {"key": {"z": 1}, "name": f"p{number}", "partialFilterExpression": covered}]})  # fmt: skip


def test_unknown_options_are_ignored_where_the_client_says_so(at: DrivenServer) -> None:
    index = {"key": {"z": 1}, "name": "z", "strange": 1, "background": True, "dropDups": True}
    at.must("t", {"createIndexes": "d", "indexes": [index], "ignoreUnknownIndexOptions": True})
    shown = at.must("t", {"listIndexes": "d"})["cursor"]["firstBatch"][1]
    assert shown == {"v": 2, "key": {"z": 1}, "name": "z", "background": True}


def test_indexes_on_one_key_may_differ_in_what_they_hold(at: DrivenServer) -> None:
    for number, more in enumerate(({}, {"sparse": True}, {"unique": True}, {"collation": {"locale": "sv"}})):
        at.must("t", {"createIndexes": "d", "indexes": [{"key": {"z": 1}, "name": f"z{number}", **more}]})
    for spec, code in (
        ({"key": {"z": 1}, "name": "other"}, 85), ({"key": {"y": 1}, "name": "z0"}, 86),
        ({"key": {"z": 1}, "name": "z0", "sparse": True}, 86),
    ):  # fmt: skip
        reply = at.run("t", {"createIndexes": "d", "indexes": [spec]})
        assert isinstance(reply, dict) and reply["code"] == code, spec
    same = at.must("t", {"createIndexes": "d", "indexes": [{"key": {"z": 1}, "name": "z0"}]})
    assert same["note"] == "all indexes already exist"


@pytest.mark.parametrize(
    ("index", "code"),
    [({"name": "_id_", "hidden": True}, 2), ({"name": "_id_", "expireAfterSeconds": 1}, 72),
     ({"name": "ab", "expireAfterSeconds": 1}, 72), ({"name": "a", "unique": False}, 2),
     ({"name": "_id_", "prepareUnique": True}, 72), ({"name": "h", "prepareUnique": True}, 72)],
)  # fmt: skip
def test_what_collmod_cannot_make_of_an_index_is_refused(at: DrivenServer, index: dict[str, Any], code: int) -> None:
    more = [{"key": {"a": 1, "b": 1}, "name": "ab"}, {"key": {"a": "hashed"}, "name": "h"}]
    at.must("t", {"createIndexes": "d", "indexes": [*more, {"key": {"a": 1}, "name": "a"}]})
    reply = at.run("t", {"collMod": "d", "index": index})
    assert isinstance(reply, dict) and reply["code"] == code


@pytest.mark.parametrize(
    ("quorum", "code"),
    [
        ("", 9), (True, 9), ({}, 9), (-1, 9), (51, 9), (2, 278), (7.5, 278), ("all", 79), ("rack", 79),
    ],
)  # fmt: skip
def test_a_commit_quorum_that_one_member_cannot_give_is_refused(at: DrivenServer, quorum: Any, code: int) -> None:
    at.must("t", {"insert": "q", "documents": [{"_id": 1}]})
    command = {"createIndexes": "q", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": quorum}
    reply = at.run("t", command)
    assert isinstance(reply, dict) and reply["code"] == code
    if code != 9:  # nobody votes on the indexes of an empty collection
        assert at.must("t", {**command, "createIndexes": "empty"})["commitQuorum"] == (7 if quorum == 7.5 else quorum)


def test_a_commit_quorum_is_answered(at: DrivenServer) -> None:
    at.must("t", {"insert": "q", "documents": [{"_id": 1}]})
    for number, (quorum, shown) in enumerate([(0, 1), (1, 1), ("majority", "majority")]):
        index = {"key": {f"a{number}": 1}, "name": f"a{number}"}
        reply = at.must("t", {"createIndexes": "q", "indexes": [index], "commitQuorum": quorum})
        assert reply["commitQuorum"] == shown
    with DrivenServer(clock=FakeClock(), oplog=False) as alone:
        command = {"createIndexes": "q", "indexes": [index], "commitQuorum": 1}
        refused = alone.run("t", command)
        assert isinstance(refused, dict) and refused["code"] == 2


def test_an_index_shows_that_it_was_asked_for_in_the_background(at: DrivenServer) -> None:
    spec = {"key": {"z": 1}, "name": "z", "background": True}
    at.must("t", {"createIndexes": "c", "indexes": [spec]})
    for again in (spec, {"key": {"z": 1}, "name": "z"}):
        assert "note" in at.must("t", {"createIndexes": "c", "indexes": [again]})
    shown = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [list(index.items()) for index in shown if index["name"] == "z"] == [list({"v": 2, **spec}.items())]


def test_a_new_index_is_specified_once(at: DrivenServer) -> None:
    twice = [{"key": {"z": 1}, "name": "z"}] * 2
    for name, code in (("c", 96), ("new", 68)):
        reply = at.run("t", {"createIndexes": name, "indexes": twice})
        assert isinstance(reply, dict)
        assert reply["code"] == code
    at.must("t", {"createIndexes": "c", "indexes": twice[:1]})
    assert at.must("t", {"createIndexes": "c", "indexes": twice})["note"] == "all indexes already exist"
    at.must("t", {"createIndexes": "new", "indexes": [{"key": {"_id": 1}, "name": "_id_"}] * 2})
