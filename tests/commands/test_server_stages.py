"""Reports of the server about itself in pipelines: sizes, indexes, sessions, and operations."""

from __future__ import annotations

import threading
import time
from typing import Any

import pymongo
import pytest
from pymongo import CursorType
from pymongo.errors import OperationFailure

import headrace


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri, appname="watcher") as client:
        client.t.c.insert_many([{"_id": number, "x": "y" * 100} for number in range(10)])
        client.t.c.create_index("x")
        yield client


def one(source: Any, *pipeline: dict[str, Any]) -> Any:
    (result,) = source.aggregate(list(pipeline))
    return result


def test_coll_stats_reports_the_size_and_the_count(client: Any) -> None:
    result = one(client.t.c, {"$collStats": {"count": {}, "storageStats": {"scale": 10}}})
    assert result["count"] == 10 and result["ns"] == "t.c"
    assert result["storageStats"]["count"] == 10 and result["storageStats"]["scaleFactor"] == 10
    assert 100 < result["storageStats"]["size"] < 200
    assert one(client.t.c, {"$collStats": {"count": {}}}, {"$project": {"_id": 0, "count": 1}}) == {"count": 10}


@pytest.mark.parametrize(
    ("spec", "code"),
    [({"queryExecStats": 1}, 14), ({"nonsense": {}}, 40415), ({"count": 1}, 14)],
)
def test_other_options_are_refused(client: Any, spec: dict[str, Any], code: int) -> None:
    with pytest.raises(OperationFailure) as caught:
        client.t.c.aggregate([{"$collStats": spec}])
    assert caught.value.code == code


def test_walks_through_a_collection_are_counted(client: Any) -> None:
    def scans() -> tuple[int, int]:
        shown = one(client.t.walked, {"$collStats": {"queryExecStats": {}}})["queryExecStats"]["collectionScans"]
        return shown["total"], shown["nonTailable"]

    client.t.create_collection("walked", capped=True, size=4096)
    client.t.walked.insert_many([{"_id": number, "x": number} for number in range(3)])
    assert scans() == (0, 0)
    assert len(list(client.t.walked.find({"x": {"$gt": 0}}))) == 2
    client.t.walked.update_one({"x": 1}, {"$set": {"x": 5}})
    assert client.t.walked.find_one({"_id": 1}) == {"_id": 1, "x": 5}
    assert scans() == (2, 2)
    assert next(client.t.walked.find(cursor_type=CursorType.TAILABLE))["_id"] == 0
    assert scans() == (3, 2)


@pytest.mark.parametrize("option", ["count", "queryExecStats"])
def test_counting_a_collection_that_is_not_there_is_an_error(client: Any, option: str) -> None:
    with pytest.raises(OperationFailure) as caught:
        client.t.nowhere.aggregate([{"$collStats": {option: {}}}])
    assert caught.value.code == 26


def test_index_stats_lists_the_indexes(client: Any) -> None:
    result = list(client.t.c.aggregate([{"$indexStats": {}}, {"$sort": {"name": 1}}]))
    assert [(item["name"], item["key"]) for item in result] == [("_id_", {"_id": 1}), ("x_1", {"x": 1})]
    assert result[1]["accesses"]["ops"] == 0
    before = result[0]["accesses"]["ops"]
    client.t.c.find_one({"_id": 1})
    client.t.c.update_one({"_id": 1}, {"$set": {"y": 1}})
    list(client.t.c.find({"_id": {"$gt": 5}}))
    list(client.t.c.find().sort("_id", -1).limit(1))
    client.t.c.count_documents({"_id": {"$gt": 5}})
    client.t.c.delete_one({"_id": 12345})
    after = next(item for item in client.t.c.aggregate([{"$indexStats": {}}]) if item["name"] == "_id_")
    assert after["accesses"]["ops"] == before + 6


@pytest.mark.parametrize("output", [{"$out": "other"}, {"$merge": "other"}])
def test_a_pipeline_that_writes_uses_an_index_once(client: Any, output: dict[str, Any]) -> None:
    used = client.used[next(iter(output)).strip("$")]
    used.insert_one({"x": 1})
    used.create_index("x")
    used.aggregate([{"$match": {"x": 1}}, output])
    (index,) = used.aggregate([{"$indexStats": {}}, {"$match": {"name": "x_1"}}])
    assert index["accesses"]["ops"] == 1


