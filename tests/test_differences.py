"""The differences of docs/differences.md that a client can see, by their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import headrace
from headrace.commands.table import COMMANDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "differences.md"
Client = MongoClient[dict[str, Any]]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Client]:
    with MongoClient[dict[str, Any]](server.uri) as client:
        yield client


def computed(client: Client, expression: Any) -> Any:
    [result] = client.d.aggregate([{"$documents": [{}]}, {"$project": {"value": expression}}])
    return result["value"]


def code_of(client: Client, command: dict[str, Any]) -> int | None:
    with pytest.raises(OperationFailure) as caught:
        client.admin.command(command)
    return caught.value.code


def test_1_field_names_that_begin_with_a_dollar_sign_are_stored(client: Client) -> None:
    client.d.dollars.insert_one({"_id": 1, "$price": 2, "a.b": 3})
    assert client.d.dollars.find_one() == {"_id": 1, "$price": 2, "a.b": 3}


def test_2_dropping_a_collection_that_is_not_there_answers_ok(client: Client) -> None:
    assert client.d.command("drop", "nothing")["ok"] == 1.0


def test_3_events_have_a_wall_time(client: Client) -> None:
    with client.d.walls.watch() as stream:
        client.d.walls.insert_one({})
        assert isinstance(next(stream)["wallTime"], datetime)


def test_5_dates_keep_their_milliseconds_when_something_is_added(client: Client) -> None:
    start = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    result = computed(client, {"$dateAdd": {"startDate": start, "unit": "day", "amount": 1}})
    assert result == datetime(2020, 1, 3, 3, 4, 5, 678_000)


def test_6_filter_takes_a_limit(client: Client) -> None:
    assert computed(client, {"$filter": {"input": [1, 2, 3], "cond": True, "limit": 2}}) == [1, 2]


def test_7_of_a_dropped_database_the_newest_collection_goes_first(client: Client) -> None:
    for name in ("c", "a", "b"):
        client.dropped[name].insert_one({})
    with client.dropped.watch() as stream:
        client.drop_database("dropped")
        events = list(stream)
    assert [event["ns"].get("coll") for event in events[:-1]] == ["b", "a", "c", None]


def test_8_the_set_of_one_is_not_reconfigured(client: Client) -> None:
    config = client.admin.command("replSetGetConfig")["config"]
    assert len(config["members"]) == 1
    assert code_of(client, {"replSetReconfig": config}) == 103
    assert code_of(client, {"replSetStepDown": 60}) == 262


def test_10_a_login_needs_a_user(server: headrace.Server) -> None:
    with (
        MongoClient[dict[str, Any]](server.uri, username="a", password="b") as client,
        pytest.raises(OperationFailure) as caught,
    ):
        client.d.c.find_one()
    assert caught.value.code == 18


def test_15_an_insert_of_many_documents_writes_an_entry_for_each(client: Client) -> None:
    client.d.many.insert_many([{"_id": number} for number in range(3)])
    entries = client.local["oplog.rs"].find({"ns": "d.many"})
    assert [entry["op"] for entry in entries] == ["i", "i", "i"]


def test_16_the_oplog_is_bounded_by_time_even_when_it_is_small() -> None:
    with headrace.Server(oplog_hours=1) as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.insert_many([{} for _ in range(10)])
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        assert server.prune(now_ms) == 0
        assert server.prune(now_ms + 2 * HOUR_MS) >= 10


def test_19_only_what_waits_is_seen_in_progress(client: Client) -> None:
    seen = {next(iter(item["command"])) for item in client.admin.command("currentOp", active=True)["inprog"]}
    assert {"currentOp"} <= seen <= {"currentOp", "hello"}  # drivers wait for news in a hello
    assert client.d.command("profile", 0)["was"] == 0


def test_22_a_parameter_that_would_change_nothing_is_unknown(client: Client) -> None:
    assert code_of(client, {"getParameter": 1, "wiredTigerConcurrentReadTransactions": 1}) == 72
    assert code_of(client, {"setParameter": 1, "wiredTigerConcurrentReadTransactions": 1}) == 72


def test_what_the_page_says_is_not_there_yet_is_not_there() -> None:
    listed = PAGE.read_text("utf-8").partition("## Not there yet")[2]
    names = {name for line in listed.splitlines() if line.startswith("- ") for name in re.findall(r"`(\w+)`", line)}
    assert names, "nothing is missing any more: take the section away, and this test"
    assert not names & COMMANDS.keys(), "they are there now: take them off docs/differences.md"


def test_31_a_document_has_a_bounded_number_of_keys_in_an_index(client: Client) -> None:
    client.admin.command("setParameter", 1, indexMaxNumGeneratedKeysPerDocument=3)
    try:
        client.d.keys.create_index("a")
        client.d.keys.insert_one({"_id": 1, "a": [1, 2, 3]})
        with pytest.raises(OperationFailure) as caught:
            client.d.keys.insert_one({"_id": 2, "a": [1, 2, 3, 4]})
        assert caught.value.code == 201
    finally:
        client.admin.command("setParameter", 1, indexMaxNumGeneratedKeysPerDocument=10_000)
