"""collMod: what changes, and what is refused, on each kind of collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

INT_MAX = 2**31 - 1


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"create": "series", "timeseries": {"timeField": "at", "metaField": "of"}})
        server.must("t", {"createIndexes": "series", "indexes": [{"key": {"of.x": 1, "at": -1}, "name": "x"}]})
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x", "expireAfterSeconds": 100}]})
        yield server


@pytest.mark.parametrize(
    ("given", "stored"),
    [(INT_MAX, INT_MAX), (Int64(2**31), INT_MAX), (1e300, INT_MAX), (float("inf"), INT_MAX),
     (Decimal128("Infinity"), INT_MAX), (Decimal128("1E+30"), INT_MAX), (float("nan"), 0), (-0.9, 0)],
)  # fmt: skip
def test_a_time_to_live_beyond_32_bits_is_the_longest(at: DrivenServer, given: Any, stored: int) -> None:
    reply = at.must("t", {"collMod": "c", "index": {"name": "x", "expireAfterSeconds": given}})
    assert (reply["expireAfterSeconds_old"], reply["expireAfterSeconds_new"]) == (100, stored)


@pytest.mark.parametrize("given", [-1, Decimal128("-1"), float("-inf"), Decimal128("-Infinity")])
def test_a_negative_time_to_live_is_refused(at: DrivenServer, given: Any) -> None:
    assert at.run("t", {"collMod": "c", "index": {"name": "x", "expireAfterSeconds": given}})["code"] == 72


@pytest.mark.parametrize("index", [{"name": "x"}, {"keyPattern": {"of.x": 1, "at": -1}}])
def test_an_index_of_a_time_series_can_be_hidden(at: DrivenServer, index: dict[str, Any]) -> None:
    change = {"collMod": "series", "index": {**index, "hidden": True}, "timeseries": {"granularity": "hours"}}
    reply = at.must("t", change)
    assert (reply["hidden_old"], reply["hidden_new"]) == (False, True)
    (found,) = (each for each in at.must("t", {"listIndexes": "series"})["cursor"]["firstBatch"] if each["name"] == "x")
    assert (found["hidden"], found["key"]) == (True, {"of.x": 1, "at": -1})
    (collection,) = at.must("t", {"listCollections": 1, "filter": {"name": "series"}})["cursor"]["firstBatch"]
    assert collection["options"]["timeseries"]["granularity"] == "hours"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"index": {"name": "none", "hidden": True}}, 27),
        ({"index": {"keyPattern": {"of.y": 1}, "hidden": True}}, 27),
        ({"index": {"name": "x", "expireAfterSeconds": 5}}, 72),
        ({"index": {"name": "x", "prepareUnique": True}}, 72),
        ({"validator": {"a": 1}}, 72),
        ({"timeseries": {}, "cappedSize": 100_000}, None),
        ({"cappedMax": 1000}, None),
    ],
)
def test_what_a_time_series_allows(at: DrivenServer, change: dict[str, Any], code: int | None) -> None:
    assert at.run("t", {"collMod": "series", **change}).get("code") == code


@pytest.mark.parametrize("database", ["admin", "config", "local"])
def test_the_servers_databases_have_no_validators(at: DrivenServer, database: str) -> None:
    at.must(database, {"create": "c"})
    assert at.run(database, {"collMod": "c", "validator": {"a": 1}})["code"] == 72
    assert at.run(database, {"create": "d", "validator": {"a": 1}})["code"] == 72


@pytest.mark.parametrize(
    ("validator", "code"),
    [({"$where": "true"}, 2), ({"a": {"$near": [0, 0]}}, 5626500), ({"a": {"$regex": "é" * 8193}}, 51091)],
)
def test_a_validator_that_no_collection_has(at: DrivenServer, validator: dict[str, Any], code: int) -> None:
    assert at.run("t", {"collMod": "c", "validator": validator})["code"] == code
    assert at.run("t", {"create": "d", "validator": validator})["code"] == code


@pytest.mark.parametrize(
    ("database", "body"),
    [
        ("local", {"collMod": "oplog.rs", "cappedSize": 100_000}), ("local", {"collMod": "oplog.rs", "cappedMax": 9}),
        ("t", {"collMod": "system.views", "validator": {"a": 1}}),
    ],
)  # fmt: skip
def test_the_oplog_has_no_new_size_and_the_views_no_validator(
    at: DrivenServer, database: str, body: dict[str, Any]
) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    reply: Any = at.run(database, body)
    assert reply["code"] == 72, reply


def test_a_view_has_no_map_and_reduce(at: DrivenServer) -> None:
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    for name, code in (("v", 166), ("c", 115)):
        reply: Any = at.run("t", {"mapReduce": name, "map": "", "reduce": "", "out": {"inline": 1}})
        assert reply["code"] == code, reply


@pytest.mark.parametrize(
    "named", [{}, {"name": None}, {"name": None, "keyPattern": None}, {"name": "x", "keyPattern": {"x": 1}}]
)
def test_an_index_is_named_once(at: DrivenServer, named: dict[str, Any]) -> None:
    for collection in ("c", "series"):
        assert at.run("t", {"collMod": collection, "index": {**named, "hidden": True}})["code"] == 72  # type: ignore[index]
    at.must("t", {"collMod": "c", "index": {"name": None, "keyPattern": {"x": 1}, "hidden": True}})
