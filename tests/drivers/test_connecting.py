"""Messages of drivers beside commands: the stable API, exhaust flags, lost connections, sessions, cursors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pymongo.errors
import pytest
from bson import Int64
from pymongo.mongo_client import MongoClient
from pymongo.server_api import ServerApi

import headrace

pytestmark = pytest.mark.long

Client = MongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server(enable_test_commands=True) as server:
        yield server


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Client]:
    with pymongo.MongoClient(server.uri, heartbeatFrequencyMS=500) as client:
        yield client
        for name in (
            "failCommand", "failGetMoreAfterCursorCheckout", "maxTimeAlwaysTimeOut", "onPrimaryTransactionalWrite",
        ):  # fmt: skip
            client.admin.command("configureFailPoint", name, mode="off")
        client.drop_database("t")


def fail(client: Client, name: str = "failCommand", mode: Any = None, **data: Any) -> None:
    client.admin.command("configureFailPoint", name, mode=mode or {"times": 1}, data=data)


def code(client: Client, db: str, command: dict[str, Any]) -> int | None:
    with pytest.raises(pymongo.errors.OperationFailure) as caught:
        client[db].command(command)
    return caught.value.code


def test_a_strict_api_refuses_what_is_not_in_it(server: headrace.Server) -> None:
    with pymongo.MongoClient(server.uri, server_api=ServerApi("1", strict=True)) as strict:
        strict.t.c.insert_one({"_id": 1})
        assert strict.t.c.find_one() == {"_id": 1}
        assert code(strict, "admin", {"getParameter": "*"}) == 323
        assert code(strict, "admin", {"nothing": 1}) == 59
        strict.drop_database("t")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"apiDeprecationErrors": True}, 4886600),
        ({"apiStrict": "yes", "apiVersion": "1"}, 14),
        ({"apiStrict": True}, 4886600),
        ({"apiStrict": True, "apiVersion": "1"}, 323),
        ({"apiVersion": "2"}, 322),
        ({"apiVersion": 1}, 14),
    ],
)
def test_the_fields_of_the_api_are_checked(client: Client, fields: dict[str, Any], expected: int) -> None:
    assert code(client, "t", {"distinct": "c", "key": "a", **fields}) == expected


def test_the_api_changes_nothing_that_is_in_it(client: Client) -> None:
    assert client.admin.command("ping", apiVersion="1", apiStrict=True, apiDeprecationErrors=True)["ok"] == 1


@pytest.mark.parametrize("cursor_type", [pymongo.CursorType.NON_TAILABLE, pymongo.CursorType.EXHAUST])
def test_a_cursor_that_may_exhaust_reads_everything(client: Client, cursor_type: int) -> None:
    client.t.c.insert_many([{"_id": number} for number in range(250)])
    assert [document["_id"] for document in client.t.c.find(cursor_type=cursor_type, batch_size=20)] == list(range(250))


def test_a_write_whose_reply_does_not_arrive_is_done_once(client: Client) -> None:
    fail(client, "onPrimaryTransactionalWrite")
    client.t.c.insert_one({"_id": 1, "n": 0})
    fail(client, "onPrimaryTransactionalWrite")
    client.t.c.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert client.t.c.find_one() == {"_id": 1, "n": 1}


def test_a_read_whose_connection_ends_is_sent_again(client: Client) -> None:
    client.t.c.insert_one({"_id": 1})
    fail(client, failCommands=["find"], closeConnection=True)
    assert client.t.c.find_one() == {"_id": 1}


def test_a_stream_goes_on_after_an_error_that_is_labelled(client: Client) -> None:
    with client.t.c.watch(max_await_time_ms=10) as stream:
        fail(client, "failGetMoreAfterCursorCheckout", errorCode=10107)
        client.t.c.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}
        fail(client, failCommands=["getMore"], errorCode=6, errorLabels=["ResumableChangeStreamError"])
        client.t.c.insert_one({"_id": 2})
        assert next(stream)["documentKey"] == {"_id": 2}


def test_the_error_of_a_fail_point_has_the_labels_it_is_given_and_no_other(client: Client) -> None:
    for labels, expected in ((None, ["RetryableWriteError"]), ([], []), (["Mine"], ["Mine"])):
        more = {} if labels is None else {"errorLabels": labels}
        fail(client, failCommands=["insert"], errorCode=91, mode={"times": 2}, **more)
        with pytest.raises(pymongo.errors.PyMongoError) as caught:
            client.t.c.insert_one({})
        assert [label for label in caught.value._error_labels if label != "NoWritesPerformed"] == expected
        client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.parametrize(
    ("number", "labels"),
    [
        (134, ["RetryableWriteError"]),
        (358, ["RetryableWriteError"]),
        (462, ["RetryableWriteError", "SystemOverloadedError"]),
        (433, ["SystemOverloadedError"]),
        (112, []),
    ],
)
def test_the_labels_of_an_error_of_a_retryable_write(client: Client, number: int, labels: list[str]) -> None:
    fail(client, failCommands=["insert"], errorCode=number)
    with client.start_session() as session, pytest.raises(pymongo.errors.OperationFailure) as caught:
        client.t.command("insert", "c", documents=[{}], txnNumber=Int64(1), session=session)
    assert caught.value.code == number and caught.value.details is not None
    assert caught.value.details.get("errorLabels", []) == labels


def test_a_fail_point_fails_after_the_commands_it_skips(client: Client) -> None:
    fail(client, mode={"skip": 2}, failCommands=["ping"], errorCode=2)
    assert [client.admin.command("ping")["ok"] for _ in range(2)] == [1, 1]
    assert code(client, "admin", {"ping": 1}) == 2
    assert client.admin.command("configureFailPoint", "failCommand", mode="off")["count"] == 1


def test_a_fail_point_can_be_for_one_application_and_one_collection(client: Client, server: headrace.Server) -> None:
    fail(client, mode="alwaysOn", failCommands=["count"], errorCode=2, appName="poor", namespace="t.c")
    with pymongo.MongoClient(server.uri, appName="poor") as poor:
        assert code(poor, "t", {"count": "c"}) == 2
        assert poor.t.command("count", "other")["n"] == 0
    assert client.t.command("count", "c")["n"] == 0


def test_a_write_concern_error_comes_with_a_write_that_is_done(client: Client) -> None:
    fail(client, failCommands=["insert"], writeConcernError={"code": 100, "errmsg": "no"})
    with pytest.raises(pymongo.errors.WriteConcernError):
        client.t.c.insert_one({"_id": 1})
    assert client.t.c.find_one() == {"_id": 1}


def test_a_write_concern_error_is_the_one_that_was_given(client: Client) -> None:
    for wanted in ({"code": 91, "errmsg": "no"}, {"code": 64, "codeName": "Mine", "errInfo": {"a": 1}}):
        fail(client, failCommands=["insert"], writeConcernError=wanted)
        assert client.t.command("insert", "c", documents=[{}], check=False)["writeConcernError"] == wanted


def test_the_time_of_a_getmore_is_that_of_its_find(client: Client) -> None:
    client.t.c.insert_many([{} for _ in range(4)])
    for more, expected in (({"maxTimeMS": 60_000}, 50), ({}, None)):
        cursor = client.t.command("find", "c", batchSize=1, **more)["cursor"]["id"]
        fail(client, "maxTimeAlwaysTimeOut", mode="alwaysOn")
        body = {"getMore": Int64(cursor), "collection": "c"}
        reply = client.t.command(body, check=False)
        assert reply.get("code") == expected
        assert client.t.command(body, check=False)["code"] == 43  # it is at its end, or closed
        client.admin.command("configureFailPoint", "maxTimeAlwaysTimeOut", mode="off")


def test_the_wait_of_a_getmore_is_not_a_limit_of_its_time(client: Client) -> None:
    client.t.create_collection("capped", capped=True, size=4096)
    client.t.capped.insert_one({})
    cursor = client.t.command("find", "capped", tailable=True, awaitData=True)["cursor"]["id"]
    fail(client, "maxTimeAlwaysTimeOut", mode="alwaysOn")
    body = {"getMore": Int64(cursor), "collection": "capped", "maxTimeMS": 1}
    assert client.t.command(body)["cursor"]["nextBatch"] == []


def test_a_command_outside_of_the_first_version_is_there_for_tests(client: Client) -> None:
    assert client.admin.command("testVersion2", apiVersion="1")["apiVersion"] == "1"
    assert code(client, "admin", {"testVersion2": 1, "apiVersion": "1", "apiStrict": True}) == 323


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"configureFailPoint": "failCommand", "mode": "sometimes"}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"times": -1}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {"activationProbability": 2}}, 2),
        ({"configureFailPoint": "failCommand", "mode": {}}, 2),
        ({"configureFailPoint": "failCommand", "mode": 1}, 14),
        ({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": 1}, 14),
        ({"configureFailPoint": "failCommand"}, 20),
        ({"configureFailPoint": "failNothing", "mode": "alwaysOn"}, 266),
    ],
)
def test_a_fail_point_that_makes_no_sense_is_refused(client: Client, command: dict[str, Any], expected: int) -> None:
    assert code(client, "admin", command) == expected


def test_a_server_that_is_not_for_tests_has_no_fail_points() -> None:
    with headrace.Server() as plain, pymongo.MongoClient(plain.uri) as client:
        assert code(client, "admin", {"configureFailPoint": "failCommand", "mode": "off"}) == 59
        assert code(client, "admin", {"testVersion2": 1}) == 59


def test_hello_that_awaits_answers_when_its_time_is_up(client: Client) -> None:
    known = client.admin.command("hello")["topologyVersion"]
    again = client.admin.command("hello", topologyVersion=known, maxAwaitTimeMS=20)
    assert again["topologyVersion"] == known


def test_cursors_and_sessions_can_be_ended_twice(client: Client) -> None:
    with client.start_session() as session:
        identity = session.session_id
        assert client.t.command("endSessions", [identity])["ok"] == 1
        assert client.t.command("endSessions", [identity])["ok"] == 1
    client.t.c.insert_many([{} for _ in range(3)])
    cursor = client.t.c.find(batch_size=1)
    next(cursor)
    for field in ("cursorsKilled", "cursorsNotFound"):
        assert client.t.command("killCursors", "c", cursors=[cursor.cursor_id])[field] == [cursor.cursor_id]


def test_an_option_that_names_one_server_changes_nothing(server: headrace.Server) -> None:
    for option in ("directConnection=true", "loadBalanced=false", "retryWrites=false", "readPreference=nearest"):
        with pymongo.MongoClient(f"mongodb://{server.address}/?{option}", serverSelectionTimeoutMS=5000) as client:
            assert client.t.c.count_documents({}) == 0
