"""The command `compact`, with reads and writes between its steps, and killed at each of them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace.errors import CommandError, Interrupted
from headrace.store import compaction
from headrace.store.catalog_changes import collect_garbage
from headrace.store.check.directory import check
from headrace.store.data_file import DATA_FILE
from headrace.store.lmdb import COPY_FOLDER, DataFileCopy, HalfExchanged, LmdbEnvironment
from headrace.testing.driven import DrivenServer
from tests.backup.random_history import RandomHistory, seen
from tests.store.compaction_kills import run
from tests.waiting import until

COMPACT = {"compact": "c", "force": True, "freeSpaceTargetMB": 1}
COUNT = 300


def fill(server: DrivenServer) -> None:
    """Store 300 documents in a file that is much larger."""
    server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(COUNT)]})
    server.must("t", {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
    for _ in range(3):
        server.must("t", {"insert": "large", "documents": [{"x": os.urandom(10_000)} for _ in range(200)]})
    server.must("t", {"drop": "large"})
    server.engine.parameters["oplogEntriesMax"] = None
    txn = server.store.begin()
    while collect_garbage(txn, 1000):
        pass
    server.store.commit(txn)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with DrivenServer(tmp_path / "data") as opened:
        fill(opened)
        yield opened


def ids(server: DrivenServer) -> list[Any]:
    found = server.must("t", {"find": "c", "batchSize": 100_000, "projection": {"_id": 1}})
    return [item["_id"] for item in found["cursor"]["firstBatch"]]


def test_what_is_written_between_the_steps_is_in_the_smaller_file(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PIECE_COUNT", 5)
    monkeypatch.setattr("headrace.limits.COMPACTION_KEY_COUNT", 20)
    file = server.store.environment.path / DATA_FILE
    before, expected = file.stat().st_size, set(range(COUNT))

    def write(pause: int) -> None:
        new = [{"_id": f"{pause}-{number}", "n": number} for number in range(8 if pause < 10 else 0)]
        if new:
            server.must("t", {"insert": "c", "documents": new})
        server.must("t", {"delete": "c", "deletes": [{"q": {"_id": pause}, "limit": 1}]})
        server.must("t", {"update": "c", "updates": [{"q": {"_id": f"1-{pause % 8}"}, "u": {"$set": {"n": -pause}}}]})
        expected.update(item["_id"] for item in new)
        expected.discard(pause)

    answer, pauses = server.in_turns("t", COMPACT, write)
    assert answer["ok"] == 1.0 and pauses > 5
    after = file.stat().st_size
    assert answer["bytesFreed"] > before * 0.4 and after < before * 0.6
    for _ in range(2):
        assert set(ids(server)) == expected
        assert server.must("t", {"validate": "c"})["valid"]
        assert server.must("t", {"find": "c", "filter": {"n": -pauses}})["cursor"]["firstBatch"] == [
            {"_id": f"1-{pauses % 8}", "n": -pauses}
        ]
        server.restart()
    server.close()
    assert check(file.parent).problems == []
    assert {item.name for item in file.parent.iterdir()} <= {DATA_FILE, "headrace.lock", "lock.mdb", "_tmp"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_goes_on_through_compactions(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PIECE_COUNT", 3)
    monkeypatch.setattr("headrace.limits.COMPACTION_KEY_COUNT", 10)
    server = DrivenServer(tmp_path / "data")
    fill(server)
    history = RandomHistory(server, seed)
    states = []

    def step(pause: int) -> None:
        if pause < 40:
            history.step()
        states[:] = [seen(server)]

    for _ in range(3):
        compacted(server, step)
        assert seen(server) == states[0]
        server.restart()
        assert seen(server) == states[0]
    server.close()
    assert check(tmp_path / "data").problems == []


def compacted(server: DrivenServer, between: Any = lambda count: None) -> dict[str, Any]:
    """The reply of a compaction, of a file that has something to free."""
    server.must("t", {"insert": "large", "documents": [{"x": os.urandom(10_000)} for _ in range(300)]})
    server.must("t", {"drop": "large"})
    txn = server.store.begin()
    while collect_garbage(txn, 1000):
        pass
    server.store.commit(txn)
    answer, _ = server.in_turns("t", COMPACT, between)
    assert answer["ok"] == 1.0 and answer["bytesFreed"] > 0, answer
    return answer


def test_reads_go_on_and_a_transaction_is_to_be_repeated(server: DrivenServer) -> None:
    cursor = server.must("t", {"find": "c", "batchSize": 10, "sort": {"_id": 1}, "noCursorTimeout": True})["cursor"]
    snapshot = server.must("t", {"find": "c", "batchSize": 10, "readConcern": {"level": "snapshot"}})["cursor"]
    stream = server.must("t", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})["cursor"]
    session = {"lsid": {"id": Binary(os.urandom(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    begin = {**session, "startTransaction": True}
    held = server.store.begin_read()
    assert server.run("t", {"insert": "c", "documents": [{"_id": "in"}], **begin})["ok"] == 1.0
    compacted(server)
    failed = server.run("t", {"insert": "c", "documents": [{"_id": "in too"}], **session})
    assert failed["code"] == 251 and failed["errorLabels"] == ["TransientTransactionError"]
    server.must("t", {"insert": "c", "documents": [{"_id": 1000}]})
    assert held.get(b"history-id", db=held.tables["meta"]) is not None
    held.abort()
    left = server.must("t", {"getMore": cursor["id"], "collection": "c", "batchSize": 10_000})["cursor"]["nextBatch"]
    assert [item["_id"] for item in cursor["firstBatch"] + left][:COUNT] == list(range(COUNT))
    left = server.must("t", {"getMore": snapshot["id"], "collection": "c", "batchSize": 10_000})["cursor"]["nextBatch"]
    assert [item["_id"] for item in snapshot["firstBatch"] + left] == list(range(COUNT))
    events = server.must("t", {"getMore": stream["id"], "collection": "c"})["cursor"]["nextBatch"]
    assert [event["documentKey"]["_id"] for event in events if event["operationType"] == "insert"] == [1000]
    server.engine.snapshots.end_older(math.inf)
    held_files = [os.readlink(f"/proc/self/fd/{item}") for item in os.listdir("/proc/self/fd") if item.isdecimal()
                  and os.path.islink(f"/proc/self/fd/{item}")]  # fmt: skip
    assert not [name for name in held_files if str(server.path) in name and "(deleted)" in name and "_tmp" not in name]


def test_numbers_of_commits_go_on(server: DrivenServer) -> None:
    kv = server.store.begin_read()
    before = kv.number
    kv.abort()
    compacted(server)
    kv = server.store.begin_read()
    assert kv.number > before
    kv.abort()


def test_two_at_a_time_little_to_free_and_no_room_are_refused(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []

    def another(pause: int) -> None:
        if server.store.compaction is not None:
            codes.append(server.in_turns("t", COMPACT)[0]["code"])

    answer, _ = server.in_turns("t", COMPACT, another)
    assert answer["bytesFreed"] > 0 and len(codes) >= 3 and set(codes) == {117}
    assert server.in_turns("t", COMPACT)[0]["bytesFreed"] == 0
    assert server.must("t", {"compact": "c", "dryRun": True})["bytesFreed"] < 1_000_000
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255)))
    assert server.in_turns("t", {**COMPACT, "freeSpaceTargetMB": 1000})[0]["bytesFreed"] == 0
    with pytest.raises(CommandError, match="no room"):
        server.store.begin_compaction(1)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_one_that_is_interrupted_leaves_the_file_as_it_was(server: DrivenServer, at: int) -> None:
    file = server.store.environment.path / DATA_FILE
    before = file.stat().st_ino

    def interrupt(pause: int) -> Interrupted | None:
        return Interrupted(11601, "operation was interrupted") if pause == at else None

    answer, _ = server.in_turns("t", COMPACT, interrupt)
    assert answer["code"] == 11601
    assert file.stat().st_ino == before and not (file.parent / "compact.new").exists()
    assert server.store.compaction is None and sorted(ids(server)) == list(range(COUNT))
    assert compacted(server)["bytesFreed"] > 0


@pytest.mark.parametrize(
    ("where", "name", "code"),
    [
        (LmdbEnvironment, "copy_to", 14031), (LmdbEnvironment, "open_copy", 14031), (DataFileCopy, "sync", 14031),
        (DataFileCopy, "take", 14031), (DataFileCopy, "has_all_rows", 14031), (LmdbEnvironment, "_open", 14031),
        (Path, "mkdir", 14031), (Path, "rename", 14031), (os, "statvfs", 14031),
    ],
)  # fmt: skip
def test_a_failing_disk_ends_the_compaction_alone(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, code: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "the disk fails")

    def write(pause: int) -> None:
        server.must("t", {"insert": "c", "documents": [{"_id": f"at {pause}"}]})

    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        answer, pauses = server.in_turns("t", COMPACT, write)
    assert answer["code"] == code and "the disk fails" in answer["errmsg"], answer
    assert len(ids(server)) == COUNT + pauses
    compacted(server)
    assert len(ids(server)) == COUNT + pauses


@pytest.mark.parametrize("name", ["rename", "_use"])
def test_after_half_an_exchange_the_server_ends(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(path: Any, *_: Any) -> None:
        if name == "rename" and path.name != DATA_FILE:
            os.rename(path, path.parent.parent / path.name)
        else:
            raise OSError(5, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(Path if name == "rename" else LmdbEnvironment, name, fail)
        with pytest.raises(HalfExchanged):
            server.in_turns("t", COMPACT)
    server.restart()
    assert sorted(ids(server)) == list(range(COUNT))


def test_a_directory_that_cannot_be_written_is_reported(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = os.open

    def refuse(path: Any, *arguments: Any) -> int:
        if Path(path).parent.name == COPY_FOLDER:
            raise PermissionError(13, "Permission denied")
        return opening(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        answer, _ = server.in_turns("t", COMPACT)
    assert answer["code"] == 14031 and "Permission denied" in answer["errmsg"]
    compacted(server)


def test_the_owner_of_the_copy_is_set_before_its_thread_begins(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a compaction lets the descriptor lead to the null device, whose owner must not change."""
    owned: list[str] = []
    monkeypatch.setattr(os, "fchown", lambda file, *_: owned.append(os.readlink(f"/proc/self/fd/{file}")))
    begun = server.store.begin_compaction(0)
    assert len(owned) == 1 and owned[0].endswith(DATA_FILE)
    begun.copy().result()
    assert len(owned) == 1
    server.store.end_compaction(begun)


