"""The audit log: its events have MongoDB's shape, it holds up nobody, and nothing of a document is in it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace
from headrace import limits
from headrace.cli import main as cli
from headrace.cli.serve import options_of
from headrace.cli.tls_flags import BadOptions
from headrace.dispatch.options import AuditOptions
from headrace.server.audit import AuditError
from tests.server.raw import RawClient

CANARY = "canary-7f3a"


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_events_of_a_server_have_mongodbs_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_DELAY_MS", 0)
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, pymongo.MongoClient(server.uri) as client:
        server._running.scheduler.turns.seconds = 60.0  # a command that pauses creates its database before it logs
        port = int(server.address.rpartition(":")[2])
        client.admin.command("createUser", "ann", pwd=CANARY, roles=["root"], customData={"a": CANARY})
        with pymongo.MongoClient(f"mongodb://ann:{CANARY}@{server.address}/?directConnection=true") as ann:
            shop = ann.shop
            shop.create_collection("orders", validator={"a": {"$ne": CANARY}})
            shop.orders.create_index("n", partialFilterExpression={"a": CANARY}, name="by_n")
            shop.orders.insert_one({"a": CANARY + "x"})
            shop.create_collection("some", viewOn="orders", pipeline=[{"$match": {"a": CANARY}}])
            shop.orders.drop_index("by_n")
            shop.orders.rename("sales")
            shop.sales.drop()
            ann.drop_database("shop")
            with pytest.raises(OperationFailure):
                shop.orders.rename("nothing")
        uri = f"mongodb://ann:wrong@{server.address}/?directConnection=true"
        with pymongo.MongoClient(uri) as wrong, pytest.raises(OperationFailure):
            wrong.admin.command("find", "c")
    logged = events(path)
    assert CANARY not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    (logout,) = (event for event in logged if event["atype"] == "logout")
    assert logout["param"] == {
        "reason": "Implicit logout due to client connection closure",
        "initialUsers": [{"user": "ann", "db": "admin"}], "updatedUsers": [],
    }  # fmt: skip
    about_clients = ("clientMetadata", "logout")
    logged = [event for event in logged if event["atype"] not in about_clients and "system." not in str(event["param"])]
    logged = [event for event in logged if event["param"].get("indexName") != "_id_"]
    assert [event["atype"] for event in logged] == [
        "startup", "createUser", "createDatabase", "authenticate", "createDatabase", "createCollection", "createIndex",
        "createIndex", "createCollection", "dropIndex", "renameCollection", "dropCollection", "dropCollection",
        "dropDatabase", "authenticate", "shutdown",
    ]  # fmt: skip
    assert [logged.pop(2)["param"], logged.pop(3)["param"]] == [{"ns": "admin"}, {"ns": "shop"}]
    assert logged.pop(4)["param"]["indexBuildState"] == "IndexBuildStarted"
    created = logged[3]
    assert list(created) == ["atype", "ts", "uuid", "local", "remote", "users", "roles", "param", "result"]
    assert created["users"] == [{"user": "ann", "db": "admin"}] and created["roles"] == [
        {"role": "root", "db": "admin"}
    ]
    assert created["param"] == {"ns": "shop.orders"} and created["result"] == 0
    assert created["local"] == {"ip": "127.0.0.1", "port": port} and created["remote"]["ip"] == "127.0.0.1"
    assert created["uuid"] == logged[4]["uuid"] and set(created["uuid"]) == {"$binary", "$type"}
    assert logged[1]["param"]["user"] == "ann" and logged[1]["users"] == []
    assert logged[2]["param"] == {"user": "ann", "db": "admin", "mechanism": "SCRAM-SHA-256"}
    assert [event["result"] for event in logged if event["atype"] == "authenticate"] == [0, 18]
    assert logged[4]["param"] == {
        "ns": "shop.orders", "indexName": "by_n", "indexSpec": {"v": 2, "key": {"n": 1}, "name": "by_n"},
        "indexBuildState": "IndexBuildSucceeded",
    }  # fmt: skip
    assert logged[5]["param"] == logged[9]["param"] == {"ns": "shop.some", "viewOn": "shop.orders"}
    assert logged[7]["param"] == {"old": "shop.orders", "new": "shop.sales"}


def ddl(path: Path) -> list[tuple[str, str]]:
    """Action and namespace of the changes of the catalog of `shop` and `other`, but for the indexes of `_id`."""
    logged = [event for event in events(path) if event["param"].get("indexName") != "_id_"]
    logged = [(event["atype"], event["param"].get("ns") or event["param"].get("new")) for event in logged]
    return [(action, namespace) for action, namespace in logged if (namespace or "").startswith(("other", "shop"))]


def test_what_a_transaction_makes_is_logged_when_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, pymongo.MongoClient(server.uri) as client:
        shop = client.shop
        with client.start_session() as session:
            for ends in (session.abort_transaction, session.commit_transaction):
                session.start_transaction()
                shop.create_collection("orders", session=session)
                shop.orders.create_index("n", name="by_n", session=session)
                shop.more.insert_one({"a": CANARY}, session=session)
                ends()
    assert ddl(path) == [
        ("createDatabase", "shop"), ("createCollection", "shop.orders"), ("createIndex", "shop.orders"),
        ("createIndex", "shop.orders"), ("createCollection", "shop.more"),
    ]  # fmt: skip
    assert CANARY not in path.read_text()


def test_collections_that_come_and_go_by_other_commands_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, pymongo.MongoClient(server.uri) as client:
        shop = client.shop
        shop.inserted.insert_one({"_id": 1})
        shop.updated.update_one({"_id": 1}, {"$set": {"a": 1}}, upsert=True)
        shop.changed.find_one_and_update({"_id": 1}, {"$set": {"a": 1}}, upsert=True)
        shop.inserted.aggregate([{"$merge": "merged"}])
        shop.inserted.create_index("n", name="by_n")
        shop.inserted.rename("merged", dropTarget=True)
        client.drop_database("shop")
    logged = ddl(path)
    assert logged.pop(0) == ("createDatabase", "shop")
    assert logged[:6] == [
        ("createCollection", "shop.inserted"), ("createCollection", "shop.updated"),
        ("createCollection", "shop.changed"), ("createCollection", "shop.merged"),
        ("createIndex", "shop.inserted"), ("createIndex", "shop.inserted"),
    ]  # fmt: skip
    states = [event["param"]["indexBuildState"] for event in events(path) if event["param"].get("indexName") == "by_n"]
    assert states == ["IndexBuildStarted", "IndexBuildSucceeded"]
    assert logged[6:8] == [("dropCollection", "shop.merged"), ("renameCollection", "shop.merged")]
    assert sorted(logged[8:11]) == [("dropCollection", f"shop.{name}") for name in ("changed", "merged", "updated")]
    assert logged[11:] == [("dropDatabase", "shop")]


def test_databases_that_come_to_be_are_logged_once(tmp_path: Path) -> None:
    path, data = tmp_path / "audit", tmp_path / "data"
    with headrace.Server(data) as server, RawClient(server.address) as client:
        assert client.ask({"create": "c"}, "before")["ok"] == 1
    with headrace.Server(data, audit=AuditOptions(path=path)) as server, RawClient(server.address) as client:
        for database in ("before", "shop"):
            client.ask({"create": "first"}, database)
            client.ask({"create": "second"}, database)
        client.ask({"renameCollection": "shop.first", "to": "moved.first"}, "admin")
        client.ask({"dropDatabase": 1}, "shop")
        client.ask({"create": "first"}, "shop")
    made = [event["param"]["ns"] for event in events(path) if event["atype"] == "createDatabase"]
    assert made == ["shop", "moved", "shop"]


def test_what_else_mongodb_records_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, RawClient(server.address) as client:
        driver = {"driver": {"name": "d", "version": "1"}, "os": {"type": "o"}, "platform": "p"}
        for _ in range(2):
            assert client.ask({"hello": 1, "client": driver}, "admin")["ok"] == 1
        wanted = {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 60}}}
        assert client.ask({"setClusterParameter": wanted}, "admin")["ok"] == 1
        assert client.ask({"getClusterParameter": "*"}, "admin")["ok"] == 1
        assert client.ask({"drop": "nothing"}, "shop")["ok"] == 1
        assert client.ask({"logRotate": "audit"}, "admin")["ok"] == 1
        assert client.ask({"logApplicationMessage": "hello"}, "admin")["ok"] == 1
        port = int(server.address.rpartition(":")[2])
    (before,) = tmp_path.glob("audit.*")
    logged = {event["atype"]: (event["param"], event["result"]) for event in [*events(before), *events(path)]}
    assert [event["atype"] for event in events(before)].count("clientMetadata") == 1
    endpoint = {"ip": "127.0.0.1", "port": port}
    assert logged["clientMetadata"] == ({"localEndpoint": endpoint, "clientMetadata": driver}, 0)
    was, after = (
        {"_id": "changeStreamOptions", "preAndPostImages": {"expireAfterSeconds": value}} for value in ("off", 60)
    )
    change, code = logged["setClusterParameter"]
    assert logged["updateCachedClusterServerParameter"] == (change, code) and code == 0
    times = [value.pop("clusterParameterTime")["$timestamp"]["t"] for value in change.values()]
    assert times[0] == 0 < times[1]
    assert change == {"originalClusterServerParameter": was, "updatedClusterServerParameter": after}
    assert "changeStreamOptions" in logged["getClusterParameter"][0]["requestedClusterServerParameters"]
    assert logged["dropCollection"] == ({"ns": "shop.nothing"}, 26)
    assert events(path)[0]["atype"] == "rotateLog"
    assert logged["rotateLog"][0]["logRotationStatus"]["rotatedLogPath"] == str(before)
    assert logged["applicationMessage"] == ({"msg": "hello"}, 0)


def test_an_index_that_cannot_be_built_is_logged_as_aborted(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, RawClient(server.address) as client:
        client.ask({"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}]}, "shop")
        unique = {"key": {"a": 1}, "name": "by_a", "unique": True}
        assert client.ask({"createIndexes": "c", "indexes": [unique]}, "shop")["code"] == 11000
    built = [event for event in events(path) if event["param"].get("indexName") == "by_a"]
    assert [(event["param"]["indexBuildState"], event["result"]) for event in built] == [
        ("IndexBuildStarted", 0), ("IndexBuildAborted", 276),
    ]  # fmt: skip


def test_logins_that_are_given_up_and_strangers_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    users: dict[str, Any] = {"ann": {"pwd": "x", "roles": []}}
    with (
        headrace.Server(audit=AuditOptions(path=path), users=users) as server,
        RawClient(server.address) as client,
    ):
        assert client.ask({"find": "c", "filter": {"a": CANARY}}, "shop")["code"] == 13
        for name in ("ann", "eve"):
            start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,n={name},r=abc".encode()}
            assert client.ask(start, "admin")["ok"] == 1
    logged = [(event["atype"], event["param"], event["result"]) for event in events(path) if event["result"]]
    assert logged == [
        ("authCheck", {"command": "find", "ns": "shop.c", "args": {"find": "c", "$db": "shop"}}, 13),
        ("authenticate", {"user": "ann", "db": "admin", "mechanism": "SCRAM-SHA-256"}, 337),
        ("authenticate", {"user": "eve", "db": "admin", "mechanism": "SCRAM-SHA-256"}, 337),
    ]
    assert CANARY not in path.read_text()


def test_a_refusal_names_the_command_and_no_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_DELAY_MS", 0)
    path = tmp_path / "audit"
    users: dict[str, Any] = {
        "ann": {"pwd": "x", "roles": [{"role": "read", "db": "shop"}]}, "root": {"pwd": "x", "roles": ["root"]},
    }  # fmt: skip
    with headrace.Server(audit=AuditOptions(path=path), users=users) as server:
        with pymongo.MongoClient(server.address, username="ann", password="x") as ann:
            for command in (
                {"find": "orders", "filter": {"a": CANARY}}, {"createUser": "eve", "pwd": CANARY, "roles": []},
                {"serverStatus": 1}, {"getMore": 7, "collection": "orders"},
            ):  # fmt: skip
                with pytest.raises(OperationFailure):
                    ann.admin.command(command)
        with pymongo.MongoClient(server.address, username="root", password="x") as root:
            cursor = root.shop.orders
            cursor.insert_many([{"_id": number} for number in range(3)])
            identity = root.shop.command("find", "orders", batchSize=1)["cursor"]["id"]
            with (
                pymongo.MongoClient(server.address, username="ann", password="x") as ann,
                pytest.raises(OperationFailure, match="not created by"),
            ):
                ann.shop.command("getMore", identity, collection="orders")
            root.admin["system.users"].update_one({"user": "ann"}, {"$set": {"customData": CANARY}})
    logged = events(path)
    checked = [event for event in logged if event["atype"] == "authCheck"]
    assert [event["param"] for event in checked] == [
        {"command": "find", "ns": "admin.orders", "args": {"find": "orders", "$db": "admin"}},
        {"command": "createUser", "args": {"createUser": 1, "$db": "admin"}},
        {"command": "serverStatus", "args": {"serverStatus": 1, "$db": "admin"}},
        {"command": "getMore", "ns": "shop.orders", "args": {"getMore": "orders", "$db": "shop"}},
    ]
    assert {event["result"] for event in checked} == {13} and checked[0]["users"] == [{"user": "ann", "db": "admin"}]
    (direct,) = (event["param"] for event in logged if event["atype"] == "directAuthMutation")
    assert direct == {"ns": "admin.system.users", "operation": "update"}
    assert CANARY not in path.read_text()


def test_a_write_that_names_no_namespace_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    operation = {"insert": 0, "document": {"_id": "admin.x"}}
    with headrace.Server(audit=AuditOptions(path=path)) as server, RawClient(server.address) as client:
        for namespaces, code in ((["x"], 14), ([5], 14), ([{"ns": 5}], 14), ([{}], 40414), (5, 14)):
            body = {"bulkWrite": 1, "ops": [operation], "nsInfo": namespaces}
            assert client.ask(body, "admin")["code"] == code
        for name in ("insert", "update", "delete", "findAndModify"):
            assert client.ask({name: 5}, "admin")["ok"] == 0
        body["nsInfo"] = [{"ns": "shop.orders"}, {"ns": "admin.system.roles"}]
        assert client.ask(body, "admin")["ok"] == 1
    direct = [event["param"] for event in events(path) if event["atype"] == "directAuthMutation"]
    assert direct == [{"ns": "admin.system.roles", "operation": "bulkWrite"}]


def test_a_filter_chooses_events(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    chosen = '{"atype": {"$in": ["dropCollection", "createCollection"]}, "param.ns": {"$regex": "^shop"}}'
    with (
        headrace.Server(audit=AuditOptions(path=path, filter=chosen)) as server,
        RawClient(server.address) as client,
    ):
        for database in ("shop", "other"):
            client.ask({"create": "c"}, database)
            client.ask({"create": "c", "capped": 1}, database)
            client.ask({"drop": "c"}, database)
    assert [(event["atype"], event["param"]["ns"]) for event in events(path)] == [
        ("createCollection", "shop.c"), ("dropCollection", "shop.c"),
    ]  # fmt: skip


def test_events_that_nobody_reads_are_dropped_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads: the thread that writes is stuck, and the server serves."""
    monkeypatch.setattr(limits, "AUDIT_EVENT_COUNT_MAX", 10)
    monkeypatch.setattr(limits, "AUDIT_CLOSE_SECONDS", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with headrace.Server(audit=AuditOptions(path=path)) as server, RawClient(server.address) as client:
            for number in range(1000):
                assert client.ask({"create": f"c{number}"})["ok"] == 1.0
    finally:
        os.close(reader)
    assert sum("they are dropped" in record.message for record in caplog.records) == 1


def test_a_full_disk_costs_events_and_no_client(caplog: pytest.LogCaptureFixture) -> None:
    with headrace.Server(audit=AuditOptions(path=Path("/dev/full"))) as server, RawClient(server.address) as client:
        for number in range(20):
            assert client.ask({"create": f"c{number}"})["ok"] == 1.0
    assert any("audit log is dropped: OSError: [Errno 28]" in record.message for record in caplog.records)


def test_what_makes_no_audit_log_is_refused(tmp_path: Path) -> None:
    for options, reason in (
        (AuditOptions(path=tmp_path), "cannot write"),
        (AuditOptions(path=tmp_path / "a", filter="{"), "auditFilter"),
        (AuditOptions(path=tmp_path / "a", filter="[]"), "no document"),
        (AuditOptions(path=tmp_path / "a", filter='{"$nor": 1}'), "auditFilter"),
    ):
        with pytest.raises(AuditError, match=reason):
            headrace.Server(audit=options).start()


def test_the_flags_are_mongods(tmp_path: Path) -> None:
    def chosen(*words: str) -> AuditOptions | None:
        return options_of(cli.build_parser().parse_args(["serve", *words]), []).audit

    words = ["--auditDestination", "file", "--auditPath", str(tmp_path / "a"), "--auditFormat", "JSON"]
    assert chosen() is None and chosen(*words) == AuditOptions("file", tmp_path / "a")
    assert chosen("--auditDestination", "console", "--auditFilter", "{}") == AuditOptions("console", None, "{}")
    for wrong in (words[:2], words[:4], words[2:], ["--auditFilter", "{}"]):
        with pytest.raises(BadOptions, match="--audit"):
            chosen(*wrong)
