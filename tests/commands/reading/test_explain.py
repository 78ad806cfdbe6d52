"""explain tells how documents are found, and counts what was looked at."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number, "x": number % 3} for number in range(30)])
        client.t.create_collection("v", viewOn="c", pipeline=[{"$match": {"x": 1}}])
        yield client


def explain(client: Any, command: dict[str, Any], verbosity: str = "executionStats") -> Any:
    return client.t.command({"explain": command, "verbosity": verbosity})


def stages(stage: dict[str, Any]) -> list[str]:
    return [stage["stage"], *(stages(stage["inputStage"]) if "inputStage" in stage else [])]


@pytest.mark.parametrize(
    ("find", "plan", "keys", "documents", "returned"),
    [
        ({"filter": {"_id": 3}}, ["IDHACK"], 1, 1, 1),
        ({"filter": {"_id": 99}}, ["IDHACK"], 1, 0, 0),
        ({"filter": {"_id": {"$in": [3, 4, 99]}}}, ["FETCH", "IXSCAN"], 3, 2, 2),
        ({"filter": {"_id": {"$gte": 27}, "x": 0}}, ["FETCH", "IXSCAN"], 3, 3, 1),
        ({"filter": {"x": 1}}, ["COLLSCAN"], 0, 30, 10),
        ({}, ["COLLSCAN"], 0, 30, 30),
        ({"sort": {"_id": -1}, "limit": 2}, ["LIMIT", "FETCH", "IXSCAN"], 2, 2, 2),
        ({"sort": {"x": 1}, "skip": 5}, ["SKIP", "SORT", "COLLSCAN"], 0, 30, 25),
        ({"sort": {"x": 1}, "skip": 5, "limit": 2**63 - 1}, ["SKIP", "SORT", "COLLSCAN"], 0, 30, 25),
        ({"filter": {"x": 0}, "projection": {"x": 1}}, ["PROJECTION_SIMPLE", "COLLSCAN"], 0, 30, 10),
    ],
)
def test_explain_of_a_find_shows_the_plan_that_runs(
    client: Any, find: dict[str, Any], plan: list[str], keys: int, documents: int, returned: int
) -> None:
    explained = explain(client, {"find": "c", **find})
    assert stages(explained["queryPlanner"]["winningPlan"]) == plan
    stats = explained["executionStats"]
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]) == (keys, documents, returned)
    assert explained["command"]["find"] == "c" and explained["serverInfo"]["port"] == client.address[1]


def test_explain_shows_the_direction(client: Any) -> None:
    scan = explain(client, {"find": "c", "sort": {"_id": -1}})["queryPlanner"]["winningPlan"]["inputStage"]
    assert (scan["direction"], scan["indexName"]) == ("backward", "_id_")
    assert explain(client, {"find": "c", "sort": {"$natural": -1}})["queryPlanner"]["winningPlan"] == {
        "stage": "COLLSCAN", "direction": "backward",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "parsed"),
    [
        ({}, {}),
        ({"a": 1}, {"a": {"$eq": 1}}),
        ({"a": {"b": 1}}, {"a": {"$eq": {"b": 1}}}),
        ({"a": 1, "b": {"$gt": 1, "$lt": 5}}, {"$and": [{"a": {"$eq": 1}}, {"b": {"$gt": 1}}, {"b": {"$lt": 5}}]}),
        ({"$and": [{"a": 1}, {"b": 2, "c": 3}], "$comment": "x"},
         {"$and": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}, {"c": {"$eq": 3}}]}),
        ({"$or": [{"a": 1}, {"b": {"$regex": "x", "$options": "i"}}]},
         {"$or": [{"a": {"$eq": 1}}, {"b": {"$regex": "x", "$options": "i"}}]}),
    ],
)  # fmt: skip
def test_the_filter_is_shown_as_it_was_understood(client: Any, spec: dict[str, Any], parsed: dict[str, Any]) -> None:
    assert explain(client, {"find": "c", "filter": spec}, "queryPlanner")["queryPlanner"]["parsedQuery"] == parsed


def test_without_counts_nothing_is_run(client: Any) -> None:
    plan = explain(client, {"find": "nowhere"}, "queryPlanner")
    assert plan["queryPlanner"]["winningPlan"] == {"stage": "EOF"} and "executionStats" not in plan


def test_writes_are_explained_and_not_done(client: Any) -> None:
    update = {"q": {"x": {"$lt": 2}}, "u": {"$set": {"x": 1}}, "multi": True}
    plan = explain(client, {"update": "c", "updates": [update]})["executionStats"]
    assert plan["executionStages"]["nMatched"] == 20 and plan["executionStages"]["nWouldModify"] == 10
    plan = explain(client, {"delete": "c", "deletes": [{"q": {"x": 1}, "limit": 0}]})["executionStats"]
    assert plan["executionStages"]["nWouldDelete"] == 10
    plan = explain(client, {"findAndModify": "c", "query": {"_id": 77}, "update": {"$set": {"x": 9}}, "upsert": True})
    assert stages(plan["queryPlanner"]["winningPlan"]) == ["UPDATE", "IDHACK"]
    assert plan["executionStats"]["executionStages"]["nWouldUpsert"] == 1
    assert client.t.c.count_documents({"x": 1}) == 10 and client.t.c.count_documents({}) == 30


def test_count_and_distinct(client: Any) -> None:
    plan = explain(client, {"count": "c", "query": {"x": 1}})
    assert stages(plan["queryPlanner"]["winningPlan"]) == ["COUNT", "COLLSCAN"]
    assert plan["executionStats"]["executionStages"]["nCounted"] == 10
    assert explain(client, {"distinct": "c", "key": "x"})["executionStats"]["nReturned"] == 3


def test_a_pipeline_is_its_first_filter_and_its_other_stages(client: Any) -> None:
    pipeline = [{"$match": {"_id": {"$lt": 9}}}, {"$group": {"_id": "$x"}}, {"$out": "never"}]
    plan = explain(client, {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["stages"]
    assert [next(iter(stage)) for stage in plan] == ["$cursor", "$group", "$out"]
    assert plan[0]["$cursor"]["executionStats"]["totalDocsExamined"] in range(9, 12)
    assert [stage["nReturned"] for stage in plan[:2]] == [9, 3]
    assert "never" not in client.t.list_collection_names()
    plain = client.t.command("aggregate", "c", pipeline=[{"$match": {"_id": 1}}], explain=True)
    assert plain["queryPlanner"]["winningPlan"] == {"stage": "IDHACK"}


def test_a_view_is_explained_by_what_it_stands_on(client: Any) -> None:
    plan = explain(client, {"find": "v", "filter": {"_id": 4}})
    assert plan["stages"][0]["$cursor"]["queryPlanner"]["namespace"] == "t.c"


def test_drivers_can_ask_for_it(client: Any) -> None:
    assert client.t.c.find({"x": 1}).explain()["executionStats"]["nReturned"] == 10


@pytest.mark.parametrize(
    ("command", "verbosity", "code"),
    [
        ({"find": "c"}, "loud", 2),
        ({"nonsense": 1}, "queryPlanner", 59),
        ({"ping": 1}, "queryPlanner", 20),
        ({"find": "c", "filter": {"$bad": 1}}, "queryPlanner", 2),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 0}] * 2}, "queryPlanner", 16),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, "queryPlanner", 115),
    ],
)
def test_what_cannot_be_explained_is_refused(client: Any, command: dict[str, Any], verbosity: str, code: int) -> None:
    with pytest.raises(OperationFailure) as caught:
        explain(client, command, verbosity)
    assert caught.value.code == code


@pytest.fixture(scope="module")
def indexed(client: Any) -> Any:
    documents = [{"_id": n, "a": n % 10, "b": n, "t": [n, n + 1], "s": f"x{n}"} for n in range(200)]
    client.t.i.insert_many(documents)
    client.t.i.create_index([("a", 1), ("b", -1)], name="ab")
    client.t.i.create_index("t", name="t")
    client.t.i.create_index("s", name="s")
    return client


def scan_of(plan: dict[str, Any]) -> dict[str, Any]:
    return scan_of(plan["inputStage"]) if "inputStage" in plan else plan


@pytest.mark.parametrize(
    ("find", "plan", "index", "bounds", "counts"),
    [
        ({"filter": {"a": 3}}, ["FETCH", "IXSCAN"], "ab", {"a": ["[3, 3]"], "b": ["[MaxKey, MinKey]"]}, (20, 20, 20)),
        ({"filter": {"a": 3, "b": {"$gt": 50, "$lte": 93}}}, ["FETCH", "IXSCAN"], "ab",
         {"a": ["[3, 3]"], "b": ["[93, 50)"]}, (5, 5, 5)),
        ({"filter": {"a": {"$in": [1, 2]}}, "limit": 3}, ["LIMIT", "FETCH", "IXSCAN"], "ab",
         {"a": ["[1, 1]", "[2, 2]"], "b": ["[MaxKey, MinKey]"]}, (3, 3, 3)),
        ({"filter": {"a": 3}, "sort": {"b": 1}, "limit": 2}, ["LIMIT", "FETCH", "IXSCAN"], "ab",
         {"a": ["[3, 3]"], "b": ["[MinKey, MaxKey]"]}, (2, 2, 2)),
        ({"filter": {"a": 3}, "sort": {"s": 1}}, ["SORT", "FETCH", "IXSCAN"], "ab",
         {"a": ["[3, 3]"], "b": ["[MaxKey, MinKey]"]}, (20, 20, 20)),
        ({"filter": {"t": {"$gte": 5, "$lt": 6}}}, ["FETCH", "IXSCAN"], "t", {"t": ["[-inf, 6)"]}, (11, 6, 2)),
        ({"filter": {"s": {"$regex": "^x1"}}}, ["FETCH", "IXSCAN"], "s",
         {"s": ['["x1", "x2")', "[/^x1/, /^x1/]"]}, (111, 111, 111)),
        ({"sort": {"s": -1}, "limit": 1}, ["LIMIT", "FETCH", "IXSCAN"], "s", {"s": ["[MaxKey, MinKey]"]}, (1, 1, 1)),
        ({"filter": {"b": 3}, "hint": "s"}, ["FETCH", "IXSCAN"], "s", {"s": ["[MinKey, MaxKey]"]}, (200, 200, 1)),
    ],
)  # fmt: skip
def test_explain_shows_the_bounds_of_an_index(
    indexed: Any, find: dict[str, Any], plan: list[str], index: str, bounds: dict[str, Any], counts: tuple[int, ...]
) -> None:
    explained = explain(indexed, {"find": "i", **find})
    winning, stats = explained["queryPlanner"]["winningPlan"], explained["executionStats"]
    assert stages(winning) == plan
    scan = scan_of(winning)
    assert (scan["indexName"], scan["indexBounds"]) == (index, bounds)
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]) == counts


def test_a_count_by_an_index_reads_no_document(indexed: Any) -> None:
    explained = explain(indexed, {"count": "i", "query": {"a": {"$gt": 7}}})
    assert stages(explained["queryPlanner"]["winningPlan"]) == ["COUNT", "COUNT_SCAN"]
    stats = explained["executionStats"]
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"]) == (40, 0)
    assert stats["executionStages"]["nCounted"] == 40
    assert indexed.t.i.count_documents({"a": {"$gt": 7}}) == 40


def test_the_branches_of_an_or_have_an_index_each(indexed: Any) -> None:
    explained = explain(indexed, {"find": "i", "filter": {"$or": [{"a": 3, "b": 13}, {"s": "x3"}, {"s": "x13"}]}})
    branches = explained["queryPlanner"]["winningPlan"]["inputStage"]["inputStages"]
    assert [branch["indexName"] for branch in branches] == ["ab", "s", "s"]
    assert explained["executionStats"]["nReturned"] == 2


def test_writes_and_pipelines_go_through_indexes(indexed: Any) -> None:
    update = {"q": {"s": "x7"}, "u": {"$set": {"c": 1}}}
    explained = explain(indexed, {"update": "i", "updates": [update]})
    assert stages(explained["queryPlanner"]["winningPlan"]) == ["UPDATE", "FETCH", "IXSCAN"]
    assert explained["executionStats"]["totalDocsExamined"] == 1
    pipeline: list[dict[str, Any]] = [{"$match": {"a": 3}}, {"$sort": {"b": -1}}, {"$limit": 4}]
    explained = explain(indexed, {"aggregate": "i", "pipeline": pipeline, "cursor": {}})
    assert [next(iter(stage)) for stage in explained["stages"]] == ["$cursor", "$limit"]
    assert explained["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"] == 4


def test_other_ways_are_shown_as_rejected(indexed: Any) -> None:
    plan = explain(indexed, {"find": "i", "filter": {"a": 3, "s": "x3"}}, "queryPlanner")["queryPlanner"]
    assert scan_of(plan["winningPlan"])["indexName"] == "s"
    assert [scan_of(other)["indexName"] for other in plan["rejectedPlans"]] == ["ab"]


def test_a_lookup_shows_what_it_has_examined_itself(indexed: Any) -> None:
    """What it reads is no part of the counts of the plan before it."""
    indexed.t.orders.insert_many([{"_id": number, "a": number} for number in range(3)])
    lookup = {"$lookup": {"from": "i", "localField": "a", "foreignField": "a", "as": "found"}}
    command = {"aggregate": "orders", "pipeline": [lookup, {"$limit": 2}], "cursor": {}}
    source, joined, _ = explain(indexed, command)["stages"]
    ran = source["$cursor"]["executionStats"]
    assert (ran["totalDocsExamined"], ran["totalKeysExamined"]) == (3, 0)
    assert (joined["totalDocsExamined"], joined["totalKeysExamined"]) == (40, 40)
    assert (joined["collectionScans"], joined["indexesUsed"]) == (0, ["ab"])
    lookup["$lookup"]["from"] = "orders"
    joined = explain(indexed, {**command, "pipeline": [lookup]})["stages"][1]
    assert (joined["totalDocsExamined"], joined["totalKeysExamined"], joined["indexesUsed"]) == (3, 0, [])
    assert joined["collectionScans"] == 1


EXPLAINED: dict[str, dict[str, Any]] = {
    "aggregate": {"aggregate": "c", "pipeline": [{"$match": {"x": 1}}], "cursor": {}},
    "count": {"count": "c"},
    "delete": {"delete": "c", "deletes": [{"q": {}, "limit": 1}]},
    "distinct": {"distinct": "c", "key": "x"},
    "find": {"find": "c"},
    "findAndModify": {"findAndModify": "c", "query": {}, "update": {"x": 1}},
    "update": {"update": "c", "updates": [{"q": {}, "u": {"x": 1}}]},
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_command_inside_names_the_database_of_the_explain_or_none(client: Any, name: str) -> None:
    with pytest.raises(OperationFailure) as refused:
        explain(client, {**EXPLAINED[name], "$db": "other"})
    message = "Mismatched $db in explain command. Expected t but got other"
    assert (refused.value.code, refused.value.details["errmsg"]) == (73, message)  # type: ignore[index]
    with pytest.raises(OperationFailure) as refused:
        explain(client, {**EXPLAINED[name], "$db": 1})
    assert refused.value.code == 14
    named, unnamed = explain(client, {**EXPLAINED[name], "$db": "t"}), explain(client, EXPLAINED[name])
    for reply in (named, unnamed):
        assert reply["command"]["$db"] == "t"
        assert "t.c" in str(reply.get("queryPlanner") or reply["stages"][0]["$cursor"]["queryPlanner"])


def test_explain_takes_no_write_concern(client: Any) -> None:
    for command, code in (
        ({"explain": EXPLAINED["find"], "writeConcern": {"w": 1}}, 72),
        ({"aggregate": "c", "pipeline": [], "explain": True, "writeConcern": {"w": 1}}, 9),
    ):
        with pytest.raises(OperationFailure) as refused:
            client.t.command(command)
        assert refused.value.code == code
