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
    assert [event["atype"] for event in logged] == [
        "startup", "createUser", "authenticate", "createCollection", "createIndex", "createView", "dropIndex",
        "renameCollection", "dropCollection", "dropDatabase", "authenticate", "shutdown",
    ]  # fmt: skip
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
    assert logged[4]["param"] == {"ns": "shop.orders", "indexName": "by_n", "indexSpec": {"key": {"n": 1}}}
    assert logged[7]["param"] == {"old": "shop.orders", "new": "shop.sales"}


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
    assert any("audit log is dropped: [Errno 28]" in record.message for record in caplog.records)


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