def test_list_local_sessions_has_at_least_the_one_that_asks(client: Any) -> None:
    with client.start_session() as session:
        result = list(client.t.aggregate([{"$listLocalSessions": {}}], session=session))
        assert session.session_id["id"] in [item["_id"]["id"] for item in result]


def waiting(client: Any) -> list[Any]:
    stages = [{"$currentOp": {"idleCursors": True}}, {"$match": {"op": "getmore"}}]
    return list(client.admin.aggregate(stages))


def wait_for(condition: Any) -> Any:
    end = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < end
    return result


def test_a_get_more_that_waits_is_seen_and_can_be_killed(client: Any) -> None:
    failures: list[Any] = []
    with client.t.c.watch(max_await_time_ms=60_000) as stream:

        def watch() -> None:
            try:
                stream.try_next()
            except OperationFailure as failure:
                failures.append(failure)

        watcher = threading.Thread(target=watch)
        watcher.start()
        (operation,) = wait_for(lambda: waiting(client))
        assert operation["type"] == "op" and operation["active"] and operation["appName"] == "watcher"
        assert operation["ns"] == "t.c" and operation["command"]["collection"] == "c"
        assert operation["desc"] == f"conn{operation['opid']}"
        client.t.c.insert_one({"_id": "ends the wait"})
        watcher.join(60)
        assert not waiting(client) and not failures


def idle_streams(client: Any) -> list[Any]:
    stages = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"type": "idleCursor", "changeStream": {"$exists": True}}},
    ]
    return list(client.admin.aggregate(stages))


def test_an_idle_stream_shows_its_command_and_what_it_has_not_read(client: Any) -> None:
    pipeline = [{"$match": {"operationType": "insert"}}]
    with client.t.idle.watch(pipeline, max_await_time_ms=1, comment="mine") as stream:
        (before,) = idle_streams(client)
        client.t.idle.insert_many([{"_id": 1}, {"_id": 2}])
        (unread,) = idle_streams(client)
        assert stream.next()["documentKey"] == {"_id": 1}
        (after,) = idle_streams(client)
    command = before["cursor"]["originatingCommand"]
    assert command["aggregate"] == "idle" and command["pipeline"][1:] == pipeline and command["comment"] == "mine"
    assert "lsid" not in command and "$clusterTime" not in command
    assert before["appName"] == "watcher" and before["client"].startswith("127.0.0.1:") and before["ns"] == "t.idle"
    assert before["cursor"]["tailable"] and before["cursor"]["awaitData"]
    assert before["changeStream"]["caughtUp"] and before["changeStream"]["reads"] == "memory"
    assert not unread["changeStream"]["caughtUp"] and unread["changeStream"]["lagSecs"] < 60
    assert after["changeStream"]["caughtUp"]
    assert (before["cursor"]["nDocsReturned"], after["cursor"]["nDocsReturned"]) == (0, 2)
    assert after["cursor"]["nBatchesReturned"] == before["cursor"]["nBatchesReturned"] + 1
    assert after["changeStream"]["position"] > before["changeStream"]["position"]
    assert idle_streams(client) == []


def test_a_stream_that_is_waited_for_is_no_idle_cursor(client: Any) -> None:
    with client.t.c.watch(max_await_time_ms=60_000) as stream:
        watcher = threading.Thread(target=stream.try_next)
        watcher.start()
        (operation,) = wait_for(lambda: waiting(client))
        assert (
            operation["changeStream"]["caughtUp"] and operation["cursor"]["cursorId"] == operation["command"]["getMore"]
        )
        assert idle_streams(client) == []
        client.t.c.insert_one({})
        watcher.join(60)


def test_of_a_long_command_the_cursor_shows_the_name(client: Any) -> None:
    with client.t.c.watch([{"$match": {"x": {"$ne": "x" * 3000}}}]):
        (idle,) = idle_streams(client)
    assert list(idle["cursor"]["originatingCommand"]) == ["aggregate", "$truncated"]


