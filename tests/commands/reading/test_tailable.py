"""Tailable cursors on capped collections go on with what is inserted later, and end where MongoDB's end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from bson import Int64

import headrace
from tests.server.raw import RawClient
from tests.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


@pytest.fixture
def client(server: headrace.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        client.ask({"dropDatabase": 1}, "t")
        assert client.ask({"create": "log", "capped": True, "size": 1 << 20, "max": 4})["ok"] == 1.0
        yield client


def add(client: RawClient, *keys: Any) -> None:
    assert client.ask({"insert": "log", "documents": [{"_id": key, "even": key % 2 == 0} for key in keys]})["ok"]


def tail(client: RawClient, **more: Any) -> dict[str, Any]:
    reply = client.ask({"find": "log", "tailable": True, **more})
    assert reply["ok"] == 1.0, reply
    return dict(reply["cursor"])


def more(client: RawClient, cursor: dict[str, Any], **options: Any) -> dict[str, Any]:
    return client.ask({"getMore": Int64(cursor["id"]), "collection": "log", **options})


def keys(reply: dict[str, Any]) -> list[Any]:
    assert reply["ok"] == 1.0, reply
    return [document["_id"] for document in reply["cursor"]["nextBatch"]]


def test_what_is_inserted_later_comes_later(client: RawClient) -> None:
    add(client, 1)
    cursor = tail(client)
    assert [item["_id"] for item in cursor["firstBatch"]] == [1] and cursor["id"]
    assert keys(more(client, cursor)) == []
    add(client, 2, 3)
    assert keys(more(client, cursor, batchSize=1)) == [2]
    assert keys(more(client, cursor)) == [3]
    assert more(client, cursor)["cursor"]["id"] == cursor["id"]


def test_it_filters_skips_projects_and_limits(client: RawClient) -> None:
    add(client, 1)
    cursor = tail(client, filter={"even": True}, skip=1, limit=2, projection={"even": 0})
    assert cursor["firstBatch"] == [] and cursor["id"]
    add(client, 2, 3)
    add(client, 4)
    assert more(client, cursor)["cursor"]["nextBatch"] == [{"_id": 4}]
    add(client, 6)
    reply = more(client, cursor)
    assert reply["cursor"]["nextBatch"] == [{"_id": 6}] and reply["cursor"]["id"] == 0


def test_a_waiting_one_is_woken_by_an_insert_into_its_collection(client: RawClient, server: headrace.Server) -> None:
    add(client, 1)
    cursor = tail(client, awaitData=True)
    with RawClient(server.address) as other:
        other.send({"getMore": Int64(cursor["id"]), "collection": "log", "maxTimeMS": 60_000})
        until_waiting(client)
        add(client, 2)
        assert keys(other.receive()[1]) == [2]
    assert keys(more(client, cursor, maxTimeMS=1)) == []


def until_waiting(client: RawClient) -> None:
    """Return when a getMore waits."""
    until(lambda: any("getMore" in item.get("command", {}) for item in client.ask({"currentOp": 1}, "admin")["inprog"]))


@pytest.mark.parametrize("how", [{"drop": "log"}, {"dropDatabase": 1}, {"renameCollection": "t.log", "to": "t.other"}])
def test_a_waiting_one_ends_when_its_collection_goes(
    client: RawClient, server: headrace.Server, how: dict[str, Any]
) -> None:
    add(client, 1)
    cursor = tail(client, awaitData=True)
    with RawClient(server.address) as other:
        other.send({"getMore": Int64(cursor["id"]), "collection": "log", "maxTimeMS": 60_000})
        until_waiting(client)
        assert client.ask(how, "admin" if "renameCollection" in how else "t")["ok"] == 1.0
        assert other.receive()[1]["code"] == 175
    assert more(client, cursor)["code"] == 43


def test_one_that_was_overtaken_says_so(client: RawClient) -> None:
    add(client, 1)
    cursor = tail(client)
    add(client, 2, 3, 4, 5)
    assert more(client, cursor)["code"] == 136
    assert more(client, cursor)["code"] == 43


def test_one_on_an_empty_collection_is_closed_at_once(client: RawClient) -> None:
    assert tail(client) == {"firstBatch": [], "id": 0, "ns": "t.log"}
    assert client.ask({"find": "missing", "tailable": True})["cursor"]["id"] == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"tailable": True, "sort": {"_id": 1}}, 2),
        ({"tailable": True, "sort": {"$natural": -1}}, 2),
        ({"tailable": True, "singleBatch": True}, 2),
        ({"awaitData": True}, 9),
    ],
)
def test_what_does_not_go_together_is_refused(client: RawClient, body: dict[str, Any], code: int) -> None:
    assert client.ask({"find": "log", **body})["code"] == code


def test_one_that_does_not_wait_takes_no_time_limit(client: RawClient) -> None:
    add(client, 1)
    assert more(client, tail(client), maxTimeMS=1)["code"] == 2


def test_pymongo_follows_a_capped_collection(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri) as client:
        client.drop_database("p")
        log = client.p.create_collection("log", capped=True, size=1 << 20)
        log.insert_one({"_id": 0})
        with log.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT) as cursor:
            for key in range(1, 4):
                assert next(cursor)["_id"] == key - 1
                log.insert_one({"_id": key})
            assert next(cursor)["_id"] == 3
            client.p.log.drop()
            assert next(cursor, None) is None and not cursor.alive
