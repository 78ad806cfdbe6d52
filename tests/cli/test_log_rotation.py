"""logRotate and SIGUSR1: a new file of the log and of the audit log, the old one under another name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace
from headrace.dispatch.options import AuditOptions
from tests.waiting import until


def events(path: Path) -> list[str]:
    return [json.loads(line)["atype"] for line in path.read_text().splitlines()] if path.exists() else []


def test_the_audit_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with headrace.Server(audit=AuditOptions(path=path)) as server, pymongo.MongoClient(server.uri) as client:
        client.t.create_collection("before")
        until(lambda: "createCollection" in events(path))
        assert client.admin.command("logRotate", "audit")["ok"] == 1.0
        (old,) = tmp_path.glob("audit.2*")
        client.t.create_collection("behind")
        client.admin.command("logRotate", "server")  # of which there is no file
        until(lambda: "createCollection" in events(path))
    assert events(old)[0] == "startup" and events(path)[-1] == "shutdown"
    assert [events(file).count("createCollection") for file in (old, path)] == [1, 1]


def test_what_is_no_log_is_refused() -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        assert client.admin.command("logRotate")["ok"] == client.admin.command("logRotate", "audit")["ok"] == 1.0
        with pytest.raises(OperationFailure) as failed:
            client.admin.command("logRotate", "none")
        assert failed.value.code == 2


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], Path, str]]:
    log = tmp_path / "log"
    words = ["--dbpath", str(tmp_path / "data"), "--port", "0", "--nounixsocket", "--logpath", str(log), *request.param]
    with subprocess.Popen([sys.executable, "-m", "headrace", "serve", *words]) as process:
        try:
            until(lambda: log.exists() and "listens on" in log.read_text())
            yield process, log, log.read_text().partition("listens on ")[2].partition(",")[0]
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.mark.process
@pytest.mark.parametrize("served", [[]], indirect=True)
def test_signals_and_the_command_rename_the_log(served: tuple[subprocess.Popen[bytes], Path, str]) -> None:
    process, log, address = served
    for number, rotate in enumerate((
        lambda: process.send_signal(signal.SIGUSR1),
        lambda: process.send_signal(signal.SIGHUP),
        lambda: pymongo.MongoClient(address, directConnection=True).admin.command("logRotate"),
    ), 1):  # fmt: skip
        before = log.read_text()
        rotate()
        until(lambda count=number: len(list(log.parent.glob("log.2*"))) == count and log.exists())
        assert any(old.read_text().startswith(before) for old in log.parent.glob("log.2*"))
        assert process.poll() is None
    with pymongo.MongoClient(address, directConnection=True, appname="after") as client:
        client.admin.command("ping")
        until(lambda: "after" in log.read_text())


@pytest.mark.process
@pytest.mark.parametrize("served", [["--logRotate", "reopen", "--logappend"]], indirect=True)
def test_a_log_that_somebody_has_renamed_is_opened_again(served: tuple[subprocess.Popen[bytes], Path, str]) -> None:
    process, log, _ = served
    old = log.rename(log.with_name("renamed"))
    process.send_signal(signal.SIGUSR1)
    until(log.exists)
    assert "Log rotation initiated" in old.read_text()
