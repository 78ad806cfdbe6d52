"""Clustered collections: what `create` takes, how they are listed, and that their natural order is that of `_id`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64, MaxKey, MinKey

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
INDEX = {"key": {"_id": 1}, "unique": True}
STORED = {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


@pytest.fixture
def filled(at: DrivenServer) -> DrivenServer:
    """A collection `c` clustered by an index named `mine`, with `_id`s that were not inserted in their order."""
    at.must("t", {"create": "c", "clusteredIndex": {**INDEX, "name": "mine"}})
    documents = [{"_id": number, "a": number % 3} for number in (5, 1, 9, 3, 7)]
    at.must("t", {"insert": "c", "documents": [*documents, {"_id": "x"}, {"_id": None}]})
    return at


def ids(at: DrivenServer, **find: Any) -> list[Any]:
    return [row["_id"] for row in at.must("t", {"find": "c", **find})["cursor"]["firstBatch"]]


def plan(at: DrivenServer, **find: Any) -> Document:
    explained = at.must("t", {"explain": {"find": "c", **find}, "verbosity": "queryPlanner"})
    made: Document = explained["queryPlanner"]["winningPlan"]
    return made


def options(at: DrivenServer, name: str = "c") -> Document:
    listed = at.must("t", {"listCollections": 1, "filter": {"name": name}})["cursor"]["firstBatch"][0]
    assert "idIndex" not in listed
    made: Document = listed["options"]
    return made


def indexes(at: DrivenServer, name: str = "c") -> list[Document]:
    made: list[Document] = at.must("t", {"listIndexes": name})["cursor"]["firstBatch"]
    return made


def test_a_clustered_index_is_listed_with_its_defaults(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "clusteredIndex": INDEX})
    assert list(options(at)["clusteredIndex"].items()) == list(STORED.items())
    assert [list(index.items()) for index in indexes(at)] == [[*STORED.items(), ("clustered", True)]]
    at.must("t", {"create": "c", "clusteredIndex": STORED})  # the same once more
    assert at.run("t", {"create": "c"})["code"] == 48


def test_a_name_and_an_age_are_kept(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "clusteredIndex": {**INDEX, "name": "mine", "v": 2.0}, "expireAfterSeconds": 60.0})
    assert options(at) == {"clusteredIndex": {**STORED, "name": "mine"}, "expireAfterSeconds": Int64(60)}
    assert indexes(at) == [{**STORED, "name": "mine", "expireAfterSeconds": Int64(60), "clustered": True}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"clusteredIndex": 1}, 14),
        ({"clusteredIndex": "x"}, 14),
        ({"clusteredIndex": True}, 5979703),
        ({"clusteredIndex": {"key": {"_id": 1}}}, 40414),
        ({"clusteredIndex": {"unique": True}}, 40414),
        ({"clusteredIndex": {"key": 1, "unique": True}}, 14),
        ({"clusteredIndex": {**INDEX, "name": 1}}, 14),
        ({"clusteredIndex": {**INDEX, "v": "2"}}, 14),
        ({"clusteredIndex": {**INDEX, "sparse": True}}, 40415),
        ({"clusteredIndex": {**INDEX, "unique": False}}, 5979700),
        ({"clusteredIndex": {**INDEX, "v": 1}}, 5979704),
        ({"clusteredIndex": {"key": {"_id": -1}, "unique": True}}, 197),
        ({"clusteredIndex": {"key": {"a": 1}, "unique": True}}, 197),
        ({"clusteredIndex": {"key": {"_id": 1, "a": 1}, "unique": True}}, 197),
        ({"clusteredIndex": {"key": {}, "unique": True}}, 197),
        ({"clusteredIndex": INDEX, "size": 1000}, 6049200),
        ({"clusteredIndex": INDEX, "max": 10}, 6049204),
        ({"clusteredIndex": INDEX, "capped": True, "expireAfterSeconds": 1}, 6127800),
        ({"clusteredIndex": INDEX, "viewOn": "other"}, 6026500),
        ({"clusteredIndex": INDEX, "autoIndexId": False}, 6026501),
        ({"clusteredIndex": INDEX, "idIndex": {"key": {"_id": 1}, "name": "_id_"}}, 72),
        ({"clusteredIndex": INDEX, "expireAfterSeconds": -1}, 72),
        ({"clusteredIndex": False, "expireAfterSeconds": 1}, 72),
        ({"expireAfterSeconds": 1}, 72),
    ],
)
def test_what_cannot_be_clustered_is_refused(at: DrivenServer, body: Document, code: int) -> None:
    assert at.run("t", {"create": "c", **body})["code"] == code
    assert at.must("t", {"listCollections": 1})["cursor"]["firstBatch"] == []


def test_a_clustered_index_that_is_false_is_none(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "clusteredIndex": False})
    assert indexes(at) == [{"v": 2, "key": {"_id": 1}, "name": "_id_"}]


def test_natural_order_is_that_of_ids(filled: DrivenServer) -> None:
    in_order = [None, 1, 3, 5, 7, 9, "x"]
    assert ids(filled) == in_order
    assert ids(filled, sort={"$natural": -1}) == in_order[::-1]
    assert ids(filled, hint={"$natural": -1}) == in_order[::-1]
    assert ids(filled, hint={"$natural": -1}, filter={"_id": {"$in": [9, 1]}}) == [9, 1]
    assert ids(filled, sort={"$natural": -1}, filter={"_id": {"$in": [9, 1]}}) == [9, 1]
    assert ids(filled, filter={"a": 1}) == [1, 7]
    assert ids(filled, hint="mine") == ids(filled, hint={"_id": 1}) == in_order
    assert [row["_id"] for row in filled.must("t", {"aggregate": "c", "pipeline": [], "cursor": {}})["cursor"][
        "firstBatch"
    ]] == in_order  # fmt: skip
    reply = filled.must("t", {"findAndModify": "c", "query": {"a": {"$exists": True}}, "remove": True})
    assert reply["value"]["_id"] == 1
    assert filled.run("t", {"find": "c", "hint": {"_id": -1}})["code"] == 2


def test_natural_order_with_a_collation_is_that_of_its_keys(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "clusteredIndex": INDEX, "collation": {"locale": "en", "strength": 2}})
    at.must("t", {"insert": "c", "documents": [{"_id": name} for name in ("b", "A", "C")]})
    assert at.run("t", {"insert": "c", "documents": [{"_id": "a"}]})["writeErrors"][0]["code"] == 11000
    assert ids(at) == ["A", "b", "C"]
    assert ids(at, sort={"$natural": -1}) == ["C", "b", "A"]
    assert ids(at, filter={"_id": {"$gte": "B"}}) == ["b", "C"]
    assert plan(at)["stage"] == "COLLSCAN"
    assert plan(at, filter={"_id": {"$gte": "B"}})["stage"] == "CLUSTERED_IXSCAN"


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        ({}, {"stage": "COLLSCAN", "direction": "forward"}),
        ({"hint": "mine"}, {"stage": "COLLSCAN", "direction": "forward"}),
        ({"sort": {"_id": -1}}, {"stage": "COLLSCAN", "direction": "backward"}),
        ({"sort": {"_id": 1}, "hint": "mine"}, {"stage": "COLLSCAN", "direction": "forward"}),
        ({"hint": {"$natural": -1}}, {"stage": "COLLSCAN", "direction": "backward"}),
        ({"filter": {"_id": 5}}, {
            "stage": "CLUSTERED_IXSCAN", "filter": {"_id": {"$eq": 5}}, "direction": "forward", "minRecord": 5,
            "maxRecord": 5,
        }),
        ({"filter": {"_id": 5}, "hint": {"$natural": -1}}, {
            "stage": "CLUSTERED_IXSCAN", "filter": {"_id": {"$eq": 5}}, "direction": "backward", "minRecord": 5,
            "maxRecord": 5,
        }),
        ({"filter": {"_id": {"$gte": 3}}}, {
            "stage": "CLUSTERED_IXSCAN", "filter": {"_id": {"$gte": 3}}, "direction": "forward", "minRecord": 3,
            "maxRecord": math.inf,
        }),
        ({"filter": {"_id": {"$in": [9, 1]}}}, {
            "stage": "CLUSTERED_IXSCAN", "filter": {"_id": {"$in": [9, 1]}}, "direction": "forward", "minRecord": 1,
            "maxRecord": 9,
        }),
        ({"filter": {"_id": {"$gt": 1, "$lt": 7}}, "sort": {"_id": -1}}, {
            "stage": "CLUSTERED_IXSCAN", "filter": {"$and": [{"_id": {"$gt": 1}}, {"_id": {"$lt": 7}}]},
            "direction": "backward", "minRecord": 1, "maxRecord": 7,
        }),
        ({"hint": "mine", "min": {"_id": 3}, "max": {"_id": MaxKey()}}, {
            "stage": "CLUSTERED_IXSCAN", "direction": "forward", "minRecord": 3, "maxRecord": MaxKey(),
        }),
        ({"hint": "mine", "min": {"_id": MinKey()}, "max": {"_id": 3}}, {
            "stage": "CLUSTERED_IXSCAN", "direction": "forward", "minRecord": MinKey(), "maxRecord": 3,
        }),
        ({"filter": {"_id": {"$ne": 5}}}, {
            "stage": "COLLSCAN", "filter": {"_id": {"$ne": 5}}, "direction": "forward",
        }),
        ({"filter": {"_id": {"$gt": 5, "$lt": 3}}}, {"stage": "EOF"}),
    ],
)  # fmt: skip
def test_explain_shows_the_bounds_of_ids(filled: DrivenServer, find: Document, expected: Document) -> None:
    assert plan(filled, **find) == expected


def test_all_numbers_begin_with_nan(filled: DrivenServer) -> None:
    shown = plan(filled, filter={"_id": {"$lt": 5}})
    assert shown["maxRecord"] == 5 and math.isnan(shown["minRecord"])


def test_documents_are_examined_and_no_keys(filled: DrivenServer) -> None:
    command = {"find": "c", "filter": {"_id": {"$gte": 3, "$lte": 7}}, "projection": {"_id": 1}}
    explained = filled.must("t", {"explain": command, "verbosity": "executionStats"})
    stats = explained["executionStats"]
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]) == (0, 3, 3)
    counted = filled.must("t", {"explain": {"count": "c", "query": {"_id": {"$gte": 3}}}})
    assert counted["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "CLUSTERED_IXSCAN"
    assert counted["executionStats"]["totalDocsExamined"] == 4
    assert filled.must("t", {"count": "c", "query": {"_id": {"$gte": 3}}})["n"] == 4


def test_another_index_is_used_and_hinted(filled: DrivenServer) -> None:
    filled.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": -1}, "name": "a"}]})
    assert plan(filled, filter={"a": 1})["inputStage"]["indexName"] == "a"
    assert plan(filled, filter={"a": 1}, hint="mine")["stage"] == "COLLSCAN"
    assert ids(filled, filter={"a": 0}, hint="a") == [9, 3]
    assert ids(filled, filter={"a": 0}, hint="mine") == [3, 9]
    explained = filled.must("t", {
        "explain": {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$inc": {"a": 1}}, "hint": {"_id": 1}}]},
    })  # fmt: skip
    assert explained["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "CLUSTERED_IXSCAN"


def test_the_clustered_index_is_not_dropped(filled: DrivenServer) -> None:
    for index in ("mine", {"_id": 1}, ["mine"]):
        assert filled.run("t", {"dropIndexes": "c", "index": index})["code"] == 5979800
    assert filled.run("t", {"dropIndexes": "c", "index": "_id_"})["code"] == 27
    filled.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    assert filled.must("t", {"dropIndexes": "c", "index": "*"})["nIndexesWas"] == 1
    assert [index["name"] for index in indexes(filled)] == ["mine"]
    assert filled.must("t", {"drop": "c"})["nIndexesWas"] == 0


def test_create_indexes_takes_the_clustered_index_as_it_is(filled: DrivenServer) -> None:
    def create(name: str, *specs: Document) -> Document:
        reply: Document = filled.run("t", {"createIndexes": name, "indexes": list(specs)})
        return reply

    assert create("c", {"key": {"_id": 1}, "name": "other"})["note"] == "all indexes already exist"
    assert create("c", indexes(filled)[0])["note"] == "all indexes already exist"
    clustered = {"clustered": True, "unique": True}
    assert create("c", {"key": {"a": 1}, "name": "a", **clustered})["code"] == 6243700
    assert create("c", {"key": {"a": 1}, "name": "a", "unique": True, "clustered": False})["code"] == 6492800
    assert create("c", {"key": {"a": 1}, "name": "mine"})["code"] == 86
    assert create("new", {"key": {"_id": 1}, "name": "_id_", **clustered})["code"] == 6100900
    filled.must("t", {"create": "plain"})
    assert create("plain", {"key": {"_id": 1}, "name": "_id_", **clustered})["code"] == 6243700
    assert create("c", {"key": {"_id": "hashed"}, "name": "h"})["numIndexesAfter"] == 2


def test_coll_mod_changes_the_age(filled: DrivenServer) -> None:
    filled.must("t", {"collMod": "c", "expireAfterSeconds": 10})
    assert options(filled)["expireAfterSeconds"] == indexes(filled)[0]["expireAfterSeconds"] == 10
    filled.must("t", {"collMod": "c", "expireAfterSeconds": "off"})
    assert "expireAfterSeconds" not in options(filled) and "expireAfterSeconds" not in indexes(filled)[0]
    for value, code in (("on", 72), (-1, 72), (True, 14)):
        assert filled.run("t", {"collMod": "c", "expireAfterSeconds": value})["code"] == code
    assert filled.run("t", {"collMod": "c", "index": {"name": "mine", "hidden": True}})["code"] == 6011800
    filled.must("t", {"create": "plain"})
    assert filled.run("t", {"collMod": "plain", "expireAfterSeconds": 10})["code"] == 72


def test_statistics_do_not_count_the_collection_as_an_index(filled: DrivenServer) -> None:
    stats = filled.must("t", {"collStats": "c"})
    assert (stats["nindexes"], stats["indexSizes"], stats["totalIndexSize"]) == (1, {}, 0)
    used = filled.must("t", {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}})
    assert used["cursor"]["firstBatch"] == []
    report = filled.must("t", {"validate": "c"})
    assert (report["valid"], report["nrecords"], report["nIndexes"]) == (True, 7, 1)


@pytest.mark.parametrize("to", ["t.d", "u.d"])
def test_a_renamed_collection_stays_clustered(filled: DrivenServer, to: str) -> None:
    filled.must("admin", {"renameCollection": "t.c", "to": to})
    database, _, name = to.partition(".")
    assert filled.must(database, {"listIndexes": name})["cursor"]["firstBatch"][0]["name"] == "mine"
    found = filled.must(database, {"find": name})["cursor"]["firstBatch"]
    assert [row["_id"] for row in found] == [None, 1, 3, 5, 7, 9, "x"]


def test_out_keeps_the_clustered_index_of_its_target(filled: DrivenServer) -> None:
    filled.must("t", {"insert": "source", "documents": [{"_id": 4}, {"_id": 2}]})
    filled.must("t", {"aggregate": "source", "pipeline": [{"$out": "c"}], "cursor": {}})
    assert options(filled)["clusteredIndex"]["name"] == "mine"
    assert ids(filled) == [2, 4]
    filled.must("t", {"aggregate": "source", "pipeline": [{"$set": {"_id": 3}}, {"$merge": "c"}], "cursor": {}})
    assert ids(filled) == [2, 3, 4]


def test_the_oplog_names_the_clustered_index(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "clusteredIndex": INDEX, "expireAfterSeconds": 60})
    found = at.must("local", {"find": "oplog.rs", "filter": {"o.create": "c"}})["cursor"]["firstBatch"]
    assert found[0]["o"] == {"create": "c", "clusteredIndex": STORED, "expireAfterSeconds": 60}
    at.must("admin", {"applyOps": [{"op": "c", "ns": "u.$cmd", "o": found[0]["o"]}]})
    assert at.must("u", {"listIndexes": "c"})["cursor"]["firstBatch"][0]["clustered"] is True


def test_a_transaction_creates_a_clustered_collection(at: DrivenServer) -> None:
    from bson import Binary

    fields = {"lsid": {"id": Binary(b"l" * 16, 4)}, "txnNumber": Int64(1), "autocommit": False}
    at.must("t", {"create": "c", "clusteredIndex": INDEX, "startTransaction": True, **fields})
    at.must("t", {"insert": "c", "documents": [{"_id": 2}, {"_id": 1}], **fields})
    within = at.must("t", {"find": "c", **fields})["cursor"]["firstBatch"]
    assert [row["_id"] for row in within] == [1, 2]
    at.must("admin", {"commitTransaction": 1, **fields})
    assert ids(at) == [1, 2] and indexes(at)[0]["clustered"] is True


def test_a_record_is_the_key_of_the_id(filled: DrivenServer) -> None:
    found = filled.must("t", {"find": "c", "filter": {"a": 1}, "showRecordId": True})["cursor"]["firstBatch"]
    assert [row["_id"] for row in found] == [1, 7]
    assert all(type(row["$recordId"]) is bytes for row in found)
