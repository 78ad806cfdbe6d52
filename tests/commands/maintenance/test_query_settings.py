"""Query settings: for all commands of one shape they refuse them, or say which indexes there are; they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.query.command_shape import command_shape, hash_of_shape
from headrace.running_command import running_command
from headrace.testing.driven import DrivenServer
from headrace.turns import Turns
from headrace.values.bson import decode

QUERY = {"find": "c", "filter": {"a": 1, "b": {"$gt": 1}}, "$db": "t"}
HINTS = {"indexHints": [{"ns": {"db": "t", "coll": "c"}, "allowedIndexes": ["b_1"]}]}
LOOKUP = {
    "aggregate": "c", "pipeline": [{"$lookup": {"from": "d", "localField": "a", "foreignField": "b", "as": "x"}}],
    "$db": "t",
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": n, "a": n, "b": n} for n in range(5)]})
        keys = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]
        server.must("t", {"createIndexes": "c", "indexes": keys})
        yield server


def settings_set(server: DrivenServer, settings: dict[str, Any], query: Any = QUERY) -> dict[str, Any]:
    reply = server.run("admin", {"setQuerySettings": query, "settings": settings})
    assert isinstance(reply, dict)
    return reply


def in_turn(server: DrivenServer, database: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a read that runs in a turn, as the server runs it."""
    request = server.request(database, body)
    answer = Turns(seconds=60.0).run(server.engine.run_read, server.engine.command(request), request)
    assert isinstance(answer, bytes)
    return decode(answer)


def shown(server: DrivenServer, **options: Any) -> list[dict[str, Any]]:
    body = {"aggregate": 1, "pipeline": [{"$querySettings": options}], "cursor": {}}
    return server.must("admin", body)["cursor"]["firstBatch"]  # type: ignore[no-any-return]


def test_settings_are_merged_shown_and_removed(server: DrivenServer) -> None:
    first = settings_set(server, {**HINTS, "queryFramework": "classic"})
    assert (first["settings"], first["representativeQuery"]) == ({**HINTS, "queryFramework": "classic"}, QUERY)
    digest = first["queryShapeHash"]
    assert len(digest) == 64
    again = settings_set(server, {"comment": "slow", "reject": True}, digest)
    assert again["settings"] == {**HINTS, "queryFramework": "classic", "comment": "slow", "reject": True}
    assert settings_set(server, {"reject": False}, digest)["settings"] == {
        **HINTS, "queryFramework": "classic", "comment": "slow",
    }  # fmt: skip
    (item,) = shown(server)
    assert list(item) == ["queryShapeHash", "settings", "representativeQuery"]
    (item,) = shown(server, showDebugQueryShape=True)
    assert item["debugQueryShape"] == {
        "cmdNs": {"db": "t", "coll": "c"}, "command": "find",
        "filter": {"$and": [{"a": {"$eq": "?number"}}, {"b": {"$gt": "?number"}}]},
    }  # fmt: skip
    other = {**QUERY, "filter": {"a": 7, "b": {"$gt": -3}}}
    assert server.must("admin", {"removeQuerySettings": other})["ok"] == 1.0
    assert not shown(server)
    assert server.run("admin", {"removeQuerySettings": digest})["code"] == 7746701


def test_a_rejected_shape_fails_with_any_values_and_can_be_explained(server: DrivenServer) -> None:
    settings_set(server, {"reject": True})
    found = {"find": "c", "filter": {"a": 3, "b": {"$gt": 0}}}
    failed = server.run("t", found)
    assert (failed["code"], failed["codeName"]) == (411, "QueryRejectedBySettings")
    for other in (
        {**found, "sort": {"a": 1}}, {"find": "c", "filter": {"a": 3, "b": {"$gte": 0}}}, {"find": "c"},
        {"count": "c", "query": found["filter"]},
    ):  # fmt: skip
        assert server.run("t", other)["ok"] == 1.0
    assert server.run("u", found)["ok"] == 1.0
    assert server.must("t", {"explain": found})["ok"] == 1.0


def test_the_planner_has_the_indexes_that_the_hints_name(server: DrivenServer) -> None:
    settings_set(server, HINTS)
    found = {"find": "c", "filter": {"a": 3, "b": {"$gt": 0}}}
    for body in (found, {**found, "hint": "a_1"}):
        explained = in_turn(server, "t", {"explain": body, "verbosity": "queryPlanner"})
        assert explained["queryPlanner"]["winningPlan"]["inputStage"]["indexName"] == "b_1"
        assert [item["_id"] for item in in_turn(server, "t", body)["cursor"]["firstBatch"]] == [3]
    assert running_command() is None
    settings_set(server, {"indexHints": {"ns": {"db": "t", "coll": "c"}, "allowedIndexes": [{"nope": 1}]}})
    explained = in_turn(server, "t", {"explain": found, "verbosity": "queryPlanner"})
    assert explained["queryPlanner"]["winningPlan"]["stage"] == "COLLSCAN"


def test_settings_outlive_the_server(tmp_path: Path) -> None:
    with DrivenServer(tmp_path) as server:
        settings_set(server, {"reject": True})
        server.restart()
        assert server.run("t", {"find": "c", "filter": {"a": 0, "b": {"$gt": 0}}})["code"] == 411


