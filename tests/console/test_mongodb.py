"""The console of a MongoDB server: every view shows what the server reports, and says what it may not look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from headrace.cli.console.application import ConsoleServer
from tests.console.conftest import Events, signed
from tests.console.mongodb import TOKEN, mongodb
from tests.waiting import until


@contextmanager
def shown(*refused: str) -> Iterator[httpx.Client]:
    """A browser at the console of a server that refuses these commands and stages (13)."""
    with mongodb(*refused) as server:
        console = ConsoleServer(server.uri)
        thread = console.start()
        try:
            with signed(console) as browser:
                yield browser
        finally:
            console.stop()
            thread.join(10)


def history(browser: httpx.Client) -> dict[str, Any]:
    """The first event of the live view: what it knows when it opens."""
    with browser.stream("GET", "/api/live") as response:
        return Events(response).next("history")


def test_every_view_shows_what_mongodb_reports() -> None:
    with shown() as browser:
        session = browser.get("/api/session").json()
        assert (session["server"], session["version"], session["wantsUser"]) == ("db1:27017", "8.0.4", False)
        with browser.stream("GET", "/api/tail", params={"ns": "shop.orders"}) as response:
            (event,) = Events(response).next("events")["events"]
        assert event["operation"] == "insert" and json.loads(event["token"]) == {"_data": TOKEN}
        (row,) = browser.get("/api/collections").json()["collections"]
        assert (row["collection"], row["count"], row["indexes"]) == ("orders", 5, 2)
        found = browser.get("/api/collection", params={"ns": "shop.orders"}).json()
        assert [(index["name"], index["uses"]) for index in found["indexes"]] == [("_id_", 3), ("qty_1", 3)]
        asked = {"ns": "shop.orders", "filter": '{"qty": 3}'}
        assert len(browser.get("/api/documents", params=asked).json()["documents"]) == 5
        plan = browser.get("/api/explain", params=asked).json()
        assert plan["root"]["stage"] == "COLLSCAN" and plan["totals"]["documents"] == 5
        asked["filter"] = '[{"$group": {"_id": "$qty"}}]'
        plan = browser.get("/api/explain", params=asked).json()
        assert plan["root"]["stage"] == "$group" and plan["root"]["children"][0]["stage"] == "COLLSCAN"
        (shape,) = browser.get("/api/slow").json()["shapes"]
        assert shape["index"] == '{"qty": 1}'
        oplog = browser.get("/api/oplog").json()
        assert (oplog["windowSecs"], oplog["retentionHours"], oplog["bytesMax"]) == (60, None, 1038090240)


def test_figures_of_mongodb_lack_only_what_headrace_adds() -> None:
    with shown() as browser, browser.stream("GET", "/api/live") as response:
        sample = Events(response).next("sample")
    status, point = sample["status"], sample["point"]
    assert status["process"] == "mongod" and status["commitsPerSec"] is None and status["memory"]["largest"] is None
    assert point["readsMs"] == 0.3 and point["residentBytes"] == 180 * 1024 * 1024 and point["counted"] is None
    (stream,) = status["streams"]
    assert stream["slow"] and stream["reason"] == "its client has not asked for 20 s" and stream["client"] == "orders"


@pytest.mark.parametrize(
    ("refused", "path", "asked"),
    [
        ("serverStatus", "/api/live", {}), ("find", "/api/oplog", {}), ("listDatabases", "/api/collections", {}),
        ("find", "/api/documents", {"ns": "shop.orders"}), ("explain", "/api/explain", {"ns": "shop.orders"}),
        ("listCollections", "/api/collection", {"ns": "shop.orders"}),
        ("$changeStream", "/api/tail", {"ns": "shop.orders"}),
    ],
)  # fmt: skip
def test_a_view_that_the_user_may_not_see_says_so(refused: str, path: str, asked: dict[str, str]) -> None:
    with shown(refused) as browser:
        if path == "/api/live":
            until(lambda: history(browser)["error"])
            error = history(browser)["error"]
        elif path == "/api/tail":
            with browser.stream("GET", path, params=asked) as response:
                error = Events(response).next("failed")["error"]
        else:
            answer = browser.get(path, params=asked)
            assert answer.status_code == 400
            error = answer.json()["error"]
        assert "error 13 (Unauthorized)" in error


def test_what_a_user_may_not_see_is_left_out_of_the_rest() -> None:
    with shown("$currentOp", "$collStats", "$indexStats", "profile") as browser:
        (row,) = browser.get("/api/collections").json()["collections"]
        assert row == {"database": "shop", "collection": "orders", "type": "collection"}
        found = browser.get("/api/collection", params={"ns": "shop.orders"}).json()
        assert [(index["name"], index["bytes"]) for index in found["indexes"]] == [("_id_", None), ("qty_1", None)]
        assert browser.get("/api/slow").json() == {"shapes": [], "off": [], "refused": ["shop"]}
        with browser.stream("GET", "/api/live") as response:
            status = Events(response).next("sample")["status"]
        assert status["process"] == "mongod" and status["streams"] == [] and "error 13" in status["streamsProblem"]
