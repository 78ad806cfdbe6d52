"""kill -9 of the server and of its readers, and SIGTERM, while clients write: nothing acknowledged is lost.

And SIGSTOP: a server process that is stopped goes on where it was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import Binary, Int64
from pymongo.errors import PyMongoError

from headrace.values.bson import encode
from tests.ports import free_port
from tests.waiting import until

from .raw import RawClient

pytestmark = pytest.mark.process


class Process:
    """`headrace serve` at default settings on one directory and one port, started as often as it is killed."""

    def __init__(self, path: Path) -> None:
        self.port = free_port()
        self._line = [
            sys.executable, "-m", "headrace.cli.main", "serve", "--port", str(self.port), "--nounixsocket",
            "--dbpath", str(path), "--quiet",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._line, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and "listens" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, **options: Any) -> pymongo.MongoClient[dict[str, Any]]:
        return pymongo.MongoClient(f"mongodb://{self.address}/", **{"serverSelectionTimeoutMS": 10_000, **options})

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()


class Writer(threading.Thread):
    """Writes until the server is gone, and remembers what was acknowledged, and what may have been."""

    def __init__(self, server: Process, name: str) -> None:
        super().__init__(name=name)
        self.server = server
        self.inserted: set[str] = set()
        self.values: dict[str, int] = {}
        """Document → the value of its last acknowledged update."""
        self.deleted: set[str] = set()
        self.error: str = ""

    def run(self) -> None:
        random_ = random.Random(self.name)
        with self.server.client(retryWrites=random_.random() < 0.5, serverSelectionTimeoutMS=500) as client:
            collection = client.t.c
            try:
                for number in range(1_000_000):
                    self._once(collection, f"{self.name}-{number}", random_)
            except PyMongoError as error:
                self.error = str(error)

    def _once(self, collection: Any, key: str, random_: random.Random) -> None:
        if random_.random() < 0.2:
            keys = [f"{key}-{suffix}" for suffix in range(20)]
            collection.insert_many([{"_id": suffix, "v": 0} for suffix in keys])
            self.inserted.update(keys)
            return
        collection.insert_one({"_id": key, "v": 0, "padding": "x" * random_.randrange(300)})
        self.inserted.add(key)
        if random_.random() < 0.4:
            value = random_.randrange(1, 1000)
            collection.update_one({"_id": key}, {"$set": {"v": value}})
            self.values[key] = value
        if random_.random() < 0.1:
            collection.delete_one({"_id": key})
            self.deleted.add(key)


class Follower(threading.Thread):
    """A watcher that resumes by its last token whenever the server comes back."""

    def __init__(self, server: Process, token: Any) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.token = token
        self.events: list[dict[str, Any]] = []
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            try:
                self._follow()
            except PyMongoError:
                continue

    def _follow(self) -> None:
        with self.server.client() as client, client.t.c.watch(resume_after=self.token, max_await_time_ms=100) as stream:
            while not self.ended:
                event = stream.try_next()
                if event is not None:
                    self.events.append(event)
                if stream.resume_token is not None:
                    self.token = stream.resume_token


def first_token(server: Process) -> Any:
    with server.client() as client, client.t.c.watch() as stream:
        return stream.resume_token


def all_events(server: Process, token: Any) -> list[dict[str, Any]]:
    """Everything since `token`, up to a document written for the purpose."""
    with server.client() as client, client.t.c.watch(resume_after=token) as stream:
        client.t.c.insert_one({"_id": f"end {time.monotonic_ns()}"})
        events = []
        for event in stream:
            events.append(event)
            if str(event["documentKey"]["_id"]).startswith("end ") and stream.try_next() is None:
                return events
    raise AssertionError("the stream ended")


def contents(events: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The collection that the events make, told from its beginning; each must fit what is there."""
    made: dict[Any, dict[str, Any]] = {}
    for event in events:
        key = event["documentKey"]["_id"]
        if event["operationType"] == "insert":
            assert key not in made
            made[key] = event["fullDocument"]
        elif event["operationType"] == "update":
            made[key].update(event["updateDescription"]["updatedFields"])
        else:
            assert event["operationType"] == "delete"
            del made[key]
    return made


def test_every_acknowledged_write_and_its_event_survive_kill_9(tmp_path: Path) -> None:
    random_ = random.Random(3)
    writers: list[Writer] = []
    with Process(tmp_path) as server:
        token = first_token(server)
        follower = Follower(server, token)
        follower.start()
        for round_ in range(4):
            now = [Writer(server, f"{round_}/{number}") for number in range(6)]
            for writer in now:
                writer.start()
            enough = random_.randrange(60, 400)
            until(lambda now=now, enough=enough: sum(len(writer.inserted) for writer in now) > enough)  # type: ignore[misc]
            server.kill()
            for writer in now:
                writer.join()
            writers += now
            server.start()
        events = all_events(server, token)
        with server.client() as client:
            documents = {document["_id"]: document for document in client.t.c.find()}
        until(lambda: len(follower.events) >= len(events))
        follower.ended = True
        follower.join()
    assert contents(events) == documents
    assert [event["_id"] for event in follower.events] == [event["_id"] for event in events]
    inserts = {event["documentKey"]["_id"] for event in events if event["operationType"] == "insert"}
    deletes = {event["documentKey"]["_id"] for event in events if event["operationType"] == "delete"}
    assert sum(len(writer.inserted) for writer in writers) > 240
    for writer in writers:
        assert writer.inserted <= inserts and writer.deleted <= deletes
        for key, value in writer.values.items():
            assert key in deletes or documents[key]["v"] == value


