"""mongodump, mongorestore, mongoimport, mongoexport, mongostat, mongotop and bsondump against a Headrace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient

import headrace
from tests.tools.programs import run, state, unpacked

pytestmark = pytest.mark.process

VALUES = {
    "int": 1, "long": Int64(2), "double": 1.5, "decimal": Decimal128("1.50"), "text": "ä\n", "none": None, "yes": True,
    "when": datetime(2024, 5, 6, tzinfo=UTC), "id": ObjectId("0123456789abcdef01234567"), "in": {"b": [1, {"a": 2}]},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    unpacked()


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as made:
        yield made


@pytest.fixture
def client(server: headrace.Server) -> Iterator[MongoClient[Any]]:
    with MongoClient[Any](server.uri) as made:
        yield made


@pytest.fixture
def target() -> Iterator[headrace.Server]:
    with headrace.Server() as made:
        yield made


def fill(client: MongoClient[Any]) -> None:
    """A database with every option of collections, views and indexes."""
    shop = client.shop
    shop.orders.insert_many([{"_id": number, "x": number, **VALUES} for number in range(200)])
    shop.create_collection("capped", capped=True, size=8192, max=3)
    shop.capped.insert_many([{"_id": number} for number in range(5)])
    rules: dict[str, Any] = {"validator": {"x": {"$lt": 5}}, "validationLevel": "moderate", "validationAction": "warn"}
    shop.create_collection("ruled", **rules)
    shop.create_collection("collated", collation={"locale": "en", "strength": 2})
    shop.collated.insert_one({"_id": "A"})
    shop.create_collection("imaged", changeStreamPreAndPostImages={"enabled": True})
    shop.create_collection("small", viewOn="orders", pipeline=[{"$match": {"x": {"$lt": 3}}}])
    shop.create_collection("collated view", viewOn="orders", pipeline=[], collation={"locale": "fr"})
    shop.orders.create_index("x", unique=True, name="only")
    shop.orders.create_index("y", sparse=True, hidden=True)
    shop.orders.create_index("when", expireAfterSeconds=10**9)
    shop.orders.create_index(
        [("a", 1), ("b", -1)], partialFilterExpression={"x": {"$gt": 3}}, collation={"locale": "fr"}
    )
    shop.orders.create_index("$**", wildcardProjection={"in": 0})
    shop.orders.create_index([("h", "hashed")])
    shop.collated.create_index("s")
    shop.collated.create_index("simple", collation={"locale": "simple"})
    client["other-db"].things.insert_one({"_id": 1})


def test_a_dump_is_restored_as_it_was(
    server: headrace.Server, client: MongoClient[Any], target: headrace.Server, tmp_path: Path
) -> None:
    fill(client)
    run("mongodump", server.uri, "--out", tmp_path)
    with MongoClient[Any](target.uri) as restored:
        restored.shop.orders.insert_one({"_id": "of another"})
        run("mongorestore", target.uri, "--drop", tmp_path)
        assert state(restored) == state(client)
        assert state(restored, "other-db") == state(client, "other-db")
        assert [item["_id"] for item in restored.shop.small.find()] == [0, 1, 2]
        restored.shop.capped.insert_one({"_id": 9})
        assert [item["_id"] for item in restored.shop.capped.find()] == [3, 4, 9]


def test_a_dump_is_an_archive_in_a_pipe_that_goes_elsewhere(
    server: headrace.Server, client: MongoClient[Any], target: headrace.Server, tmp_path: Path
) -> None:
    fill(client)
    archive = tmp_path / "dump"
    run("mongodump", server.uri, f"--archive={archive}", "--gzip", "--db", "shop")
    words = (
        f"--archive={archive}",
        "--gzip",
        "--nsInclude",
        "shop.orders",
        "--nsFrom",
        "shop.*",
        "--nsTo",
        "store.new_*",
    )
    run("mongorestore", target.uri, *words)
    with MongoClient[Any](target.uri) as restored:
        assert state(restored, "store") == {"new_orders": state(client)["orders"]}


def test_a_restore_preserves_uuids(
    server: headrace.Server, client: MongoClient[Any], target: headrace.Server, tmp_path: Path
) -> None:
    fill(client)
    run("mongodump", server.uri, "--out", tmp_path)
    run("mongorestore", target.uri, "--drop", "--preserveUUID", tmp_path)
    with MongoClient[Any](target.uri) as restored:
        assert state(restored) == state(client)
        uuids = [
            {item["name"]: item["info"]["uuid"] for item in of.shop.list_collections() if item["type"] == "collection"}
            for of in (client, restored)
        ]
        assert {**uuids[0], "system.views": None} == {**uuids[1], "system.views": None}


def test_users_with_roles_dump_and_restore(tmp_path: Path) -> None:
    users = {name: {"pwd": "x", "roles": [name]} for name in ("backup", "restore", "root")}
    with headrace.Server(users=users) as server, MongoClient[Any](server.uri, username="root", password="x") as client:
        client.shop.orders.insert_many([{"_id": number} for number in range(3)])
        client.shop.command("createUser", "ann", pwd="x", roles=["readWrite"])
        before = state(client)
        _as(server, "backup", "mongodump", "--out", tmp_path, "--oplog")
        client.drop_database("shop")
        client.shop.command("dropUser", "ann")
        _as(server, "root", "mongorestore", "--oplogReplay", "--drop", tmp_path)
        assert state(client) == before
        (tmp_path / "oplog.bson").unlink()
        _as(server, "restore", "mongorestore", "--preserveUUID", "--drop", tmp_path)
        assert state(client) == before
        assert client.shop.command("usersInfo", "ann")["users"][0]["roles"] == [{"role": "readWrite", "db": "shop"}]


def _as(server: headrace.Server, name: str, tool: str, *words: str | Path) -> None:
    run(tool, server.uri, "--username", name, "--password", "x", "--authenticationDatabase", "admin", *words)


def test_json_goes_out_and_in_again(server: headrace.Server, client: MongoClient[Any], tmp_path: Path) -> None:
    client.shop.orders.insert_many([{"_id": number, **VALUES} for number in range(20)])
    file = tmp_path / "orders.json"
    run("mongoexport", server.uri, "--db", "shop", "--collection", "orders", "--jsonFormat", "canonical", "--out", file)
    run("mongoimport", server.uri, "--db", "shop", "--collection", "copy", "--file", file)
    found = state(client)
    assert found["copy"] == found["orders"]
    lines = [json.dumps({"_id": number, "x": number}) for number in (1, 1, 30)]
    run(
        "mongoimport", server.uri, "--db", "shop", "--collection", "copy", "--mode", "upsert", stdin="\n".join(lines)
    )  # fmt: skip
    assert (client.shop.copy.find_one({"_id": 1}), client.shop.copy.count_documents({})) == ({"_id": 1, "x": 1}, 21)


def test_csv_goes_out_and_in_again(server: headrace.Server, client: MongoClient[Any]) -> None:
    rows = 'name,n,at.city\nann,1,Oslo\n"b,b",2,Rome\n'
    where = ("--db", "shop", "--collection", "people", "--type", "csv")
    run("mongoimport", server.uri, *where, "--headerline", stdin=rows)
    assert client.shop.people.find_one({"n": 2}, {"_id": 0}) == {"name": "b,b", "n": 2, "at": {"city": "Rome"}}
    assert run("mongoexport", server.uri, *where, "--fields", "name,n,at.city", "--sort", '{"n": 1}') == rows


def test_mongostat_sees_the_primary_of_a_set(server: headrace.Server, client: MongoClient[Any]) -> None:
    client.shop.orders.insert_one({})
    line = json.loads(run("mongostat", server.uri, "--rowcount", "1", "--json"))
    (row,) = line.values()
    assert (row["repl"], row["set"]) == ("PRI", "rs0")
    assert {"insert", "query", "update", "delete", "getmore", "command", "conn", "net_in", "res"} <= row.keys()


def test_mongotop_sees_the_collections_in_use(server: headrace.Server, client: MongoClient[Any]) -> None:
    client.shop.orders.insert_one({})
    totals = json.loads(run("mongotop", server.uri, "--rowcount", "1", "--json", "1"))["totals"]
    assert totals["shop.orders"].keys() == {"total", "read", "write"}


def test_bsondump_reads_a_dump(server: headrace.Server, client: MongoClient[Any], tmp_path: Path) -> None:
    client.shop.orders.insert_one({"_id": 1, "x": Int64(5)})
    run("mongodump", server.uri, "--out", tmp_path)
    lines = run("bsondump", "", tmp_path / "shop" / "orders.bson").splitlines()
    assert list(map(json.loads, lines)) == [{"_id": {"$numberInt": "1"}, "x": {"$numberLong": "5"}}]
