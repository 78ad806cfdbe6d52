"""Read concerns: what is refused, what waits, and what a snapshot reads while others write."""

from __future__ import annotations

import time
from typing import Any

import pymongo
import pytest
from bson import Timestamp
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

import headrace
from headrace.dispatch.concerns.read_concern import LEVELS
from headrace.dispatch.transactions import retire
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        yield client


@pytest.fixture(autouse=True)
def three(client: Any) -> None:
    client.drop_database("t")
    client.t.c.insert_many([{"_id": key, "x": 1} for key in range(3)])


def code_of(client: Any, command: dict[str, Any]) -> int:
    with pytest.raises(OperationFailure) as caught:
        client.t.command(command)
    return int(caught.value.code or 0)


def find(client: Any, at: Any = None, **options: Any) -> dict[str, Any]:
    concern = {"level": "snapshot"} if at is None else {"level": "snapshot", "atClusterTime": at}
    return dict(client.t.command({"find": "c", "readConcern": concern, "sort": {"_id": 1}, **options}))["cursor"]


@pytest.mark.parametrize(
    ("concern", "code"),
    [
        ({"level": "none"}, 2),
        ({"level": 1}, 14),
        ({"lvel": "local"}, 40415),
        ({"level": "local", "atClusterTime": Timestamp(1, 1)}, 72),
        ({"level": "snapshot", "atClusterTime": 5}, 14),
        ({"level": "snapshot", "atClusterTime": Timestamp(0, 0)}, 72),
        ({"level": "snapshot", "atClusterTime": Timestamp(1, 1)}, 246),
        ({"level": "snapshot", "atClusterTime": Timestamp(4_200_000_000, 1)}, 72),
        ({"afterClusterTime": Timestamp(4_200_000_000, 1)}, 72),
        ({"level": "linearizable", "afterClusterTime": Timestamp(1, 1)}, 72),
    ],
)
def test_a_concern_that_means_nothing_is_refused(client: Any, concern: dict[str, Any], code: int) -> None:
    assert code_of(client, {"find": "c", "readConcern": concern}) == code


