"""Functions of the user's own fail beside a command: filters, handlers of the log, stored users. The command is
answered as without them, and all other clients go on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace
from headrace import limits
from headrace.dispatch.options import AuditOptions
from headrace.server import audit
from headrace.turns import Turn

from .raw import RawClient

FAILING = {
    "conversion": {"$expr": {"$gt": [{"$toInt": "$param.ns"}, 1]}},
    "everything": {"$expr": {"$gt": [{"$toInt": "$atype"}, 1]}},
    "slow": {"$expr": {"$gt": [{"$size": {"$filter": {
        "input": {"$range": [0, 100_000]}, "cond": {"$ne": [{"$toString": "$$this"}, "$atype"]},
    }}}, 1]}},
    "backtracking": {"$expr": {"$regexMatch": {"input": {"$concat": ["a" * 40, "!"]}, "regex": "^(a|a)*$"}}},
}  # fmt: skip


def audited(path: Path) -> list[str]:
    return [json.loads(line)["atype"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", FAILING)
def test_an_audit_filter_that_fails_costs_no_command_and_no_event(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = AuditOptions(path=tmp_path / "audit", filter=json.dumps(FAILING[name]))
    with headrace.Server(audit=options) as server:
        monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.02)
        with RawClient(server.address) as client, RawClient(server.address) as other:
            assert client.ask({"hello": 1, "client": {"driver": {"name": "a", "version": "1"}}})["ok"] == 1.0
            assert client.ask({"insert": "c", "documents": [{"_id": 1}]}, "1")["n"] == 1
            assert client.ask({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=a,r=b"})["ok"] == 1.0
            assert client.ask({"drop": "nothing"}, "1")["ok"] == 1.0
            assert other.ask({"count": "c"}, "1")["n"] == 1
        assert server.failure is None
    logged = audited(tmp_path / "audit")
    assert {"createDatabase", "createCollection", "dropCollection"} <= {*logged} or name == "conversion"
    assert ("startup" in logged and "shutdown" in logged) == (name != "conversion")
    assert logged.count("dropCollection") == 1 and logged.count("createCollection") == 1
    lines = [record.getMessage() for record in caplog.records if "the audit filter" in record.getMessage()]
    assert len(lines) == 1 and "\n" not in lines[0] and "1.c" not in lines[0]


def test_an_event_that_cannot_be_made_is_dropped_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("injected")

    with headrace.Server(audit=AuditOptions(path=tmp_path / "audit")) as server:
        with RawClient(server.address) as client:
            monkeypatch.setattr(audit, "_line", fail)
            assert client.ask({"insert": "c", "documents": [{"_id": 1}]})["n"] == 1
            assert client.ask({"drop": "nothing"})["ok"] == 1.0
        assert server.failure is None
    assert sum("an event of the audit log is dropped" in record.getMessage() for record in caplog.records) == 1


def profiled(client: RawClient) -> list[str]:
    """The commands in the profile of `t`, once those sent before have been stored."""
    client.ask({"profile": 0})
    batch = client.ask({"find": "system.profile"})["cursor"]["firstBatch"]
    return [next(iter(document["command"])) for document in batch]


@pytest.mark.parametrize("name", ["conversion", "slow", "backtracking"])
def test_a_profile_filter_that_fails_matches_nothing_and_costs_no_command(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = json.loads(json.dumps(FAILING[name]).replace("$param.ns", "$op").replace("$atype", "$op"))
    with headrace.Server() as server, RawClient(server.address) as client:
        assert client.ask({"profile": 1, "filter": failing})["ok"] == 1.0
        monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.02)
        assert client.ask({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})["n"] == 2
        assert client.ask({"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]})["n"] == 2
        assert client.ask({"find": "c"})["ok"] == 1.0
        assert client.ask({"ping": 1})["ok"] == 1.0
        assert profiled(client) == []
        assert server.failure is None
    lines = [record.getMessage() for record in caplog.records if "the profile filter" in record.getMessage()]
    assert len(lines) == 1 and "\n" not in lines[0]


def test_a_write_is_not_paused_by_its_profile_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise killOp, or the end of its time, in the filter would turn the answer of a write that is done into an
    error."""
    slow = {
        "$expr": {"$lt": [{"$size": {"$filter": {"input": {"$range": [0, 2000]}, "cond": {"$gt": ["$$this", 1]}}}}, 0]}
    }
    pauses: list[Any] = []
    pause = Turn.pause
    with headrace.Server() as server, RawClient(server.address) as client:
        client.ask({"profile": 1, "filter": slow})
        client.ask({"insert": "c", "documents": [{"_id": 0}]})
        server._running.scheduler.turns.seconds = 0.0
        monkeypatch.setattr(Turn, "pause", lambda turn, *given: (pauses.append(None), pause(turn, *given))[1])
        assert client.ask({"insert": "c", "documents": [{"_id": 1}]})["n"] == 1
    assert len(pauses) < 20


