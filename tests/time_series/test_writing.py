"""Time series: writes with their errors, reads by way of other collections, and what streams see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
NOW = 1_700_000_000_000
SESSION = {"id": Binary(bytes(16), 4)}


def at_second(second: int) -> DatetimeMS:
    return DatetimeMS(NOW + second * 1000)


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock(NOW)) as server:
        server.must("t", {"create": "c", "timeseries": {"timeField": "t", "metaField": "m"}})
        yield server


def found(at: DrivenServer, collection: str = "c", **find: Any) -> list[Document]:
    made: list[Document] = at.must("t", {"find": collection, **find})["cursor"]["firstBatch"]
    return made


def aggregated(at: DrivenServer, collection: str, *stages: Document) -> list[Document]:
    made: list[Document] = at.must("t", {"aggregate": collection, "pipeline": [*stages], "cursor": {}})["cursor"][
        "firstBatch"
    ]
    return made


def test_a_cursor_returns_a_measurement_once_though_its_bucket_takes_more(
    at: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has the last time of each bucket: one that a cursor has read comes again with a later time."""
    monkeypatch.setattr(limits, "VIEW_CHUNK_COUNT", 1)
    at.must("t", {"insert": "c", "documents": [{"_id": n, "m": 1, "t": at_second(n)} for n in range(3)]})
    reply = at.must("t", {"find": "c", "filter": {"m": 1}, "hint": {"m": 1, "t": 1}, "batchSize": 1})
    ids = [document["_id"] for document in reply["cursor"]["firstBatch"]]
    at.must("t", {"insert": "c", "documents": [{"_id": 3, "m": 1, "t": at_second(3)}]})
    reply = at.must("t", {"getMore": Int64(reply["cursor"]["id"]), "collection": "c"})
    assert ids + [document["_id"] for document in reply["cursor"]["nextBatch"]] == [0, 1, 2]


MIXED = [{"_id": 0, "t": at_second(0)}, {"_id": 1}, {"_id": 2, "t": at_second(1)}, {"_id": 3, "t": 5}]


@pytest.mark.parametrize(("ordered", "ids", "errors"), [(True, [0], [1]), (False, [0, 2], [1, 3])])
def test_each_document_without_a_date_is_an_error(
    at: DrivenServer, ordered: bool, ids: list[int], errors: list[int]
) -> None:
    reply = at.run("t", {"insert": "c", "documents": MIXED, "ordered": ordered})
    assert isinstance(reply, dict) and reply["n"] == len(ids)
    assert [(item["index"], item["code"]) for item in reply["writeErrors"]] == [(index, 2) for index in errors]
    assert [item["_id"] for item in found(at)] == ids


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("key", "refused", "code"),
    [({"m": "hashed"}, [1], 16766), ({"m.a": 1, "m.b": 1}, {"a": [1], "b": [2]}, 171), ({"m": "2dsphere"}, "x", 16755)],
)
def test_a_source_that_no_index_can_hold_is_an_error_of_its_measurements(
    at: DrivenServer, key: Document, refused: Any, code: int, ordered: bool
) -> None:
    """The measurements of a source go into one bucket. No measurement after the first error is stored if `ordered`."""
    at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i"}]})
    sources: list[Any] = [[0, 1] if "2dsphere" in key.values() else 1, refused, None, refused, 1.5]
    sources[4] = sources[0]
    documents = [{"_id": n, "t": at_second(n), **({} if m is None else {"m": m})} for n, m in enumerate(sources)]
    reply: Any = at.run("t", {"insert": "c", "documents": documents, "ordered": ordered})
    errors = [(item["index"], item["code"]) for item in reply["writeErrors"]]
    assert (reply["n"], errors) == ((1, [(1, code)]) if ordered else (3, [(1, code), (3, code)]))
    assert sorted(item["_id"] for item in found(at)) == ([0] if ordered else [0, 2, 4])


def test_a_document_without_id_gets_one_and_ids_are_not_unique(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"t": at_second(0)}, {"_id": 1, "t": at_second(0)}]})
    at.must("t", {"insert": "c", "documents": [{"_id": 1, "t": at_second(0)}]})
    assert [type(item["_id"]) for item in found(at)] == [ObjectId, int, int]