def test_kill_op_ends_a_wait(client: Any) -> None:
    coll = client.k.create_collection("capped", capped=True, size=4096)
    coll.insert_one({})
    cursor = coll.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(60_000)
    next(cursor)
    failures: list[Any] = []

    def tail() -> None:
        try:
            cursor.next()
        except OperationFailure as failure:
            failures.append(failure.code)

    tailer = threading.Thread(target=tail)
    tailer.start()
    (operation,) = wait_for(lambda: waiting(client))
    assert client.admin.command("killOp", op=operation["opid"])["info"] == "attempting to kill op"
    tailer.join(60)
    assert failures == [11601]


def test_current_op_has_a_filter_and_shows_transactions_that_are_open(client: Any) -> None:
    (operation,) = client.admin.command({"currentOp": 1, "command.currentOp": 1})["inprog"]
    assert operation["ns"] == "admin.$cmd" and operation["op"] == "command"
    assert client.admin.command({"currentOp": 1, "secs_running": {"$gt": 1000}})["inprog"] == []
    with client.start_session() as session, session.start_transaction():
        client.t.c.find_one({}, session=session)
        (idle,) = client.admin.command({"currentOp": 1, "type": "idleSession"})["inprog"]
        assert idle["lsid"]["id"] == session.session_id["id"] and not idle["active"]
        assert idle["transaction"]["parameters"]["autocommit"] is False


@pytest.mark.parametrize(("command", "code"), [({"killOp": 1}, 4), ({"killOp": 1, "op": "x"}, 14)])
def test_kill_op_wants_a_number(client: Any, command: dict[str, Any], code: int) -> None:
    with pytest.raises(OperationFailure) as caught:
        client.admin.command(command)
    assert caught.value.code == code