@pytest.mark.parametrize(
    ("command", "level"),
    [
        ({"count": "c"}, "snapshot"),
        ({"insert": "c", "documents": [{}]}, "majority"),
        ({"listCollections": 1}, "snapshot"),
        ({"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}}, "snapshot"),
        ({"aggregate": "c", "pipeline": [], "explain": True}, "majority"),
        ({"aggregate": "c", "pipeline": [], "explain": True}, "available"),
        ({"explain": {"aggregate": "c", "pipeline": [], "cursor": {}}}, "majority"),
        ({"explain": {"aggregate": "c", "pipeline": [], "cursor": {}}}, "snapshot"),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, "snapshot"),
    ],
)
def test_a_command_that_cannot_read_at_a_level_says_so(client: Any, command: dict[str, Any], level: str) -> None:
    assert code_of(client, {**command, "readConcern": {"level": level}}) == 72


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize("inner", [{"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "_id"}], ids=str)
def test_any_other_command_is_explained_at_every_level(client: Any, inner: dict[str, Any], level: str) -> None:
    assert client.t.command({"explain": inner, "readConcern": {"level": level}})["ok"] == 1.0


def test_an_aggregation_is_explained_at_the_level_local(client: Any) -> None:
    for concern in ({}, {"level": "local"}):
        body = {"aggregate": "c", "pipeline": [], "readConcern": concern}
        assert client.t.command({**body, "explain": True})["ok"] == 1.0
        assert client.t.command({"explain": {**body, "cursor": {}}, "readConcern": concern})["ok"] == 1.0


@pytest.mark.parametrize("level", ["available", "linearizable", "local", "majority", "snapshot"])
def test_every_level_reads_what_is_there(client: Any, level: str) -> None:
    assert len(list(client.t.get_collection("c", read_concern=ReadConcern(level)).find())) == 3


def test_a_snapshot_stays_as_it_is_while_others_write(client: Any) -> None:
    first = find(client)
    client.t.c.update_one({"_id": 0}, {"$set": {"x": 2}})
    client.t.c.delete_one({"_id": 1})
    client.t.c.insert_one({"_id": 7})
    again = find(client, first["atClusterTime"])
    assert again["firstBatch"] == first["firstBatch"] and again["atClusterTime"] == first["atClusterTime"]
    assert [item["_id"] for item in find(client)["firstBatch"]] == [0, 2, 7]
    distinct = {"distinct": "c", "key": "_id", "readConcern": {"level": "snapshot"}}
    assert client.t.command(distinct)["values"] == [0, 2, 7]
    distinct["readConcern"]["atClusterTime"] = first["atClusterTime"]  # type: ignore[index]
    reply = client.t.command(distinct)
    assert reply["values"] == [0, 1, 2] and reply["atClusterTime"] == first["atClusterTime"]


def test_a_cursor_goes_on_at_its_snapshot(client: Any) -> None:
    with client.start_session(snapshot=True) as session:
        cursor = client.t.c.find(session=session).batch_size(1)
        assert next(cursor)["_id"] == 0
        client.t.c.delete_many({})
        assert [item["_id"] for item in cursor] == [1, 2]
        assert client.t.c.find_one({"_id": 2}, session=session) == {"_id": 2, "x": 1}
        assert list(client.t.c.aggregate([{"$count": "n"}], session=session)) == [{"n": 3}]


def test_a_snapshot_reads_a_collection_that_was_dropped_since(client: Any) -> None:
    documents = list(client.t.c.find())
    at = find(client)["atClusterTime"]
    client.t.c.drop()
    client.t.c.insert_one({"_id": "other"})
    reply = client.t.command({"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": at}})
    assert reply["cursor"]["firstBatch"] == documents and documents
    assert [document["_id"] for document in client.t.c.find()] == ["other"]


def test_a_snapshot_stays_while_it_is_read_and_ends_a_minute_after() -> None:
    clock = FakeClock()
    with DrivenServer(clock=clock) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": key} for key in range(9)]})
        concern: dict[str, Any] = {"level": "snapshot"}
        cursor = server.must("t", {"find": "c", "batchSize": 1, "readConcern": concern})["cursor"]
        concern["atClusterTime"] = cursor["atClusterTime"]
        server.must("t", {"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
        for _ in range(4):
            clock.advance(50_000)
            retire(server.engine, clock.monotonic_ms())
            more = {"getMore": cursor["id"], "collection": "c", "batchSize": 1}
            assert len(server.must("t", more)["cursor"]["nextBatch"]) == 1
        clock.advance(50_000)
        retire(server.engine, clock.monotonic_ms())
        again = {"find": "c", "batchSize": 9, "readConcern": concern}
        assert len(server.must("t", again)["cursor"]["firstBatch"]) == 9
        clock.advance(61_000)
        retire(server.engine, clock.monotonic_ms())
        assert server.run("t", again)["code"] == 246  # type: ignore[index]


def test_snapshot_reads_before_the_last_write_are_refused(client: Any) -> None:
    operation_time = client.t.command("ping")["operationTime"]
    assert len(find(client, operation_time)["firstBatch"]) == 3
    client.t.other.insert_one({})
    before = client.t.command("ping")["operationTime"]
    client.t.other.insert_one({})
    assert len(find(client, operation_time)["firstBatch"]) == 3
    assert code_of(client, {"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": before}}) == 246


def test_a_past_time_without_a_write_is_waited_for(client: Any) -> None:
    last = client.t.command("ping")["operationTime"]
    concern = {"afterClusterTime": Timestamp(last.time, last.inc + 1)}
    assert code_of(client, {"find": "c", "readConcern": concern, "maxTimeMS": 20}) == 50
    client.t.c.insert_one({"_id": 9})
    began = time.monotonic()
    reply = client.t.command({"find": "c", "readConcern": concern, "maxTimeMS": 20_000})
    assert len(reply["cursor"]["firstBatch"]) == 4 and time.monotonic() - began < 10


def test_causally_consistent_sessions_read_their_writes(client: Any) -> None:
    with client.start_session(causal_consistency=True) as session:
        client.t.c.insert_one({"_id": 5}, session=session)
        assert client.t.c.find_one({"_id": 5}, session=session) == {"_id": 5}


def test_no_aggregation_is_explained_in_a_transaction(client: Any) -> None:
    with pytest.raises(OperationFailure) as caught, client.start_session() as session, session.start_transaction():
        client.t.command({"aggregate": "c", "pipeline": [], "explain": True}, session=session)
    assert caught.value.code == 263
