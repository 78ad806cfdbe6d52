"""Reads in reader processes: the same answers, the same errors, and the server as if it were one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import CursorNotFound, ExecutionTimeout, OperationFailure

import headrace
from headrace import limits
from headrace.execution.reader_calls import ReaderCall
from headrace.server.readers import pool
from headrace.server.readers.pool import Reader, Readers
from tests.held_commits import HeldCommits
from tests.ports import free_port, is_free
from tests.server.raw import RawClient
from tests.server.readers.reading import moved_count, on_loop, only_reader, readers_of, serving, start_readers
from tests.waiting import until

pytestmark = pytest.mark.process
COUNT = 3000
SLOW = {"$expr": {"$gte": [{"$size": {"$range": [0, 20_000]}}, "$a"]}}
"""Takes some milliseconds for each document."""
ENDLESS = {"$size": {"$map": {"input": {"$range": [0, 100_000]}, "in": {"$size": {"$range": [0, 100_000]}}}}}
"""Takes minutes for one document."""


@pytest.fixture(scope="module")
def shared() -> Iterator[headrace.Server]:
    with serving() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number, "a": number % 10, "s": "x" * 20} for number in range(COUNT)])
        client.t.c.create_index("a")
        client.t.create_collection("v", viewOn="c", pipeline=[{"$match": {"a": 3}}])
        yield server


@pytest.fixture
def server(shared: headrace.Server) -> headrace.Server:
    start_readers(shared, 1)
    return shared


@pytest.fixture
def client(server: headrace.Server) -> Iterator[pymongo.MongoClient[Any]]:
    with pymongo.MongoClient(server.uri) as client:
        yield client


def test_reads_are_answered_as_by_the_server(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    collection = client.t.c
    before = moved_count(server)
    assert [item["_id"] for item in collection.find({"s": "x" * 20}, batch_size=700)] == list(range(COUNT))
    assert collection.count_documents({"s": "x" * 20}) == COUNT
    assert collection.distinct("a", {"s": "x" * 20}) == list(range(10))
    groups = list(collection.aggregate([{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]))
    assert groups == [{"_id": number, "n": COUNT // 10} for number in range(10)]
    assert client.t.v.count_documents({"s": "x" * 20}) == COUNT // 10
    joined = [
        {"$lookup": {"from": "c", "localField": "_id", "foreignField": "_id", "as": "own"}},
        {"$match": {"own.a": 4}},
    ]
    assert len(list(collection.aggregate(joined))) == COUNT // 10
    assert moved_count(server) >= before + 6
    with pytest.raises(OperationFailure) as failed:
        list(collection.aggregate([{"$match": {"a": {"$gte": 0}}}, {"$project": {"x": {"$divide": ["$_id", 0]}}}]))
    assert failed.value.code == 16608


def test_a_read_sees_what_was_written_before_it(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    for number in range(50):
        client.t.growing.insert_many([{"n": number}, {"n": number}])
        assert client.t.growing.count_documents({"n": {"$gte": 0}}) == 2 * number + 2
        if number == 20:
            client.t.growing.create_index("n")
    client.t.growing.drop()
    assert client.t.growing.count_documents({"n": {"$gte": 0}}) == 0


def test_a_reader_answers_once_the_server_has_published_what_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB shows a commit to the reader when it is on the disk, and its client has not been answered yet."""
    commits = HeldCommits()
    with serving() as server, RawClient(server.address) as client, RawClient(server.address) as other:
        client.ask({"insert": "c", "documents": [{"n": 0}]})
        commits.hold(monkeypatch)
        client.send({"insert": "c", "documents": [{"n": 1}]})
        assert commits.synced.wait(60)
        other.send({"count": "c", "query": {"n": {"$gte": 0}}})
        until(lambda: readers_of(server)._held)
        commits.go_on.set()
        acknowledged, counted = client.receive()[1], other.receive()[1]
    assert counted["n"] == 2 and counted["operationTime"] >= acknowledged["operationTime"]