def test_a_retried_write_is_done_once_though_the_server_was_killed_in_between(tmp_path: Path) -> None:
    session = {"id": Binary(bytes(range(16)), 4)}

    def retryable(number: int, body: dict[str, Any]) -> dict[str, Any]:
        with RawClient(server.address) as client:
            return client.ask({**body, "lsid": session, "txnNumber": Int64(number)})

    update = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}]}
    insert = {"insert": "c", "documents": [{"_id": n} for n in range(2, 30)]}
    with Process(tmp_path) as server:
        first = [retryable(1, update), retryable(2, update), retryable(3, insert)]
        server.kill()
        server.start()
        again = retryable(3, insert)
        assert (again["n"], "writeErrors" in again) == (28, False) and first[2]["n"] == 28
        assert retryable(4, update)["nModified"] == 1
        server.kill()
        server.start()
        assert retryable(4, update)["nModified"] == 1
        assert retryable(2, update)["code"] == 225
        with RawClient(server.address) as client:
            assert client.ask({"find": "c", "filter": {"_id": 1}})["cursor"]["firstBatch"] == [{"_id": 1, "n": 3}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_clients_write_ends_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with Process(tmp_path) as server:
        writers = [Writer(server, f"{number}/{suffix}") for suffix in range(6)]
        for writer in writers:
            writer.start()
        until(lambda: all(writer.inserted for writer in writers))
        server.process.send_signal(number)
        assert server.process.wait(timeout=60) == 0
        for writer in writers:
            writer.join()
        server.start()
        with server.client() as client:
            there = {document["_id"] for document in client.t.c.find()}
    for writer in writers:
        assert writer.inserted - writer.deleted <= there


@pytest.mark.parametrize("turns", [0, 20, 60, 100])
def test_a_server_killed_while_it_commits_a_large_transaction_has_all_of_it_or_nothing(
    tmp_path: Path, turns: int
) -> None:
    count = 10_000
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    with Process(tmp_path / "data") as server:
        with RawClient(server.address) as client, RawClient(server.address) as other:
            assert client.ask({"insert": "c", "documents": [{"_id": -1}]})["ok"] == 1.0
            documents = [encode({"_id": key}) for key in range(count)]
            body = {"insert": "c", **session, "startTransaction": True}
            assert client.ask(body, documents=documents)["n"] == count
            client.send({"commitTransaction": 1, **session}, "admin")
            for _ in range(turns):
                assert other.ask({"ping": 1})["ok"] == 1.0
            assert other.ask({"count": "c"})["n"] in (1, count + 1)
            assert other.ask({"insert": "d", "documents": [{"_id": 1}]})["ok"] == 1.0
            server.kill()
        server.start()
        with RawClient(server.address) as client:
            left = client.ask({"find": "c", "batchSize": count + 1})["cursor"]["firstBatch"]
            assert len(left) in (1, count + 1) and left[0] == {"_id": -1}
            assert client.ask({"find": "d"})["cursor"]["firstBatch"] == [{"_id": 1}]
            assert client.ask({"insert": "c", "documents": [{"_id": "late"}]})["n"] == 1
            assert client.ask({"count": "c"})["n"] == len(left) + 1


READER = """
import pathlib, sys
import pymongo
from bson import json_util
path = pathlib.Path(sys.argv[2])
lines = path.read_text().splitlines(keepends=True) if path.exists() else []
whole = [line for line in lines if line.endswith("\\n")]
path.write_text("".join(whole))
token = json_util.loads(whole[-1])["_id"] if whole else json_util.loads(sys.argv[3])
with pymongo.MongoClient(sys.argv[1]) as client, path.open("a") as out:
    with client.t.c.watch(resume_after=token, batch_size=7) as stream:
        for event in stream:
            out.write(json_util.dumps({"_id": event["_id"], "key": event["documentKey"]["_id"]}) + "\\n")
            out.flush()
"""


def test_a_reader_that_is_killed_again_and_again_reads_every_event_once(tmp_path: Path) -> None:
    from bson import json_util

    random_ = random.Random(8)
    events_file = tmp_path / "events"

    def reader() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", READER, f"mongodb://{server.address}/", str(events_file), json_util.dumps(token)]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def lines() -> list[str]:
        return events_file.read_text().splitlines() if events_file.exists() else []

    with Process(tmp_path / "data") as server, server.client() as client:
        token = first_token(server)
        inserted = 0
        for _ in range(6):
            process = reader()
            before = len(lines())
            for _ in range(random_.randrange(50, 300)):
                client.t.c.insert_one({"_id": inserted})
                inserted += 1
            until(lambda before=before: len(lines()) > before + random_.randrange(1, 40))  # type: ignore[misc]
            process.kill()
            process.wait()
        process = reader()
        until(lambda: len(lines()) >= inserted)
        process.kill()
        process.wait()
    assert [json_util.loads(line)["key"] for line in lines()] == list(range(inserted))


STOPPED_SECONDS = 12
"""More than `limits.STOPPED_SECONDS`: without a look at the clock for as long, the process counts as stopped."""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _stop(process: Process) -> None:
    """Stop it, and let it go on when the time is over: the one wait that a test of this needs."""
    pid = process.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: _state(pid) == "T")
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
