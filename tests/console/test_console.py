"""The console's answers: changes, collections, plans, figures, slow queries, and who may ask for them."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx
import pymongo
import pytest

import headrace
from headrace.cli.console.application import ConsoleServer
from headrace.cli.console.collections import index_for
from headrace.cli.main import main
from headrace.testing.fixtures import INTERNAL_DATABASES
from tests.console.conftest import Events, signed

SCRIPT = "<img src=x onerror=alert(1)>"


def test_changes_are_shown_with_what_changed_and_the_stream_resumes_from_a_token(
    browser: httpx.Client, client: Any
) -> None:
    client.shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    with browser.stream("GET", "/api/tail", params={"ns": "shop.orders"}) as response:
        events = Events(response)
        events.next("opened")
        client.shop.orders.insert_one({"_id": 1, "qty": 2})
        client.shop.orders.update_one({"_id": 1}, {"$set": {"qty": 3}})
        shown: list[Any] = []
        while len(shown) < 2:
            shown += events.next("events")["events"]
    assert [one["operation"] for one in shown] == ["insert", "update"]
    assert shown[1]["namespace"] == "shop.orders" and json.loads(shown[1]["key"]) == {"_id": 1}
    assert {"sign": "~", "path": "qty", "text": "2 -> 3"} in shown[1]["changes"]
    assert json.loads(shown[1]["before"]) == {"_id": 1, "qty": 2}
    with browser.stream("GET", "/api/tail", params={"ns": "shop.orders", "from": shown[0]["token"]}) as response:
        again = Events(response).next("events")["events"]
    assert again[0] == shown[1]


def test_a_filter_is_a_query_on_the_event(browser: httpx.Client, client: Any) -> None:
    wanted = {"ns": "shop", "filter": json.dumps({"operationType": "delete"})}
    with browser.stream("GET", "/api/tail", params=wanted) as response:
        events = Events(response)
        events.next("opened")
        client.shop.orders.insert_one({"_id": 1})
        client.shop.orders.delete_one({"_id": 1})
        assert [one["operation"] for one in events.next("events")["events"]] == ["delete"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"filter": "{"}, "not JSON"),
        ({"filter": "[]"}, "not a JSON object"),
        ({"from": "yesterday"}, "neither a resume token"),
        ({"ns": "x" * 400}, "too long"),
        ({"ns": "a..b"}, "collection names"),
    ],
)
def test_a_wrong_question_is_answered_with_the_reason(
    browser: httpx.Client, asked: dict[str, str], reason: str
) -> None:
    with browser.stream("GET", "/api/tail", params=asked) as response:
        if response.status_code == 200:
            assert reason in Events(response).next("failed")["error"]
        else:
            assert response.status_code == 400 and reason in json.loads(response.read())["error"]


def test_a_wrong_stage_ends_the_stream_with_the_servers_error(browser: httpx.Client) -> None:
    with browser.stream("GET", "/api/tail", params={"filter": '{"$nothing": 1}'}) as response:
        assert "error 2" in Events(response).next("failed")["error"]


def test_collections_have_sizes_indexes_and_documents(browser: httpx.Client, client: Any) -> None:
    client.shop[SCRIPT].insert_many([{"_id": number, "qty": number % 7} for number in range(30)])
    client.shop[SCRIPT].create_index("qty")
    name = f"shop.{SCRIPT}"
    listed = {
        f"{one['database']}.{one['collection']}": one for one in browser.get("/api/collections").json()["collections"]
    }
    assert listed[name]["count"] == 30 and listed[name]["indexes"] == 2
    found = browser.get("/api/collection", params={"ns": name}).json()
    assert [index["name"] for index in found["indexes"]] == ["_id_", "qty_1"] and found["namespace"] == name
    asked = {"ns": name, "filter": '{"qty": 3}', "sort": '{"_id": -1}', "projection": '{"_id": 1}'}
    documents = browser.get("/api/documents", params=asked).json()
    assert [json.loads(text)["_id"] for text in documents["documents"]] == [24, 17, 10, 3]
    first = browser.get("/api/documents", params={"ns": name}).json()
    assert len(first["documents"]) == 20 and first["more"]
    rest = browser.get("/api/documents", params={"ns": name, "skip": "20"}).json()
    assert len(rest["documents"]) == 10 and not rest["more"]


@pytest.mark.parametrize(
    "asked",
    [
        {"ns": "shop"}, {"ns": ""}, {"ns": "shop.orders", "filter": "{"}, {"ns": "shop.orders", "filter": '{"$x": 1}'},
        {"ns": "shop.orders", "skip": "-1"}, {"ns": "shop.orders", "sort": "1"},
        {"ns": "shop.orders", "filter": "[{"}, {"ns": "shop.orders", "filter": '[{"$x": 1}]'},
        {"ns": "shop.orders", "filter": "[]", "sort": '{"_id": 1}'},
        {"ns": "shop.orders", "filter": '[{"$out": "other"}]'},
        {"ns": "shop.orders", "filter": '[{"$merge": "other"}]'},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/documents", "/api/explain"])
def test_a_wrong_query_is_answered_with_the_reason(browser: httpx.Client, asked: dict[str, str], path: str) -> None:
    response = browser.get(path, params=asked)
    if path == "/api/documents" or "skip" not in asked:
        assert response.status_code == 400 and response.json()["error"]


def test_a_plan_is_a_tree_of_stages_with_numbers_and_advice(browser: httpx.Client, client: Any) -> None:
    client.shop.orders.insert_many([{"_id": number, "qty": number % 7} for number in range(100)])
    asked = {"ns": "shop.orders", "filter": '{"qty": 3, "_id": {"$lt": 20}}'}
    scan = browser.get("/api/explain", params={**asked, "filter": '{"qty": 9}'}).json()
    assert scan["root"]["stage"] == "COLLSCAN" and scan["root"]["numbers"]["documents examined"] == 100
    assert scan["totals"]["returned"] == 0 and "an index" in scan["advice"]
    client.shop.orders.create_index("qty")
    plan = browser.get("/api/explain", params={**asked, "filter": '{"qty": 3}'}).json()
    assert plan["root"]["stage"] == "FETCH" and plan["root"]["children"][0]["texts"]["indexName"] == "qty_1"
    assert plan["root"]["children"][0]["numbers"]["keys examined"] == 14 and plan["advice"] == ""


def test_a_pipeline_has_its_documents_and_its_plan(browser: httpx.Client, client: Any) -> None:
    client.shop.orders.insert_many([{"_id": number, "qty": number % 50} for number in range(500)])
    group = {
        "ns": "shop.orders",
        "filter": '[{"$match": {"qty": {"$gt": 9}}}, {"$group": {"_id": "$qty"}}, {"$sort": {"_id": 1}}]',
    }
    first = browser.get("/api/documents", params=group).json()
    assert [json.loads(text)["_id"] for text in first["documents"]] == list(range(10, 30)) and first["more"]
    rest = browser.get("/api/documents", params={**group, "skip": "20"}).json()
    assert [json.loads(text)["_id"] for text in rest["documents"]] == list(range(30, 50)) and not rest["more"]
    plan = browser.get("/api/explain", params=group).json()
    sort = plan["root"]
    grouped = sort["children"][0]
    assert (sort["stage"], grouped["stage"], grouped["children"][0]["stage"]) == ("$sort", "$group", "COLLSCAN")
    assert grouped["texts"] == {"specification": '{"_id": "$qty"}'} and grouped["numbers"]["returned"] == 40
    assert plan["totals"]["returned"] == 40 and plan["totals"]["documents"] == 500 and plan["advice"] == ""


def test_a_pipeline_writes_only_where_that_is_asked_for(server: headrace.Server, client: Any) -> None:
    client.shop.orders.insert_many([{"_id": number} for number in range(5)])
    for writes in (False, True):
        console = ConsoleServer(server.uri, writes=writes)
        thread = console.start()
        with signed(console) as browser:
            asked = {"ns": "shop.orders", "filter": '[{"$match": {"_id": 3}}, {"$out": "copy"}]'}
            answer = browser.get("/api/documents", params=asked)
        console.stop()
        thread.join(10)
        assert answer.status_code == (200 if writes else 400)
        assert list(client.shop["copy"].find()) == ([{"_id": 3}] if writes else [])
    assert "--write" not in answer.text


def test_figures_come_as_samples_and_the_oplog_as_a_report(browser: httpx.Client, client: Any) -> None:
    with browser.stream("GET", "/api/live") as response, client.shop.orders.watch(max_await_time_ms=1):
        events = Events(response)
        assert isinstance(events.next("history")["points"], list)
        sample = events.next("sample")
        while not any(stream["scope"] == "shop.orders" for stream in sample["status"]["streams"]):
            sample = events.next("sample")
    point = sample["point"]
    assert point["streams"] >= 1 and point["lag"] == 0 and point["roundTripMs"] > 0 and point["residentBytes"] > 0
    assert browser.get("/api/oplog").json()["entries"] > 0


def test_a_slow_query_comes_with_the_index_that_would_help_and_why(browser: httpx.Client, client: Any) -> None:
    client.slow.orders.insert_many([{"_id": number, "qty": number % 7, "at": number} for number in range(300)])
    client.slow.command("profile", 2)
    list(client.slow.orders.find({"qty": 3, "at": {"$gt": 290}}).sort("name", -1))
    list(client.slow.orders.find({"qty": 4, "at": {"$gt": 280}}).sort("name", -1))
    list(client.slow.orders.find({"_id": 1}))
    client.slow.command("profile", 0)
    answer = browser.get("/api/slow").json()
    assert "slow" in answer["off"]
    shapes = {shape["filter"]: shape for shape in answer["shapes"] if shape["namespace"] == "slow.orders"}
    found = next(shape for text, shape in shapes.items() if "qty" in text)
    assert found["count"] == 2 and json.loads(found["index"]) == {"qty": 1, "name": -1, "at": 1}
    assert "reads 300 documents" in found["why"]
    assert next(shape for text, shape in shapes.items() if "_id" in text)["index"] == ""


@pytest.mark.parametrize(
    ("filter", "sort", "key"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": {"$gt": 1}, "b": 2}, {"c": -1}, {"b": 1, "c": -1, "a": 1}),
        ({"$and": [{"a": {"$in": [1]}}, {"b": {"$lt": 2}}]}, {}, {"a": 1, "b": 1}),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
        ({"_id": 1, "a": 1}, {}, {}),
        ({"_id": {"$gt": 1}}, {}, {}),
        ({"$or": [{"a": 1}]}, {}, {}),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_an_index_has_fields_of_equality_then_of_the_sort_then_of_ranges(
    filter: dict[str, Any], sort: dict[str, Any], key: dict[str, Any]
) -> None:
    assert list(index_for(filter, sort).items()) == list(key.items())


def test_without_a_job_there_is_none_and_a_wrong_file_is_named(
    browser: httpx.Client, server: headrace.Server, tmp_path: Any
) -> None:
    assert browser.get("/api/jobs").json() == {"jobs": []}
    (tmp_path / "orders.toml").write_text("x = [")
    with_job = ConsoleServer(server.uri, jobs=[tmp_path / "orders.toml"])
    thread = with_job.start()
    with signed(with_job) as other:
        (job,) = other.get("/api/jobs").json()["jobs"]
    assert job["file"] == "orders.toml" and job["error"]
    with_job.stop()
    thread.join(10)


def test_another_console_of_the_machine_is_another_session(browser: httpx.Client, server: headrace.Server) -> None:
    other = ConsoleServer(server.uri)
    thread = other.start()
    assert other.cookie not in browser.cookies
    assert browser.get(f"http://127.0.0.1:{other.port}/api/session").status_code == 403
    other.stop()
    thread.join(10)


def test_a_port_in_use_and_a_uri_that_is_none_fail_in_a_line(
    console: ConsoleServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--port", str(console.port)]) == 1
    assert f"the page cannot listen on 127.0.0.1:{console.port}" in capsys.readouterr().err
    assert main(["console", "mongodb://localhost:nothing"]) == 1
    assert capsys.readouterr().err.startswith("headrace: ")


@pytest.fixture(scope="module")
def guarded() -> Iterator[ConsoleServer]:
    """A console of a server that wants users; ada may read shop, and root everything."""
    with headrace.Server(auth=True) as server:
        where = urllib.parse.urlsplit(server.uri)
        uri = f"mongodb://{where.hostname}:{where.port}/?replicaSet=rs0"
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        with pymongo.MongoClient[dict[str, Any]](uri, username="root", password="secret") as client:
            client.shop.command("createUser", "ada", pwd="lovelace", roles=["read"])
            client.shop.orders.insert_one({"_id": 1})
            client.other.secret.insert_one({"_id": 2})
        console = ConsoleServer(uri)
        thread = console.start()
        yield console
        console.stop()
        thread.join(10)


def test_a_server_with_users_is_shown_with_the_credentials_of_the_user_who_asks(guarded: ConsoleServer) -> None:
    with signed(guarded) as browser, signed(guarded) as other:
        assert browser.get("/api/session").json()["wantsUser"]
        assert browser.get("/api/documents", params={"ns": "shop.orders"}).json()["code"] == 13
        wrong = {"user": "ada", "password": "x", "database": "shop"}
        refused = browser.post("/api/sign-in", json=wrong)
        assert refused.status_code == 400 and refused.json()["code"] == 18
        session = browser.post("/api/sign-in", json=wrong | {"password": "lovelace"}).json()
        assert session["user"] == "ada" and not session["wantsUser"]
        assert len(browser.get("/api/documents", params={"ns": "shop.orders"}).json()["documents"]) == 1
        assert browser.get("/api/documents", params={"ns": "other.secret"}).json()["code"] == 13
        listed = {one["database"] for one in browser.get("/api/collections").json()["collections"]}
        assert listed - INTERNAL_DATABASES == {"shop"}
        assert other.get("/api/documents", params={"ns": "shop.orders"}).json()["code"] == 13, "another's session"
        with browser.stream("GET", "/api/tail", params={"ns": "other"}) as response:
            assert "error 13" in Events(response).next("failed")["error"]
        assert browser.post("/api/sign-out", json={}).status_code == 200
        assert browser.get("/api/documents", params={"ns": "shop.orders"}).json()["code"] == 13


def test_equal_credentials_share_a_connection_until_the_last_one_signs_out(guarded: ConsoleServer) -> None:
    sessions = guarded._sessions
    right = {"user": "root", "password": "secret", "database": "admin"}
    with signed(guarded) as browser, signed(guarded) as other:
        assert browser.post("/api/sign-in", json=right).status_code == 200
        assert other.post("/api/sign-in", json=right).status_code == 200
        assert len(sessions._connections) == 1
        browser.post("/api/sign-out", json={})
        assert other.get("/api/oplog").status_code == 200
        other.post("/api/sign-out", json={})
        assert not sessions._connections


def test_a_session_that_signed_in_and_does_nothing_is_signed_out(guarded: ConsoleServer) -> None:
    sessions = guarded._sessions
    right = {"user": "root", "password": "secret", "database": "admin"}
    with signed(guarded) as browser, signed(guarded) as other:
        assert browser.post("/api/sign-in", json=right).status_code == 200
        name = browser.cookies[guarded.cookie]
        with sessions.streaming(name):
            sessions._used[name] = float("-inf")
            other.get("/api/session")
            assert name in sessions._keys, "it has a stream"
        assert sessions._used[name] > 0
        sessions._used[name] = float("-inf")
        other.get("/api/session")
        assert not sessions._connections
        assert browser.get("/api/session").json()["wantsUser"]