def test_cursors_stay_in_the_reader_that_has_opened_them(
    server: headrace.Server, client: pymongo.MongoClient[Any]
) -> None:
    cursor = client.t.c.find({"s": "x" * 20}, batch_size=100)
    next(cursor)
    before = moved_count(server)
    status = client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    assert status == 1
    idle = list(client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"type": "idleCursor"}}]))
    assert idle[0]["cursor"]["cursorId"] == cursor.cursor_id
    assert idle[0]["cursor"]["nDocsReturned"] == 100
    assert len(list(cursor)) == COUNT - 1
    assert moved_count(server) == before + COUNT // 100
    assert client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"] == 0


def test_a_cursor_in_a_reader_can_be_killed(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    cursor = client.t.c.find({"s": "x" * 20}, batch_size=100)
    next(cursor)
    identity = cursor.cursor_id
    assert client.t.command({"killCursors": "c", "cursors": [identity]})["cursorsKilled"] == [identity]
    with pytest.raises(CursorNotFound):
        list(cursor)


def test_a_getmore_in_a_reader_ends_when_its_cursor_is_killed(
    server: headrace.Server, client: pymongo.MongoClient[Any]
) -> None:
    reader = only_reader(server)
    with RawClient(server.address) as reading:
        reading.send({"find": "c", "filter": {"s": "x" * 20}, "batchSize": 100}, "t")
        cursor = Int64(reading.receive()[1]["cursor"]["id"])
        reader.process.send_signal(signal.SIGSTOP)  # it does not answer
        reading.send({"getMore": cursor, "collection": "c"}, "t")
        until(lambda: bool(reader.calls))
        assert client.t.command({"killCursors": "c", "cursors": [cursor]})["cursorsKilled"] == [cursor]
        assert reading.receive()[1]["code"] == 237
        reader.process.send_signal(signal.SIGCONT)
    until(lambda: not reader.calls)
    assert client.t.c.count_documents({}) == COUNT


def test_a_reader_that_is_killed_costs_its_cursors_only(
    server: headrace.Server, client: pymongo.MongoClient[Any]
) -> None:
    cursor = client.t.c.find({"s": "x" * 20}, batch_size=100)
    next(cursor)
    answers: list[int] = []
    reader = only_reader(server)
    os.kill(reader.process.pid, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: answers.append(client.t.c.count_documents({"s": "x" * 20})))
    thread.start()
    until(lambda: bool(reader.calls))
    os.kill(reader.process.pid, signal.SIGKILL)
    thread.join()
    assert answers == [COUNT]
    with pytest.raises(CursorNotFound):
        list(cursor)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_batch_that_was_read_is_returned_although_its_reader_then_ends(
    server: headrace.Server, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    cursor = client.t.c.find({"s": "x" * 20}, batch_size=100).limit(200 if is_last else 0)
    assert [next(cursor)["_id"] for _ in range(100)] == list(range(100))
    read_on = ReaderCall._read_on

    def after_the_end(call: ReaderCall, *more: Any) -> None:
        reader = only_reader(server)
        reader.calls.clear()
        readers_of(server).lost(reader)
        read_on(call, *more)

    monkeypatch.setattr(ReaderCall, "_read_on", after_the_end)
    assert [next(cursor)["_id"] for _ in range(100)] == list(range(100, 200))
    with pytest.raises(StopIteration if is_last else CursorNotFound):
        next(cursor)


def test_a_command_that_has_lost_two_readers_ends(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    errors: list[Any] = []

    def run() -> None:
        try:
            client.t.c.count_documents(SLOW)
        except OperationFailure as error:
            errors.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(2):
        until(lambda: any(reader.calls for reader in readers_of(server)))
        reader = next(reader for reader in readers_of(server) if reader.calls)
        os.kill(reader.process.pid, signal.SIGKILL)
        until(lambda reader=reader: reader.is_ended)  # type: ignore[misc]
    thread.join()
    assert errors == [175]


def test_a_reader_that_ends_as_soon_as_it_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as started, and a command that waited for it is sent to the next one."""
    ready, killed = Readers.ready, list[Reader]()

    def kill_first(readers: Readers) -> None:
        if not killed:
            killed.extend(readers)
            killed[0].kill()
        ready(readers)

    monkeypatch.setattr(Readers, "ready", kill_first)
    monkeypatch.setattr(limits, "READER_IDLE_SECONDS", 3600)
    with headrace.Server(readers=1) as server, pymongo.MongoClient(server.uri) as client:
        server._running.scheduler.turns.seconds = 0.0
        client.t.c.insert_many([{"_id": number, "a": 1} for number in range(10)])
        until(lambda: client.t.c.count_documents({"$expr": {"$eq": ["$a", 1]}}) == 10 and moved_count(server) > 0)
        assert len(killed) == 1


def test_kill_op_ends_a_command_in_a_reader(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    errors: list[Any] = []

    def run() -> None:
        try:
            client.t.c.count_documents(SLOW, comment="long")
        except OperationFailure as error:
            errors.append(error.code)

    thread = threading.Thread(target=run)
    thread.start()
    reader = only_reader(server)
    until(lambda: bool(reader.calls))
    with pymongo.MongoClient(server.uri) as other:
        (shown,) = [item for item in other.admin.command("currentOp")["inprog"] if item["command"].get("comment")]
        other.admin.command("killOp", op=shown["opid"])
    thread.join()
    assert errors == [11601]
    until(lambda: not reader.calls)
    assert not reader.is_ended


def test_max_time_ends_a_command_in_a_reader(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    before = moved_count(server)
    with pytest.raises(ExecutionTimeout):
        client.t.c.aggregate([{"$match": SLOW}, {"$count": "n"}], maxTimeMS=100)
    assert moved_count(server) == before + 1


def test_what_has_ended_goes_before_all_others_in_a_reader(
    server: headrace.Server, client: pymongo.MongoClient[Any]
) -> None:
    """Sixty commands take turns, so that it is not soon the turn of any: the reader would be killed."""
    reader = only_reader(server)
    with ExitStack() as stack:
        others = [stack.enter_context(RawClient(server.address)) for _ in range(60)]
        for other in others:
            other.send({"count": "c", "query": SLOW}, "t")
        until(lambda: len(reader.calls) == len(others))
        with pytest.raises(ExecutionTimeout):
            client.t.c.aggregate([{"$match": SLOW}, {"$count": "n"}], maxTimeMS=50)
        until(lambda: len(reader.calls) == len(others))
        assert not reader.is_ended
    until(lambda: not reader.calls)
    assert not reader.is_ended


def test_a_client_that_leaves_ends_its_command_in_a_reader(server: headrace.Server) -> None:
    reader = only_reader(server)
    with RawClient(server.address) as raw:
        raw.send({"count": "c", "query": SLOW}, "t")
        until(lambda: bool(reader.calls))
    until(lambda: not reader.calls)
    assert not reader.is_ended


def test_a_reader_that_does_not_end_a_command_is_killed(
    server: headrace.Server, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READER_PATIENCE_SECONDS", 0.05)
    reader = only_reader(server)
    os.kill(reader.process.pid, signal.SIGSTOP)
    with pytest.raises(ExecutionTimeout):
        client.t.c.aggregate([{"$match": SLOW}, {"$count": "n"}], maxTimeMS=50)
    until(lambda: reader.is_ended)
    assert client.t.c.count_documents({"s": "x" * 20}) == COUNT


def test_what_is_not_only_a_read_stays(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    before = moved_count(server)
    collection = client.t.c
    assert collection.estimated_document_count() == COUNT
    with client.start_session() as session, session.start_transaction():
        assert len(list(collection.find({}, session=session))) == COUNT
    with client.start_session(snapshot=True) as session:
        assert len(list(collection.find({}, session=session))) == COUNT
    list(collection.aggregate([{"$indexStats": {}}]))
    list(client.config["transactions"].find())
    assert moved_count(server) == before


def test_the_server_counts_what_a_reader_has_used(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    def uses() -> int:
        stats = {item["name"]: item["accesses"]["ops"] for item in client.t.c.aggregate([{"$indexStats": {}}])}
        return int(stats["a_1"])

    total = client.admin.command("serverStatus")["metrics"]["commands"]["find"]["total"]
    before, moved = uses(), moved_count(server)
    assert len(list(client.t.c.find({"a": 3, "s": "x" * 20}))) == COUNT // 10
    assert moved_count(server) > moved
    assert uses() - before in (1, 2)  # it may have begun in the server, too
    assert client.admin.command("serverStatus")["metrics"]["commands"]["find"]["total"] == total + 1


def test_commands_about_documents_go_to_readers(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    client.t.c.estimated_document_count()  # the server counts once
    explained = {"explain": {"find": "c", "filter": {"s": "x" * 20}}, "verbosity": "executionStats"}
    for command in ({"collStats": "c"}, {"dbHash": 1}, {"dataSize": "t.c"}, explained):
        moved = moved_count(server)
        through_reader = _comparable(client.t.command(command))
        assert moved_count(server) == moved + 1
        server._running.scheduler.turns.seconds = 60.0
        in_server = _comparable(client.t.command(command))
        server._running.scheduler.turns.seconds = 0.0
        assert moved_count(server) == moved + 1
        assert through_reader == in_server


def _comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without times."""
    return {
        name: _comparable(value) if isinstance(value, dict) else value
        for name, value in reply.items()
        if "illis" not in name and name not in ("$clusterTime", "operationTime")
    }


def test_a_large_collection_is_read_in_a_reader_from_the_first_batch_on(
    server: headrace.Server, client: pymongo.MongoClient[Any]
) -> None:
    client.t.large.insert_many([{"_id": number} for number in range(10_001)])
    assert client.t.large.estimated_document_count() == 10_001
    server._running.scheduler.turns.seconds = 60.0
    before = moved_count(server)
    assert [item["_id"] for item in client.t.large.find()] == list(range(10_001))
    assert len(list(client.t.large.find({"_id": {"$gte": 5000}}))) == 5001
    assert moved_count(server) == before + 4
    assert client.t.large.find_one() == {"_id": 0}
    assert len(list(client.t.large.find({"_id": {"$gte": 5000}}, limit=5))) == 5
    assert moved_count(server) == before + 4
    server._running.scheduler.turns.seconds = 0.0


def test_a_range_of_events_is_read_in_a_reader(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    with client.t.watched.watch() as stream:
        token = stream.resume_token
    client.t.watched.insert_many([{"_id": number} for number in range(100)])
    before = moved_count(server)
    reply = client.t.command({"headraceChanges": "watched", "after": token, "columns": []})
    assert (reply["rows"], reply["idle"]) == (100, True)
    assert moved_count(server) == before + 1
    client.t.watched.insert_one({})
    reply = client.t.command({"headraceChanges": "watched", "after": reply["token"], "columns": [], "waitMs": 1})
    assert reply["rows"] == 1
    assert moved_count(server) == before + 1


def test_an_idle_reader_ends(server: headrace.Server, client: pymongo.MongoClient[Any]) -> None:
    reader = only_reader(server)
    cursor = client.t.c.find({"s": "x" * 20}, batch_size=100)
    next(cursor)

    def be_idle() -> None:
        reader.idle_since -= limits.READER_IDLE_SECONDS
        readers_of(server)._retire()

    on_loop(server, be_idle)
    assert not reader.is_retired  # which has a cursor
    cursor.close()
    on_loop(server, be_idle)
    until(lambda: reader.is_ended)
    assert reader.process.wait(60) == 0
    assert client.t.c.count_documents({"s": "x" * 20}) == COUNT


def test_readers_end_with_their_server(tmp_path: Path) -> None:
    """However it ends: kill -9 leaves no process behind, also none that is at a long command."""
    port = free_port()
    words = ["serve", "--dbpath", str(tmp_path / "data"), "--port", str(port), "--nounixsocket", "--readers", "1"]
    server = subprocess.Popen([sys.executable, "-m", "headrace", *words], stdout=subprocess.DEVNULL)
    until(lambda: not is_free(port))
    with RawClient(f"127.0.0.1:{port}") as client, RawClient(f"127.0.0.1:{port}") as other:
        client.ask({"insert": "c", "documents": [{"a": 1} for _ in range(COUNT)]})
        slow = {"$expr": {"$gte": [{"$size": {"$range": [0, 300_000]}}, "$a"]}}  # longer than a reader takes to start
        other.send({"count": "c", "query": slow})
        until(lambda: client.ask({"serverStatus": 1})["metrics"].get("readers", {}).get("commands"))
        (child,) = _children(server.pid)
        server.kill()
        server.wait()
    until(lambda: _has_ended(child))


def _has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _children(pid: int) -> list[str]:
    return [word for path in Path(f"/proc/{pid}/task").iterdir() for word in (path / "children").read_text().split()]


def test_a_read_whose_document_takes_long_is_begun_again_in_a_reader(
    server: headrace.Server, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the reader has a limit of its CPU time here, and the read pauses nowhere else."""
    monkeypatch.setattr(server._running.scheduler.turns, "seconds", 3600.0)
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0)
    before = moved_count(server)
    for read in (
        lambda: client.t.c.find_one({"$expr": {"$eq": [ENDLESS, 1]}}),
        lambda: list(client.t.c.aggregate([{"$limit": 1}, {"$project": {"n": ENDLESS}}])),
        lambda: client.t.c.count_documents({"$expr": {"$eq": [ENDLESS, 1]}}),
    ):
        with pytest.raises(OperationFailure) as raised:
            read()
        assert raised.value.code == 50
    assert moved_count(server) == before + 3
    assert client.t.c.find_one({"_id": 5})["a"] == 5


def test_a_step_that_cannot_be_cut_is_left_to_a_reader_before_it_begins(
    server: headrace.Server, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long array and the decoding of a large document: only the server hands them over here, before its turn ends."""
    monkeypatch.setattr(server._running.scheduler.turns, "seconds", 3600.0)
    monkeypatch.setattr(limits, "MOVED_ARRAY_LENGTH", 150_000)
    monkeypatch.setattr(limits, "MOVED_CHUNK_BYTES", 10_000)
    client.t.steps.insert_many([{"_id": 1, "s": "x" * 20_000}, {"_id": 2, "s": "y"}])
    made = [{"$limit": 1}, {"$project": {"_id": 0, "n": {"$size": {"$range": [0, 200_000]}}}}]
    before = moved_count(server)
    assert list(client.t.c.aggregate(made)) == [{"n": 200_000}]
    assert client.t.steps.count_documents({"s": {"$lt": "y"}}) == 1
    assert moved_count(server) == before + 2
    assert client.t.c.find_one({"a": 5}) is not None
    assert moved_count(server) == before + 2


@pytest.mark.parametrize("starts", [True, False])
def test_a_read_whose_document_takes_long_starts_the_first_reader(
    monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    """If none can be started, the server runs the read itself."""
    if not starts:

        def cannot_start(descriptor: int) -> None:
            raise OSError("no process is left")

        monkeypatch.setattr(pool, "spawn", cannot_start)
    with headrace.Server(readers=1) as server, pymongo.MongoClient(server.uri) as client:
        monkeypatch.setattr(server._running.scheduler.turns, "seconds", 3600.0)
        monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 3600.0 if starts else 0.1)
        client.t.c.insert_one({"_id": 5})
        with pytest.raises(OperationFailure) as raised:
            client.t.c.find_one({"$expr": {"$eq": [ENDLESS, 1]}})
        assert raised.value.code == 50
        assert moved_count(server) == int(starts)
