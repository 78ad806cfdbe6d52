"""The command shutdown ends a server as a signal does; the log can be asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace
from tests.server.raw import RawClient


def test_a_server_that_is_shut_down_ends_cleanly_and_keeps_its_data(tmp_path: Path) -> None:
    words = ["serve", "--port", "0", "--dbpath", str(tmp_path), "--nounixsocket", "--quiet"]
    with subprocess.Popen([sys.executable, "-m", "headrace.cli.main", *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = re.search(rb"127\.0\.0\.1:\d+", process.stdout.readline())
        assert address is not None
        with RawClient(address[0].decode()) as client:
            assert client.ask({"insert": "c", "documents": [{"_id": 1}]})["ok"] == 1.0
            assert client.ask({"shutdown": 1}, "admin")["ok"] == 1.0
        assert process.wait(60) == 0
    with headrace.Server(tmp_path) as server, pymongo.MongoClient(server.uri) as again:
        assert again.t.c.count_documents({}) == 1


def test_a_server_inside_a_process_is_ended_by_that_alone() -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        with pytest.raises(OperationFailure) as caught:
            client.admin.command("shutdown")
        assert caught.value.code == 115


def test_get_log_lists_a_client_that_was_disconnected() -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        with RawClient(server.address) as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.socket.makefile("rb").read().startswith(b"HTTP/1.0 200 OK")
        log = client.admin.command("getLog", "global")
        assert log["totalLinesWritten"] == len(log["log"]) >= 1
        assert "sent an invalid message" in log["log"][-1]
