"""The profiler: what is recorded at which level, its documents, and what counts as slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import OperationFailure

import headrace
from tests.held_commits import HeldCommits
from tests.server.raw import RawClient
from tests.waiting import until

Client = pymongo.MongoClient[dict[str, Any]]


@pytest.fixture
def client() -> Iterator[Client]:
    with headrace.Server() as server, pymongo.MongoClient(server.uri, appname="shop") as client:
        client.t.c.insert_many([{"_id": number, "a": number % 10} for number in range(100)])
        client.t.c.create_index("a")
        yield client


def profiled(client: Client) -> list[dict[str, Any]]:
    """What is recorded so far: it is stored with the writes that come behind it."""
    client.other.c.insert_one({})
    return list(client.t["system.profile"].find({"ns": "t.c"}, sort=[("$natural", 1)]))


def last(client: Client) -> dict[str, Any]:
    return profiled(client)[-1]


def test_off_nothing_is_recorded(client: Client) -> None:
    assert client.t.command("profile", -1) == {
        "was": 0, "slowms": 100, "sampleRate": 1.0, "ok": 1.0, **times(client.t.command("profile", -1)),
    }  # fmt: skip
    client.t.c.find_one({"a": 1})
    assert profiled(client) == []


def times(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: reply[name] for name in ("$clusterTime", "operationTime") if name in reply}


def test_each_command_is_a_document_at_level_two(client: Client) -> None:
    client.t.command("profile", 2)
    assert client.t.command("profile", -1)["was"] == 2
    list(client.t.c.find({"a": 3}, batch_size=4).limit(8))
    first, second = profiled(client)[-2:]
    assert (first["op"], first["ns"], first["planSummary"]) == ("query", "t.c", "IXSCAN { a: 1 }")
    assert first["command"]["filter"] == {"a": 3} and first["command"]["find"] == "c"
    assert (first["keysExamined"], first["docsExamined"], first["nreturned"]) == (8, 8, 4)
    assert first["cursorid"] == second["command"]["getMore"] and second["op"] == "getmore"
    assert second["cursorExhausted"] and second["nreturned"] == 4
    assert (first["client"], first["appName"], first["user"], first["allUsers"]) == ("127.0.0.1", "shop", "", [])
    assert first["responseLength"] > 100 and first["protocol"] == "op_msg" and isinstance(first["millis"], int)
    client.t.c.find_one({"_id": 5})
    by_id = last(client)
    assert (by_id["planSummary"], by_id["keysExamined"], by_id["docsExamined"]) == ("IDHACK", 1, 1)
    client.t.c.count_documents({"b": 1})
    assert (last(client)["op"], last(client)["planSummary"], last(client)["docsExamined"]) == (
        "command",
        "COLLSCAN",
        100,
    )


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"count": "system.profile", "query": {"ns": "t.c"}}, {"n": 2}),
        ({"drop": "system.profile"}, {"ns": "t.system.profile"}),
    ],
)
def test_a_read_or_a_drop_waits_for_what_was_recorded_before_it(
    asked: dict[str, Any], answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So mongoengine's `query_counter` counts."""
    commits = HeldCommits()
    with headrace.Server() as server, RawClient(server.address) as client, RawClient(server.address) as reading:
        client.ask({"profile": 2})
        commits.hold(monkeypatch)
        client.ask({"find": "c"})
        assert commits.synced.wait(60)  # the first is being stored, the second waits
        client.ask({"find": "c"})
        client.ask({"profile": 0})
        reading.send(asked)
        until(lambda: asked.keys() & {request.name for request in server._running.waiting_requests()}, seconds=10)
        commits.go_on.set()
        assert reading.receive()[1].items() >= {**answer, "ok": 1.0}.items()
        client.ask({"insert": "other", "documents": [{}]})
        assert client.ask({"count": "system.profile"})["n"] == answer.get("n", 0)


def test_writes_have_their_counts(client: Client) -> None:
    client.t.command("profile", 2)
    client.t.c.insert_many([{"secret": "canary"}, {}])
    document = last(client)
    assert (document["op"], document["ninserted"]) == ("insert", 2) and "canary" not in str(document)
    client.t.c.update_many({"a": 4}, {"$set": {"b": 1}})
    document = last(client)
    assert (document["op"], document["nMatched"], document["nModified"]) == ("update", 10, 10)
    assert document["command"] == {"q": {"a": 4}, "u": {"$set": {"b": 1}}, "multi": True, "upsert": False}
    assert document["planSummary"] == "IXSCAN { a: 1 }"
    client.t.c.delete_one({"_id": 1})
    document = last(client)
    assert (document["op"], document["ndeleted"], document["command"]) == ("remove", 1, {"q": {"_id": 1}, "limit": 1})
    client.t.c.find_one_and_update({"a": 5}, {"$set": {"b": 2}})
    assert last(client)["command"]["findAndModify"] == "c"
    client.t.c.bulk_write([pymongo.UpdateOne({"_id": key}, {"$set": {"x": 1}}) for key in (2, 3)])
    assert len(last(client)["command"]["updates"]) == 2


def test_errors_are_recorded(client: Client) -> None:
    client.t.command("profile", 2)
    with pytest.raises(OperationFailure):
        client.t.c.find_one({"a": {"$none": 1}})
    document = last(client)
    assert (document["ok"], document["errCode"], document["errName"]) == (0, 2, "BadValue")
    assert document["errMsg"] == "unknown operator: $none"


