"""A server process that is stopped (SIGSTOP) goes on: cluster time, streams, cursors, transactions, TTL, history."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bson import Binary, Int64

from .raw import RawClient
from .test_kill import Process

pytestmark = pytest.mark.process

STOPPED_SECONDS = 12
"""More than `limits.STOPPED_SECONDS`: without a look at the clock for as long, the process counts as stopped."""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _stop(process: Process) -> None:
    """Stop it, and let it go on when the time is over: the one wait that a test of this needs."""
    pid = process.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        while _state(pid) != "T":
            pass
        time.sleep(STOPPED_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_process_goes_on_where_it_was(tmp_path: Path) -> None:
    """It takes the time for which the process is stopped: more than ten seconds, from which on that is noticed."""
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    with Process(tmp_path / "data") as server, RawClient(server.address) as client, RawClient(server.address) as other:
        ttl = {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 3600}
        client.ask({"createIndexes": "dated", "indexes": [ttl]})
        soon = datetime.now(UTC) - timedelta(seconds=3600 - 120)
        client.ask({"insert": "dated", "documents": [{"_id": 1, "at": soon}]})
        client.ask({"insert": "c", "documents": [{"_id": key} for key in range(10)]})
        stream = client.watch("c")
        cursor = client.ask({"find": "c", "batchSize": 2})["cursor"]["id"]
        client.ask({"insert": "c", "documents": [{"_id": "within"}], **session, "startTransaction": True})
        before = client.ask({"insert": "c", "documents": [{"_id": "before"}]})["operationTime"]
        entries = client.ask({"count": "oplog.rs"}, "local")["n"]
        other.send({"getMore": Int64(cursor), "collection": "c", "batchSize": 2})
        other.receive()
        _stop(server)
        assert client.ask({"ping": 1})["ok"] == 1.0
        after = client.ask({"insert": "c", "documents": [{"_id": "after"}]})["operationTime"]
        assert after > before and after.time - before.time >= STOPPED_SECONDS - 2
        assert client.ask({"commitTransaction": 1, **session}, "admin")["ok"] == 1.0
        more = {"getMore": stream, "collection": "c", "maxTimeMS": 2000}
        keys: list[object] = []
        while len(keys) < 3:
            keys += [event["documentKey"]["_id"] for event in client.ask(more)["cursor"]["nextBatch"]]
        assert keys == ["before", "after", "within"]
        rest = other.ask({"getMore": Int64(cursor), "collection": "c"})["cursor"]["nextBatch"]
        assert [document["_id"] for document in rest][:6] == list(range(4, 10))
        assert client.ask({"count": "dated"})["n"] == 1
        assert client.ask({"count": "oplog.rs"}, "local")["n"] >= entries + 2
        stamps = [entry["ts"] for entry in client.ask({"find": "oplog.rs"}, "local")["cursor"]["firstBatch"]]
        assert stamps == sorted(set(stamps))
