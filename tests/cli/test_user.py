"""`headrace user add`, and servers that have users."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import headrace
from headrace.cli.main import main


def test_the_first_user_is_created_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    assert main(["user", "add", "root", "--role", "root", "--role", "read@shop", "--dbpath", str(tmp_path)]) == 0
    monkeypatch.delenv("HEADRACE_PASSWORD")
    monkeypatch.setattr("sys.stdin", io.StringIO("other\n"))
    assert main(["user", "add", "root", "--role", "root", "--dbpath", str(tmp_path)]) == 0
    with headrace.Server(tmp_path, auth=True) as server:
        with MongoClient[dict[str, Any]](server.uri, username="root", password="other") as client:
            users = client.admin.command("usersInfo", 1)["users"]
            assert [(user["_id"], user["roles"]) for user in users] == [
                ("admin.root", [{"role": "root", "db": "admin"}])
            ]
        assert main(["user", "add", "x", "--dbpath", str(tmp_path)]) == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    assert main(["user", "add", "x", "--role", "none", "--dbpath", str(tmp_path)]) == 1
    assert "Could not find role: none@admin" in capsys.readouterr().err


def test_a_user_of_a_certificate_is_created_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    words = ["user", "add", "CN=ann,O=Headrace", "--db", "$external", "--dbpath", str(tmp_path)]
    for role in ("root@admin", "read@shop"):
        assert main([*words, "--role", role]) == 0, capsys.readouterr().err
    with headrace.Server(tmp_path) as server, MongoClient[dict[str, Any]](server.uri) as client:
        (user,) = client.admin["system.users"].find()
    assert (user["_id"], user["credentials"]) == ("$external.CN=ann,O=Headrace", {"external": True})
    assert user["roles"] == [{"role": "read", "db": "shop"}]


def test_a_server_with_users_asks_who_one_is() -> None:
    users = {"ann": {"pwd": "a", "roles": [{"role": "read", "db": "shop"}]}}
    with headrace.Server(users=users) as server:
        with MongoClient[dict[str, Any]](server.uri) as nobody, pytest.raises(OperationFailure) as refused:
            nobody.shop.orders.find_one()
        assert refused.value.code == 13
        for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
            with MongoClient[dict[str, Any]](server.uri, username="ann", password="a", authMechanism=mechanism) as ann:
                ann.shop.orders.find_one()
                with pytest.raises(OperationFailure) as refused:
                    ann.shop.orders.insert_one({})
                assert refused.value.code == 13


def test_a_stream_ends_when_its_user_loses_the_role() -> None:
    users = {
        "ann": {"pwd": "a", "roles": [{"role": "read", "db": "shop"}]},
        "root": {"pwd": "r", "roles": ["root"]},
    }
    with (
        headrace.Server(users=users) as server,
        MongoClient[dict[str, Any]](server.uri, username="ann", password="a") as ann,
        MongoClient[dict[str, Any]](server.uri, username="root", password="r") as root,
        ann.shop.orders.watch() as stream,
    ):
        root.shop.orders.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}
        root.admin.command("updateUser", "ann", roles=[])
        root.shop.orders.insert_one({"_id": 2})
        with pytest.raises(OperationFailure) as refused:
            next(stream)
        assert refused.value.code == 13


def test_a_login_that_fails_is_logged_without_the_password(caplog: pytest.LogCaptureFixture) -> None:
    users = {"ann": {"pwd": "right-one", "roles": []}}
    with headrace.Server(users=users) as server:
        with MongoClient[dict[str, Any]](server.uri, username="ann", password="wrong-one") as client:
            with pytest.raises(OperationFailure) as refused:
                client.admin.command("ping")
            assert refused.value.code == 18
        with MongoClient[dict[str, Any]](server.uri, username="ann", password="right-one") as client:
            with pytest.raises(OperationFailure) as refused:
                client.shop.orders.find_one({"secret": "content"})
            assert refused.value.code == 13
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "Failed to authenticate" in logged and "Checking authorization failed" in logged
    assert not any(text in logged for text in ("right-one", "wrong-one", "content"))
