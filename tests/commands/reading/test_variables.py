"""MongoDB's own variables, `$$NOW`, `$$CLUSTER_TIME` and `$$USER_ROLES`, wherever a command takes an expression."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure, WriteError

import headrace

USERS = {"ann": {"pwd": "secret", "roles": ["root", {"role": "read", "db": "other"}]}}
ROLES = [{"_id": "other.read", "role": "read", "db": "other"}, {"_id": "admin.root", "role": "root", "db": "admin"}]
NOW = {"$lt": [{"$dateSubtract": {"startDate": "$$NOW", "unit": "day", "amount": 1}}, "$$NOW"]}
CLUSTER_TIME = {"$gt": ["$$CLUSTER_TIME", Timestamp(1, 1)]}
SOME_ROLES = {"$in": ["other.read", "$$USER_ROLES._id"]}
EXPRESSIONS = pytest.mark.parametrize("expression", [NOW, CLUSTER_TIME, SOME_ROLES], ids=["now", "time", "roles"])


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server(users=USERS) as server, MongoClient(server.uri, username="ann", password="secret") as client:
        yield client


@pytest.fixture
def collection(client: MongoClient[dict[str, Any]]) -> Any:
    client.drop_database("d")
    client.d.c.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])
    client.d.create_collection("v", viewOn="c", pipeline=[])
    return client.d.c


@EXPRESSIONS
@pytest.mark.parametrize("name", ["c", "v"])
def test_reads_have_them(collection: Any, expression: dict[str, Any], name: str) -> None:
    source, where = collection.database[name], {"$expr": expression}
    assert len(list(source.find(where))) == 2
    assert not list(source.find({"$expr": {"$not": [expression]}}))
    assert source.find_one({"_id": 1}, {"_id": 0, "is": expression}) == {"is": True}
    assert source.count_documents(where) == 2
    if name == "v" or expression is SOME_ROLES:
        assert collection.database.command("count", name, query=where)["n"] == 2
        assert source.distinct("a", where) == [1, 2]
    other = [{"$match": {"$expr": {"$and": ["$$mine", expression]}}}]
    joined = {"$lookup": {"from": "c", "let": {"mine": expression}, "pipeline": other, "as": "all"}}
    assert all(len(each["all"]) == 2 for each in source.aggregate([{"$match": where}, joined]))
    with pytest.raises(OperationFailure) as refused:
        source.aggregate([], let={"of": expression})  # the values of `let` have none of them
    assert refused.value.code == 51144
    collection.database.command("explain", {"find": name, "filter": where})


@EXPRESSIONS
def test_writes_have_them(collection: Any, expression: dict[str, Any]) -> None:
    where = {"_id": 1, "$expr": expression}
    assert collection.update_one(where, {"$set": {"b": 1}}).modified_count == 1
    assert collection.update_one(where, [{"$set": {"b": {"$cond": [expression, 2, 3]}}}]).modified_count == 1
    assert collection.find_one_and_update(where, {"$inc": {"b": 1}}, projection={"b": 1, "is": expression}) == {
        "_id": 1, "b": 2, "is": True,
    }  # fmt: skip
    assert collection.replace_one(where, {"a": 5}).modified_count == 1
    collection.aggregate([{"$match": where}, {"$set": {"is": expression}}, {"$merge": "merged"}])
    assert collection.database.merged.find_one() == {"_id": 1, "a": 5, "is": True}
    assert collection.delete_one(where).deleted_count == 1
    assert collection.find_one_and_delete({"_id": 2, "$expr": expression}) == {"_id": 2, "a": 2}


def test_the_time_is_that_of_the_command(collection: Any) -> None:
    collection.insert_many([{"_id": number} for number in range(10, 200)])
    times = {each["now"] for each in collection.find({"$expr": {"$gt": ["$$NOW", "$a"]}}, {"now": "$$NOW"})}
    assert len(times) == 1


def test_roles_are_those_of_the_user_of_the_connection(collection: Any) -> None:
    assert collection.aggregate([{"$limit": 1}, {"$project": {"_id": 0, "r": "$$USER_ROLES"}}]).next() == {"r": ROLES}
    with headrace.Server() as server, MongoClient(server.uri) as client:
        client.d.c.insert_one({"_id": 1})
        assert client.d.c.find_one({}, {"r": "$$USER_ROLES"}) == {"_id": 1, "r": []}
    database = collection.database
    database.client.admin.command("createUser", "bob", pwd="secret", roles=[{"role": "readWrite", "db": "d"}])
    mine = {"$match": {"$expr": {"$in": ["$reader", "$$USER_ROLES.role"]}}}
    database.create_collection("mine", viewOn="papers", pipeline=[mine])
    database.papers.insert_many([{"_id": 1, "reader": "root"}, {"_id": 2, "reader": "readWrite"}])
    address = database.client.address
    with MongoClient(*address, username="bob", password="secret") as bob:
        assert [each["_id"] for each in bob.d.mine.find()] == [2]
    assert [each["_id"] for each in database.mine.find()] == [1]


def test_validators_have_the_time(collection: Any) -> None:
    database = collection.database
    database.create_collection("checked", validator={"$expr": {"$lte": ["$at", "$$NOW"]}})
    now = database.command("hello")["localTime"]
    database.checked.insert_one({"at": now})
    with pytest.raises(WriteError) as refused:
        database.checked.insert_one({"_id": 1, "at": now.replace(year=now.year + 1)})
    details = refused.value.details["errInfo"]["details"]  # type: ignore[index]
    assert details["operatorName"] == "$expr" and details["expressionResult"] is False
    assert database.command("validate", "checked")["valid"]


UNAVAILABLE: list[dict[str, Any]] = [
    {"count": "c", "query": {}}, {"distinct": "c", "key": "a", "query": {}},
    {"count": "none", "query": {}}, {"listCollections": 1, "filter": {}}, {"listDatabases": 1, "filter": {}},
    {"explain": {"count": "c", "query": {}}}, {"explain": {"distinct": "c", "key": "a", "query": {}}},
]  # fmt: skip


@pytest.mark.parametrize("variable", ["$$NOW", "$$CLUSTER_TIME"])
@pytest.mark.parametrize("command", UNAVAILABLE, ids=lambda command: " ".join(map(str, command)))
def test_filters_without_aggregation_have_no_time(collection: Any, command: dict[str, Any], variable: str) -> None:
    inner = command.get("explain", command)
    field = "filter" if "filter" in inner else "query"
    changed = {**inner, field: {"$expr": {"$gt": [variable, None]}}}
    database = collection.database.client.admin if "listDatabases" in command else collection.database
    with pytest.raises(OperationFailure) as refused:
        database.command({"explain": changed} if "explain" in command else changed)
    assert refused.value.code == 51144


def test_a_variable_refers_to_those_before_it(collection: Any) -> None:
    variables = {"x": {"k": 1}, "y": {"$add": ["$$x.k", 1]}}
    database = collection.database
    found = database.command("find", "c", filter={"$expr": {"$eq": ["$a", "$$y"]}}, let=variables)["cursor"][
        "firstBatch"
    ]
    assert [document["_id"] for document in found] == [2]
    assert collection.update_one({"_id": 1}, [{"$set": {"b": "$$y"}}], let=variables).modified_count == 1
    assert collection.find_one({"_id": 1})["b"] == 2
    assert list(collection.aggregate([{"$limit": 1}, {"$project": {"_id": "$$y"}}], let=variables)) == [{"_id": 2}]
    with pytest.raises(OperationFailure) as refused:
        collection.aggregate([], let={"y": "$$x", "x": 1})
    assert refused.value.code == 17276