REFUSED: list[tuple[Any, Any, int]] = [
    ({"count": "c", "$db": "t"}, {"reject": True}, 7746402),
    ({"notAValid": "query"}, {"reject": True}, 7746402),
    ({"find": "c"}, {"reject": True}, 40414),
    ({"find": "c", "$db": "t", "nope": 1}, {"reject": True}, 40415),
    ({"find": "c", "$db": "admin"}, {"reject": True}, 8584900),
    ({"find": "c", "filter": {"_id": 1}, "$db": "t"}, {"reject": True}, 7746606),
    ("00", {"reject": True}, 2),
    (1, {"reject": True}, 14),
    (None, {"reject": True}, 40414),
    (QUERY, None, 40414),
    (QUERY, {}, 7746604),
    (QUERY, {"comment": "x"}, 7746604),
    (QUERY, {"nope": 1}, 40415),
    (QUERY, {"reject": 1}, 14),
    (QUERY, {"queryFramework": "x"}, 2),
    (QUERY, {"indexHints": 1}, 14),
    (QUERY, {"indexHints": [1]}, 14),
    (QUERY, {"indexHints": {"allowedIndexes": []}}, 7746602),
    (QUERY, {"indexHints": {"ns": {"coll": "c"}, "allowedIndexes": []}}, 8727500),
    (QUERY, {"indexHints": {"ns": {"db": "t"}, "allowedIndexes": []}}, 8727501),
    (QUERY, {"indexHints": {"ns": {"db": "t", "coll": "c"}}}, 40414),
    (QUERY, {"indexHints": {"ns": {"db": "t", "coll": "d"}, "allowedIndexes": []}}, 7746603),
    (QUERY, {"indexHints": [*HINTS["indexHints"], *HINTS["indexHints"]]}, 7746608),
    (LOOKUP, {"indexHints": {"ns": {"db": "t", "coll": "e"}, "allowedIndexes": []}}, 7746603),
]


@pytest.mark.parametrize(("query", "settings", "code"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_with_settings_is_refused(server: DrivenServer, query: Any, settings: Any, code: int) -> None:
    assert settings_set(server, settings, query)["code"] == code
    assert not shown(server)


def test_hints_may_be_for_a_joined_collection(server: DrivenServer) -> None:
    hints = {"indexHints": {"ns": {"db": "t", "coll": "d"}, "allowedIndexes": [{"b": 1}]}}
    assert settings_set(server, hints, LOOKUP)["ok"] == 1.0


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"find": "c", "filter": {"a": 1}}, {"find": "c", "filter": {"a": {"$eq": 2.5}}}),
    ({"find": "c"}, {"find": "c", "filter": {}, "batchSize": 5, "comment": "x", "maxTimeMS": 9, "hint": "a_1"}),
    ({"find": "c", "filter": {"a": {"$in": [1, 2]}}}, {"find": "c", "filter": {"a": {"$in": [3]}}}),
    ({"find": "c", "limit": 1, "skip": 2}, {"find": "c", "skip": 5, "limit": 7}),
    ({"find": "c", "filter": {"$expr": {"$gt": ["$a", 1]}}}, {"find": "c", "filter": {"$expr": {"$gt": ["$a", 9]}}}),
    ({"distinct": "c", "key": "a"}, {"distinct": "c", "key": "a", "query": {}}),
    (
        {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$limit": 3}, {"$project": {"x": {"$add": ["$a", 1]}}}]},
        {"aggregate": "c", "pipeline": [{"$match": {"a": 2}}, {"$limit": 4}, {"$project": {"x": {"$add": ["$a", 5]}}}]},
    ),
    (
        {"aggregate": "c", "pipeline": [{"$lookup": {"from": "d", "pipeline": [{"$match": {"x": 1}}], "as": "y"}}]},
        {"aggregate": "c", "pipeline": [{"$lookup": {"from": "d", "pipeline": [{"$match": {"x": 8}}], "as": "y"}}]},
    ),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"find": "c", "filter": {"a": 1}}, {"find": "c", "filter": {"a": "1"}}),
    ({"find": "c", "filter": {"a": 1}}, {"find": "c", "filter": {"b": 1}}),
    ({"find": "c", "filter": {"a": {"$gt": 1}}}, {"find": "c", "filter": {"a": {"$lt": 1}}}),
    ({"find": "c", "sort": {"a": 1}}, {"find": "c", "sort": {"a": -1}}),
    ({"find": "c", "projection": {"a": 1}}, {"find": "c", "projection": {"a": 0}}),
    ({"find": "c", "collation": {"locale": "en"}}, {"find": "c", "collation": {"locale": "fr"}}),
    ({"find": "c", "filter": {"a": 1}}, {"find": "d", "filter": {"a": 1}}),
    ({"find": "c"}, {"find": "c", "limit": 5}),
    ({"find": "c"}, {"aggregate": "c", "pipeline": []}),
    ({"distinct": "c", "key": "a"}, {"distinct": "c", "key": "b"}),
    (
        {"aggregate": "c", "pipeline": [{"$lookup": {"from": "d", "pipeline": [], "as": "y"}}]},
        {"aggregate": "c", "pipeline": [{"$lookup": {"from": "e", "pipeline": [], "as": "y"}}]},
    ),
]


@pytest.mark.parametrize(("one", "other", "are_same"), [(*pair, True) for pair in SAME] + [(*p, False) for p in OTHER])
def test_the_hash_is_that_of_the_shape(
    server: DrivenServer, one: dict[str, Any], other: dict[str, Any], are_same: bool
) -> None:
    digests = [hash_of_shape(command_shape(next(iter(body)), "t", body)) for body in (one, other)]
    assert (digests[0] == digests[1]) == are_same
    explained = [server.must("t", {"explain": {**body, "cursor": {}} if "aggregate" in body else body})
                 for body in (one, other)]  # fmt: skip
    assert [item["queryShapeHash"] for item in explained] == digests