def test_bulk_writes_go_to_it(at: DrivenServer) -> None:
    operations = [
        {"insert": 0, "document": {"_id": 1, "t": at_second(1), "m": 1}}, {"insert": 0, "document": {"_id": 2}},
        {"insert": 0, "document": {"_id": 3, "t": at_second(2), "m": 1}},
        {"update": 0, "filter": {"m": 1}, "updateMods": {"$set": {"m": 2}}, "multi": True},
        {"update": 0, "filter": {"m": 2}, "updateMods": {"$set": {"m": 3}}, "multi": False},
        {"delete": 0, "filter": {"_id": 1}, "multi": False},
    ]  # fmt: skip
    reply = at.must("admin", {"bulkWrite": 1, "ops": operations, "nsInfo": [{"ns": "t.c"}], "ordered": False})
    results = reply["cursor"]["firstBatch"]
    assert [item.get("code") for item in results] == [None, 2, None, None, 72, None]
    assert [(reply["nInserted"], reply["nMatched"], reply["nDeleted"], reply["nErrors"])] == [(2, 2, 1, 2)]
    assert [(item["_id"], item["m"]) for item in found(at)] == [(3, 2)]


def test_a_retried_insert_is_done_once(at: DrivenServer) -> None:
    session = {"lsid": SESSION, "txnNumber": Int64(1)}
    documents = [{"_id": number, "t": at_second(number)} for number in range(3)]
    for _ in range(2):
        assert at.run("t", {"insert": "c", "documents": documents, **session})["n"] == 3  # type: ignore[index]
    assert len(found(at)) == 3


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ({"q": {"m": 1}, "u": {"$set": {"m": 2}}}, "non-multi"),
        ({"q": {"m": 1}, "u": {"$set": {"m": 2}}, "multi": True, "upsert": True}, "upsert"),
        ({"q": {"v": 1}, "u": {"$set": {"m": 2}}, "multi": True}, "querying on a field that is not the metaField 'm'"),
        ({"q": {"$or": [{"m": 1}, {"t": 1}]}, "u": {"$set": {"m": 2}}, "multi": True}, "querying on a field"),
        ({"q": {"$expr": {"$eq": ["$v", 1]}}, "u": {"$set": {"m": 2}}, "multi": True}, "querying on a field"),
        ({"q": {"m": 1}, "u": {"$set": {"v": 2}}, "multi": True}, "updates a field that is not the metaField 'm'"),
        ({"q": {"m": 1}, "u": {"$rename": {"m": "v"}}, "multi": True}, "updates a field"),
        ({"q": {"m": 1}, "u": [{"$set": {"m": 2}}], "multi": True}, "pipeline update"),
    ],
)  # fmt: skip
def test_other_updates_than_of_the_source_are_refused(at: DrivenServer, statement: Document, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        at.must("t", {"update": "c", "updates": [statement]})
    assert refused.value.code == 72


def test_an_update_changes_the_source_of_all_its_measurements(at: DrivenServer) -> None:
    documents = [{"_id": number, "t": at_second(number), "m": {"a": number % 2, "b": 0}} for number in range(6)]
    at.must("t", {"insert": "c", "documents": documents})
    change = {"q": {"m.a": 1, "$expr": {"$eq": ["$m.b", 0]}}, "u": {"$inc": {"m.b": 5}}, "multi": True}
    reply = at.must("t", {"update": "c", "updates": [change]})
    assert (reply["n"], reply["nModified"]) == (3, 3)
    assert {item["_id"]: item["m"]["b"] for item in found(at)} == dict(zip(range(6), (0, 5) * 3))
    at.must("t", {"insert": "c", "documents": documents[1:2]})
    assert len(found(at, filter={"m": {"a": 1, "b": 0}})) == 1


def test_one_measurement_is_removed_and_answered(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": number, "t": at_second(number), "m": 1} for number in range(3)]})
    find = {"findAndModify": "c", "query": {"t": {"$gt": at_second(0)}}, "remove": True, "fields": {"m": 1}}
    session = {"lsid": SESSION, "txnNumber": Int64(1)}
    for _ in range(2):
        reply = at.must("t", {**find, **session})
        assert reply["value"] == {"_id": 1, "m": 1} and reply["lastErrorObject"] == {"n": 1}
    assert [item["_id"] for item in found(at)] == [0, 2]
    assert at.must("t", {**find, "query": {"m": 2}})["value"] is None


def test_without_a_source_no_update_is_taken(at: DrivenServer) -> None:
    at.must("t", {"create": "d", "timeseries": {"timeField": "t"}})
    with pytest.raises(CommandError, match="does not have a metaField"):
        at.must("t", {"update": "d", "updates": [{"q": {}, "u": {"$set": {"m": 2}}, "multi": True}]})


@pytest.mark.parametrize(
    "write",
    [
        {"insert": "c", "documents": [{"t": at_second(0)}]}, {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
        {"update": "c", "updates": [{"q": {"m": 1}, "u": {"$set": {"m": 2}}, "multi": True}]},
        {"create": "d", "timeseries": {"timeField": "t"}},
    ],
)  # fmt: skip
def test_transactions_do_not_write_to_it(at: DrivenServer, write: Document) -> None:
    at.must("t", {"insert": "c", "documents": [{"t": at_second(0), "m": 1}]})
    session = {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False}
    reply = at.run("t", {**write, **session, "startTransaction": True})
    assert isinstance(reply, dict)
    assert (reply if reply["ok"] == 0 else reply["writeErrors"][0])["code"] == 263


def test_other_reads_find_its_measurements(at: DrivenServer) -> None:
    documents = [{"_id": number, "t": at_second(number), "m": number % 2} for number in range(6)]
    at.must("t", {"insert": "c", "documents": documents})
    at.must("t", {"insert": "sources", "documents": [{"_id": 0, "name": "a"}, {"_id": 1, "name": "b"}]})
    at.must("t", {"create": "late", "viewOn": "c", "pipeline": [{"$match": {"t": {"$gte": at_second(3)}}}]})
    assert [item["_id"] for item in found(at, "late", filter={"m": 1})] == [3, 5]
    assert sorted(at.must("t", {"distinct": "c", "key": "m"})["values"]) == [0, 1]
    joined = {"$lookup": {"from": "c", "localField": "_id", "foreignField": "m", "as": "all"}}
    assert [len(item["all"]) for item in aggregated(at, "sources", joined)] == [3, 3]
    assert len(aggregated(at, "sources", {"$unionWith": "c"})) == 8
    newest = found(at, sort={"t": -1}, limit=2, projection={"_id": 1})
    assert newest == [{"_id": 5}, {"_id": 4}]
    hinted = found(at, filter={"m": 1, "t": {"$gte": at_second(2)}}, hint={"m": 1, "t": 1})
    assert [item["_id"] for item in hinted] == [3, 5]
    with pytest.raises(CommandError, match="hint"):
        found(at, hint={"v": 1})


def test_a_filter_on_the_time_reads_only_buckets_that_may_match(at: DrivenServer) -> None:
    documents = [{"t": at_second(3600 * hour), "m": hour % 3} for hour in range(300)]
    at.must("t", {"insert": "c", "documents": documents})
    for spec in (
        {"t": {"$gte": at_second(3600 * 100), "$lt": at_second(3600 * 103)}},
        {"m": 1, "t": {"$gt": at_second(3600 * 100), "$lt": at_second(3600 * 105)}},
    ):
        explained = at.must("t", {"explain": {"find": "c", "filter": spec}, "verbosity": "executionStats"})
        assert explained["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"] <= 6


def events(at: DrivenServer, opened: Document, database: str) -> list[Document]:
    more = {"getMore": opened["cursor"]["id"], "collection": opened["cursor"]["ns"].partition(".")[2]}
    reply = at.run(database, more, time_is_up=True)
    assert isinstance(reply, dict)
    made: list[Document] = reply["cursor"]["nextBatch"]
    return made


def test_streams_show_nothing_of_buckets(at: DrivenServer) -> None:
    opened = []
    for expanded in (False, True):
        stage = {"$changeStream": {"showExpandedEvents": expanded}}
        opened.append(at.must("t", {"aggregate": 1, "pipeline": [stage], "cursor": {}}))
    at.must("t", {"create": "d", "timeseries": {"timeField": "t", "metaField": "m"}})
    at.must("t", {"insert": "d", "documents": [{"t": at_second(number), "m": 1} for number in range(40)]})
    at.must("t", {"update": "d", "updates": [{"q": {"m": 1}, "u": {"$set": {"m": 2}}, "multi": True}]})
    at.must("t", {"createIndexes": "d", "indexes": [{"key": {"t": 1}, "name": "t_1"}]})
    at.must("t", {"delete": "d", "deletes": [{"q": {"t": {"$gt": at_second(5)}}, "limit": 0}]})
    at.must("t", {"drop": "d"})
    at.must("t", {"insert": "plain", "documents": [{"_id": 1}]})
    assert [item["operationType"] for item in events(at, opened[0], "t")] == ["insert"]
    shown = [item for item in events(at, opened[1], "t") if item["ns"]["coll"] == "d"]
    assert [(item["operationType"], item.get("nsType")) for item in shown] == [("create", "timeseries"), ("drop", None)]


def test_an_applied_oplog_makes_the_same_collection(at: DrivenServer) -> None:
    documents = [{"_id": number, "t": at_second(number), "m": number % 2, "v": number / 2} for number in range(60)]
    for document in documents:
        at.must("t", {"insert": "c", "documents": [document]})
    at.must("t", {"collMod": "c", "timeseries": {"granularity": "minutes"}, "expireAfterSeconds": 60})
    at.must("t", {"update": "c", "updates": [{"q": {"m": 1}, "u": {"$set": {"m": 2}}, "multi": True}]})
    at.must("t", {"delete": "c", "deletes": [{"q": {"v": {"$lt": 3}}, "limit": 0}]})
    log = at.must("local", {"find": "oplog.rs", "filter": {"ns": {"$regex": "^t\\."}}, "batchSize": 100_000})
    entries = log["cursor"]["firstBatch"]
    with DrivenServer() as other:
        for entry in entries:
            operation = {name: value for name, value in entry.items() if name in ("op", "ns", "o", "o2", "ui")}
            other.must("admin", {"applyOps": [operation]})
        assert found(other, batchSize=1000) == found(at, batchSize=1000)
        listed = [server.must("t", {"listCollections": 1, "filter": {"name": "c"}}) for server in (at, other)]
        assert listed[0]["cursor"]["firstBatch"] == listed[1]["cursor"]["firstBatch"]
        at.must("t", {"drop": "c"})
        last = at.must("local", {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 2})["cursor"]["firstBatch"]
        for entry in reversed(last):
            operation = {name: value for name, value in entry.items() if name in ("op", "ns", "o", "o2", "ui")}
            other.must("admin", {"applyOps": [operation]})
        names = other.must("t", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"]
        assert [item["name"] for item in names] == ["system.views"]


def test_a_cursor_meets_each_measurement_once_although_buckets_move_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that takes a measurement moves in an index on its last time, also behind a cursor."""
    monkeypatch.setattr(limits, "VIEW_CHUNK_COUNT", 1)
    start = datetime(2026, 1, 1)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"create": "m", "timeseries": {"timeField": "t", "metaField": "a"}})
        rows = [{"_id": n, "a": n, "t": start + timedelta(minutes=n)} for n in range(6)]
        at.must("t", {"insert": "m", "documents": rows})
        at.must("t", {"createIndexes": "m", "indexes": [{"key": {"t": -1}, "name": "t"}]})
        query = {"filter": {"t": {"$gte": start}}, "hint": "t", "batchSize": 1}
        cursor = at.must("t", {"find": "m", **query})["cursor"]
        found = list(cursor["firstBatch"])
        for number in range(20):
            late = {"_id": 100 + number, "a": number % 6, "t": start + timedelta(minutes=20 + number)}
            at.must("t", {"insert": "m", "documents": [late]})
            if not cursor["id"]:
                break
            cursor = at.must("t", {"getMore": cursor["id"], "collection": "m", "batchSize": 1})["cursor"]
            found += cursor["nextBatch"]
        seen = [row["_id"] for row in found if row["_id"] < 100]
        assert sorted(seen) == list(range(6))