def test_statements_that_are_none_are_refused_as_without_a_profile(client: Client) -> None:
    client.t.command("profile", 2)
    host, port = client.address or ("", 0)
    with RawClient(f"{host}:{port}") as raw:
        for name, field in (("update", "updates"), ("delete", "deletes")):
            for listed in ([5], [{"q": {"_id": 1}}, 5], 5):
                assert raw.ask({name: "c", field: listed})["code"] in (14, 40414)
                assert last(client)["errCode"] in (14, 40414)


def test_a_filter_that_fails_on_a_command_does_not_match_it(client: Client) -> None:
    client.t.command("profile", 1, filter={"$expr": {"$divide": [1, "$nreturned"]}})
    client.t.c.insert_one({"_id": "new"})
    assert client.t.c.find_one({"_id": "none"}) is None
    assert client.t.c.find_one({"_id": "new"}) == {"_id": "new"}
    with pytest.raises(OperationFailure, match=r"unknown operator: \$none"):
        client.t.c.find_one({"a": {"$none": 1}})
    assert [item["command"]["filter"] for item in profiled(client) if item["op"] == "query"] == [{"_id": "new"}]


def test_level_one_records_what_is_slow_or_matches_the_filter(client: Client) -> None:
    client.t.command("profile", 1, slowms=10_000)
    client.t.c.find_one({"a": 1})
    assert profiled(client) == []
    client.t.command("profile", 1, slowms=0, sampleRate=0.5)
    for _ in range(10):
        client.t.c.find_one({"a": 1})
    assert len(profiled(client)) in (5, 6)
    reply = client.t.command("profile", 1, filter={"op": "query", "docsExamined": {"$gte": 50}})
    assert (reply["was"], reply["slowms"], reply["sampleRate"]) == (1, 0, 0.5)
    before = len(profiled(client))
    client.t.c.find_one({"a": 2})
    client.t.c.find_one({"b": 2})
    assert len(profiled(client)) == before + 1 and last(client)["command"]["filter"] == {"b": 2}
    reply = client.t.command("profile", 0, filter="unset", slowms=100, sampleRate=1.0)
    assert reply["filter"] == {"op": "query", "docsExamined": {"$gte": 50}} and "note" in reply
    assert "filter" not in client.t.command("profile", -1)


def test_other_databases_are_not_profiled(client: Client) -> None:
    client.t.command("profile", 2)
    client.u.c.insert_one({})
    assert "system.profile" not in client.u.list_collection_names() and profiled(client) == []


def test_the_collection_is_capped_and_has_no_entries_in_the_oplog(client: Client) -> None:
    with client.t.watch() as stream:
        client.t.command("profile", 2)
        client.t.c.find_one({"a": 1})
        profiled(client)
        client.t.c.insert_one({"_id": "end"})
        assert next(stream)["documentKey"] == {"_id": "end"}
    assert client.local["oplog.rs"].count_documents({"ns": "t.system.profile"}) == 0
    (shown,) = client.t.list_collections(filter={"name": "system.profile"})
    assert shown["options"] == {"capped": True, "size": Int64(1 << 20)}
    with pytest.raises(OperationFailure, match="turn off profiling"):
        client.t.command("drop", "system.profile")
    with pytest.raises(OperationFailure, match="cannot write"):
        client.t["system.profile"].insert_one({})
    client.t.command("profile", 0)
    client.t["system.profile"].drop()
    client.t.create_collection("system.profile", capped=True, size=4 << 20)
    assert client.t.command("validate", "system.profile")["valid"]


def test_what_is_no_setting_is_refused(client: Client) -> None:
    for setting in ({"sampleRate": 2}, {"filter": "none"}, {"filter": {"$none": 1}}, {"sampleRate": -0.1}):
        with pytest.raises(OperationFailure) as failed:
            client.t.command("profile", 1, **setting)
        assert failed.value.code == 2
    assert client.t.command("profile", 7)["was"] == client.t.command("profile", -1)["was"] == 0


def test_a_profile_of_the_start_and_who_has_logged_in() -> None:
    with (
        headrace.Server(profile_level=2, users={"ann": {"pwd": "secret", "roles": ["root"]}}) as server,
        pymongo.MongoClient(server.uri, username="ann", password="secret") as client,
    ):
        client.t.c.insert_one({"_id": 1})
        client.t.c.find_one({"a": 1})
        client.t.d.insert_one({})
        document = client.t["system.profile"].find_one({"op": "query", "ns": "t.c"})
        assert document is not None and document["user"] == "ann@admin"
        assert document["allUsers"] == [{"user": "ann", "db": "admin"}]
        assert "secret" not in str(list(client.admin["system.profile"].find()))


def test_statements_of_transactions_and_tailing_of_the_profile(client: Client) -> None:
    client.t.command("profile", 2)
    with client.start_session() as session, session.start_transaction():
        client.t.c.insert_one({"_id": "x"}, session=session)
    assert last(client)["command"]["startTransaction"] is True
    cursor = client.t["system.profile"].find(cursor_type=pymongo.CursorType.TAILABLE)
    before = len(list(cursor))
    client.t.c.find_one()
    profiled(client)
    assert before and any(item["op"] == "query" for item in cursor)