def test_a_transaction_reads_the_new_file_although_a_read_began_during_the_exchange(server: DrivenServer) -> None:
    store, batches, replaced = server.store, [], list[bool]()
    session = {"lsid": {"id": Binary(os.urandom(16), 4)}, "txnNumber": Int64(1), "autocommit": False}

    def begin(pause: int) -> None:
        store.transactions.awaited = True
        if replaced:  # and nothing was committed since
            found = server.must("t", {"find": "c", "filter": {"_id": 7}, **session, "startTransaction": True})
            batches.append(found["cursor"]["firstBatch"])

    store.file_listeners.append(lambda: replaced.append(True))
    store.transactions.wake_listeners.append(lambda key: store.begin_read().abort())  # as for a reader's answer
    compacted(server, begin)
    assert batches == [[{"_id": 7}]]


@pytest.mark.long
def test_threads_read_and_write_an_open_store_that_is_compacted(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "data") as server:
        fill(server)
    with headrace.open(tmp_path / "data") as store:
        collection, numbers, stop = store["t"]["c"], [COUNT], threading.Event()
        problems: list[object] = []

        def write() -> None:
            while not stop.is_set():
                collection.insert_one({"_id": numbers[0]})
                numbers[0] += 1

        def read() -> None:
            while not stop.is_set():
                least, found = numbers[0], [item["_id"] for item in collection.find().sort("_id", 1)]
                if len(found) < least or found != list(range(len(found))):
                    problems.append((least, len(found)))

        threads = [threading.Thread(target=write), threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        freed = store["t"].command(COMPACT)["bytesFreed"]
        until(lambda: numbers[0] > COUNT + 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert freed > 1_000_000 and problems == []
        assert collection.count_documents({}) == numbers[0]
    assert check(tmp_path / "data").problems == []


CHILD = """
import os, signal, sys
from pathlib import Path
from headrace.store import compaction, lmdb
from tests.store.test_running_compaction import COMPACT, DrivenServer, fill

compaction.PIECE_COUNT, limit = 5, 20
path, where, name, count, is_after = sys.argv[1], *sys.argv[2].split(":")
server = DrivenServer(path)
fill(server)
holder = {"os": os, "Path": Path, "copy": lmdb.DataFileCopy, "environment": lmdb.LmdbEnvironment,
          "lmdb": lmdb}[where]
original, left = getattr(holder, name), [int(count)]

def killing(*arguments, **named):
    left[0] -= 1
    if left[0] == 0 and is_after == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = original(*arguments, **named)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

def write(pause):
    documents = [{"_id": f"{pause}-{number}"} for number in range(12 if pause < 8 else 1)]
    server.must("t", {"insert": "c", "documents": documents})
    print(*(item["_id"] for item in documents), flush=True)

setattr(holder, name, killing)
server.in_turns("t", COMPACT, write)
"""
STEPS = [
    "environment:copy_to:1", "os:fsync:1", "environment:open_copy:1", "copy:take:1", "copy:take:4", "copy:sync:1",
    "copy:has_all_rows:1", "environment:_open:1", "lmdb:sync_folder:1", "Path:rename:1",
    "Path:rename:2", "lmdb:sync_folder:2", "environment:_use:1",
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("step", [f"{step}:{when}" for step in STEPS for when in ("before", "after")])
def test_killed_at_a_step_nothing_acknowledged_is_lost(tmp_path: Path, step: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "data"), step], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert check(tmp_path / "data").problems == []
    with DrivenServer(tmp_path / "data") as server:
        there, acknowledged = set(ids(server)), {*range(COUNT), *done.stdout.split()}
        assert acknowledged <= there
        extra = there - acknowledged  # a step in a thread may end the process between a commit and its answer
        assert len(extra) in (0, 1, 12) and len({name.partition("-")[0] for name in extra}) <= 1
        assert not (tmp_path / "data" / "compact.new").exists()
        assert server.must("t", {"validate": "c"})["valid"]


@pytest.mark.process
def test_a_server_that_is_compacted_and_killed_loses_nothing(tmp_path: Path) -> None:
    lives = run(3, 1, tmp_path)
    assert lives.compacted > 0 and lives.reads > 3 and lives.events > 100