SOURCES = {
    "$collStats": ("t", "c", {"$collStats": {"count": {}}}),
    "$currentOp": ("admin", 1, {"$currentOp": {}}),
    "$indexStats": ("t", "c", {"$indexStats": {}}),
    "$listLocalSessions": ("t", 1, {"$listLocalSessions": {}}),
    "$listSessions": ("config", "system.sessions", {"$listSessions": {}}),
    "$planCacheStats": ("t", "cached", {"$planCacheStats": {}}),
}
OUTPUTS = {
    "$merge": {"$merge": {"into": {"db": "copies", "coll": "made"}}},
    "$out": {"$out": {"db": "copies", "coll": "made"}},
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_documents_of_a_server_stage_are_written(client: Any, source: str, output: str) -> None:
    database, collection, stage = SOURCES[source]
    client.drop_database("copies")
    client.t.cached.drop()
    with client.start_session() as session:
        client.t.cached.insert_many([{"x": number, "y": -number} for number in range(10)], session=session)
    client.t.cached.create_index("x")
    client.t.cached.create_index("y")
    assert len(list(client.t.cached.find({"x": {"$gt": 5}, "y": {"$lt": 0}}))) == 4
    body = {"aggregate": collection, "cursor": {}}
    stages = [stage, {"$limit": 1}, {"$set": {"_id": 7}}, {"$project": {"_id": 1}}]
    read = client[database].command(body | {"pipeline": stages})["cursor"]["firstBatch"]
    written = client[database].command(body | {"pipeline": [*stages, OUTPUTS[output]]})["cursor"]
    assert written["firstBatch"] == [] and written["id"] == 0
    assert list(client.copies.made.find()) == read == [{"_id": 7}]


def joined(stages: list[dict[str, Any]], of: str = "c") -> list[list[dict[str, Any]]]:
    """Pipelines over `one`, of one document, that add what the stages give over another collection."""
    return [
        [{"$lookup": {"from": of, "pipeline": stages, "as": "x"}}, {"$unwind": "$x"}, {"$replaceWith": "$x"}],
        [{"$unionWith": {"coll": of, "pipeline": stages}}, {"$match": {"_id": {"$ne": "one"}}}],
    ]


@pytest.mark.parametrize("stage", [{"$collStats": {"count": {}}}, {"$indexStats": {}}, {"$planCacheStats": {}}])
def test_a_view_that_begins_with_what_describes_a_collection_is_read_by_every_command(
    client: Any, stage: dict[str, Any]
) -> None:
    client.t.create_collection("described", viewOn="c", pipeline=[stage])
    try:
        expected = len(list(client.t.c.aggregate([stage])))
        assert client.t.command("count", "described")["n"] == expected
        assert len(list(client.t.described.find())) == len(list(client.t.described.aggregate([]))) == expected
        names = client.t.described.distinct("name")
        assert names == (["_id_", "x_1"] if "$indexStats" in stage else [])
        if "$collStats" in stage:
            found = client.t.described.find_one()
            assert (found["ns"], found["count"]) == ("t.c", client.t.c.estimated_document_count())
    finally:
        client.t.drop_collection("described")


@pytest.fixture(scope="module")
def beside(client: Any) -> Any:
    client.t.one.insert_one({"_id": "one"})
    client.t.create_collection("plain", viewOn="c")
    client.t.create_collection("matched", viewOn="c", pipeline=[{"$match": {}}])
    return client.t


@pytest.mark.parametrize("of", ["c", "plain"])
def test_a_joined_pipeline_may_begin_with_what_describes_its_collection(beside: Any, of: str) -> None:
    client_of = beside.c
    client_of.find_one({"_id": 3, "x": "y"})
    sizes = joined([{"$collStats": {"count": {}}}, {"$project": {"_id": 0, "ns": 1, "count": 1}}], of)
    indexes = joined([{"$indexStats": {}}, {"$sort": {"name": 1}}, {"$project": {"_id": 0, "name": 1}}], of)
    plans = joined([{"$planCacheStats": {}}, {"$count": "n"}], of)
    expected = list(client_of.aggregate([{"$planCacheStats": {}}, {"$count": "n"}]))
    for pipeline in sizes:
        assert list(beside.one.aggregate(pipeline)) == [{"ns": "t.c", "count": client_of.count_documents({})}]
    for pipeline in indexes:
        assert list(beside.one.aggregate(pipeline)) == [{"name": "_id_"}, {"name": "x_1"}]
    for pipeline in plans:
        assert list(beside.one.aggregate(pipeline)) == expected


@pytest.mark.parametrize(
    ("stage", "of", "code"),
    [
        ({"$collStats": {"count": {}}}, "matched", 40602), ({"$indexStats": {}}, "matched", 40602),
        ({"$collStats": {"count": {}}}, "nowhere", 26), ({"$collStats": {"nonsense": {}}}, "c", 40415),
    ],
)  # fmt: skip
def test_a_joined_pipeline_has_the_errors_of_what_describes(
    beside: Any, stage: dict[str, Any], of: str, code: int
) -> None:
    for pipeline in joined([stage], of):
        with pytest.raises(OperationFailure) as caught:
            list(beside.one.aggregate(pipeline))
        assert caught.value.code == code


def test_a_stage_that_describes_is_the_first_of_a_joined_pipeline_and_not_in_a_facet(beside: Any) -> None:
    for pipeline, code in (
        *((pipeline, 40602) for pipeline in joined([{"$match": {}}, {"$indexStats": {}}])),
        ([{"$facet": {"x": [{"$indexStats": {}}]}}], 40600),
    ):
        with pytest.raises(OperationFailure) as caught:
            beside.one.aggregate(pipeline)
        assert caught.value.code == code


def test_a_lookup_with_variables_describes_for_each_document(beside: Any) -> None:
    stages = [{"$collStats": {"count": {}}}, {"$project": {"_id": 0, "count": 1, "mine": "$$mine"}}]
    lookup = {"$lookup": {"from": "c", "let": {"mine": "$_id"}, "pipeline": stages, "as": "x"}}
    found = list(beside.c.aggregate([{"$match": {"_id": {"$lt": 2}}}, lookup, {"$sort": {"_id": 1}}]))
    count = beside.c.count_documents({})
    assert [item["x"] for item in found] == [[{"count": count, "mine": 0}], [{"count": count, "mine": 1}]]