class Raising(logging.Handler):
    """A handler of the program's own, which fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("a handler of the log failed")


@pytest.fixture
def raising_handler() -> Iterator[None]:
    handler = Raising(logging.INFO)
    logger = logging.getLogger("headrace")
    level = logging.getLogger("headrace.events").level
    logger.addHandler(handler)
    logging.getLogger("headrace.events").setLevel(logging.INFO)
    yield
    logger.removeHandler(handler)
    logging.getLogger("headrace.events").setLevel(level)


def test_a_handler_of_the_log_that_fails_costs_a_line(
    raising_handler: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with headrace.Server(slow_ms=0) as server:
        with RawClient(server.address) as client, RawClient(server.address) as other:
            assert client.ask({"insert": "c", "documents": [{"_id": 1}]})["n"] == 1
            assert client.ask({"find": "c"})["ok"] == 1.0

            def fail(*arguments: Any) -> None:
                raise RuntimeError("injected")

            with monkeypatch.context() as patched:
                patched.setattr(server._running.engine, "run_write", fail)
                assert client.ask({"insert": "c", "documents": [{"_id": 2}]})["code"] == 1
            assert other.ask({"insert": "c", "documents": [{"_id": 2}]})["n"] == 1
        with RawClient(server.address) as later:
            assert later.ask({"count": "c"})["n"] == 2
        assert server.failure is None
    assert "a handler of the log failed" in capfd.readouterr().err


BROKEN_USERS = [
    {"roles": 5}, {"roles": [5]}, {"roles": [{"role": 5, "db": []}]}, {"roles": None}, {"user": 7, "db": 8},
    {"roles": [{"role": "none", "db": "nowhere"}]}, {"authenticationRestrictions": 5}, {"credentials": 5},
]  # fmt: skip


def test_stored_users_that_make_no_sense_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one writes with `update` into admin.system.users, beside the commands for users."""
    monkeypatch.setattr(limits, "LOGIN_DELAY_MS", 0)
    users = {"root": {"pwd": "r", "roles": ["root"]}}
    options = AuditOptions(path=tmp_path / "audit")
    with (
        headrace.Server(auth=True, users=users, audit=options) as server,
        pymongo.MongoClient(f"mongodb://root:r@{server.address}/?directConnection=true") as root,
    ):
        root.t.c.insert_many([{"_id": number} for number in range(5)])
        for number, broken in enumerate(BROKEN_USERS):
            root.admin.command("createUser", f"u{number}", pwd="a", roles=["readWriteAnyDatabase"])
            uri = f"mongodb://u{number}:a@{server.address}/?directConnection=true"
            with pymongo.MongoClient(uri) as client:
                cursor = client.t.c.find(batch_size=2)
                next(cursor)
                root.admin["system.users"].update_one({"_id": f"admin.u{number}"}, {"$set": broken})
                for run in (lambda: list(cursor), client.t.c.find_one):  # noqa: B023  (it is called at once)
                    try:
                        run()
                    except OperationFailure as error:
                        assert error.code in (13, 18, 43)
        assert root.t.c.count_documents({}) == 5
        assert server.failure is None
