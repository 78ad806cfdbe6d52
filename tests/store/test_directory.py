"""A data directory: opened again as it was left, grown when full, refused where it cannot be understood or shared."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lmdb
import pytest
from bson import Timestamp

from headrace.store import catalog_changes
from headrace.store.checksums.upgrade import IncompatibleFormat
from headrace.store.data_file import UnusableDirectory
from headrace.store.lmdb import DirectoryInUse
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer


def insert(at: DrivenServer, *documents: dict[str, Any]) -> None:
    at.must("t", {"insert": "c", "documents": list(documents)})


def token(at: DrivenServer) -> dict[str, Any]:
    """A token that stands where the oplog ends."""
    return dict(at.must("t", watching())["cursor"]["postBatchResumeToken"])


def watching(**options: Any) -> dict[str, Any]:
    return {"aggregate": "c", "pipeline": [{"$changeStream": options}], "cursor": {}}


def code_of(at: DrivenServer, **options: Any) -> int:
    reply = at.run("t", watching(**options))
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


def test_a_second_process_is_refused_and_learns_who_has_it(tmp_path: Path) -> None:
    with DrivenServer(tmp_path):
        script = f"from headrace.store.store import Store\nStore({str(tmp_path)!r})"
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert second.returncode == 1 and f"DirectoryInUse: the data directory {tmp_path} is in use" in second.stderr
        with pytest.raises(DirectoryInUse, match=r"\(pid \d+\)\. One process opens a directory: stop it"):
            Store(tmp_path)
    Store(tmp_path).close()


def test_an_unknown_format_is_refused_and_the_directory_let_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kv = store.environment.begin_plain(write=True)
    kv.put(b"format", b"99", db=store.tables["meta"])
    kv.commit()
    store.close()
    for _ in range(2):
        with pytest.raises(IncompatibleFormat, match="has format 99, and this version of Headrace knows 1 to 3"):
            Store(tmp_path)


def test_a_file_that_is_no_data_file_is_refused_and_the_directory_let_go(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"this is not LMDB" * 1000)
    for _ in range(2):
        with pytest.raises(UnusableDirectory, match="is no data file of Headrace"):
            Store(tmp_path)
    (tmp_path / "data.mdb").unlink()
    Store(tmp_path).close()


def test_a_throw_away_directory_is_removed() -> None:
    store = Store(None)
    path = store.environment.path
    assert path.is_dir()
    store.close()
    assert not path.exists()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        before = token(at)
        key = {"key": {"a": 1}, "name": "a_1", "unique": True}
        at.must("t", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
        at.must("t", {"createIndexes": "c", "indexes": [key]})
        at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
        insert(at, {"_id": 1, "a": 1}, {"_id": 2, "a": 2})
        collections = at.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
        last = at.store.last_position
        at.restart()
        assert at.store.last_position == last
        assert at.must("t", {"listCollections": 1})["cursor"]["firstBatch"] == collections
        reply = at.run("t", {"insert": "c", "documents": [{"_id": 3, "a": 1}]})
        assert isinstance(reply, dict) and reply["writeErrors"][0]["code"] == 11000
        insert(at, {"_id": 3, "a": 3})
        assert [item["_id"] for item in at.must("t", {"find": "v"})["cursor"]["firstBatch"]] == [1, 2, 3]
        events = at.must("t", watching(resumeAfter=before))["cursor"]["firstBatch"]
        assert [event["documentKey"]["_id"] for event in events] == [1, 2, 3]


def test_positions_go_on_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = FakeClock()
    with DrivenServer(tmp_path, clock=clock) as at:
        insert(at, {"_id": 1})
        last = at.store.last_position
        clock.set_wall(clock.now_ms() - 3_600_000)
        insert(at, {"_id": 2})
        at.restart()
        insert(at, {"_id": 3})
        with at.store.reading() as view:
            assert [position for position, _ in view.entries(last)] == [last, last + 1, last + 2]


def test_history_before_a_time_without_oplog_is_gone_every_time(tmp_path: Path) -> None:
    clock = FakeClock()
    missing: list[dict[str, Any]] = []
    for number in range(3):
        with DrivenServer(tmp_path, clock=clock) as at:
            for old in missing:
                assert code_of(at, resumeAfter=old) == code_of(at, startAfter=old) == 286
            opened = at.store.last_position
            insert(at, {"_id": f"with {number}"})
            assert code_of(at, startAtOperationTime=Timestamp(opened >> 32, opened & 0xFFFFFFFF)) == 0
            missing.append(token(at))
            last = at.store.last_position
        with DrivenServer(tmp_path, clock=clock, oplog=False) as at:
            insert(at, {"_id": f"without {number}"})
            assert code_of(at) == 40573
            with at.store.reading() as view:
                assert all(view.kv.stat(view.tables[name])["entries"] == 0 for name in ("oplog", "runs", "images"))
        clock.set_wall(clock.now_ms() - 60_000)
    with DrivenServer(tmp_path, clock=clock) as at:
        assert at.store.last_position > last
        assert at.must("t", {"count": "c"})["n"] == 6


def test_a_directory_begun_without_an_oplog_has_no_history_before_it(tmp_path: Path) -> None:
    clock = FakeClock()
    with DrivenServer(tmp_path, clock=clock, oplog=False) as at:
        insert(at, {"_id": 1})
    clock.advance(60_000)
    with DrivenServer(tmp_path, clock=clock) as at:
        assert code_of(at, startAtOperationTime=Timestamp(clock.now_ms() // 1000 - 30, 1)) == 286


def test_the_garbage_of_a_dropped_collection_is_collected_after_a_restart(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        insert(at, *[{"_id": n} for n in range(10)])
        at.must("t", {"drop": "c"})
        at.restart()
        with at.store.reading() as view:
            assert catalog_changes.has_garbage(view)
        while True:
            txn = at.store.begin()
            more = catalog_changes.collect_garbage(txn, 100)
            at.store.commit(txn)
            if not more:
                break
        with at.store.reading() as view:
            assert view.kv.stat(view.tables["documents"])["entries"] == 0


def contents(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in path.iterdir() if item.name != "headrace.lock"}


def filled(path: Path) -> Path:
    """The data file of a directory that was used and is closed."""
    with DrivenServer(path) as at:
        for first in range(0, 3000, 1000):
            insert(at, *[{"_id": first + n, "text": "x" * 200} for n in range(1000)])
        insert(at, {"_id": "large", "text": "x" * 100_000})
    return path / "data.mdb"


@pytest.mark.parametrize("share", [0.0001, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_and_left_as_it_is(tmp_path: Path, share: float) -> None:
    file = filled(tmp_path)
    os.truncate(file, int(file.stat().st_size * share))
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(UnusableDirectory, match="is truncated"):
            Store(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_that_lacks_only_pages_nobody_needs_is_opened(tmp_path: Path) -> None:
    file = filled(tmp_path)
    with file.open("r+b") as opened:  # as if more pages had been taken and freed in the last transaction
        for page in (0, 4096):
            opened.seek(page + 136)
            (last,) = struct.unpack("=Q", opened.read(8))
            opened.seek(page + 136)
            opened.write(struct.pack("=Q", last + 3))
    with DrivenServer(tmp_path) as at:
        assert at.must("t", {"count": "c"})["n"] == 3001


def test_an_empty_file_is_a_new_store_only_where_there_was_none(tmp_path: Path) -> None:
    file = filled(tmp_path)
    os.truncate(file, 0)
    with pytest.raises(UnusableDirectory, match="is empty, though the directory has held data"):
        Store(tmp_path)
    assert file.stat().st_size == 0
    (tmp_path / "headrace.lock").unlink()
    Store(tmp_path).close()


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    file = filled(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(8192)
        opened.write(os.urandom(file.stat().st_size - 8192))
    before = contents(tmp_path)
    with pytest.raises(UnusableDirectory, match=r"data\.mdb"):
        Store(tmp_path)
    assert contents(tmp_path) == before


def test_the_directory_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1, lock=False) as environment:
        environment.open_db(b"theirs")
    mongo = tmp_path / "mongo"
    mongo.mkdir()
    (mongo / "WiredTiger").write_text("WiredTiger")
    before = contents(mongo)
    with pytest.raises(UnusableDirectory, match="of another program"):
        Store(tmp_path)
    with pytest.raises(UnusableDirectory, match="holds the data of a MongoDB server"):
        Store(mongo)
    assert contents(mongo) == before and not list(tmp_path.glob("**/headrace.lock"))


def test_files_and_a_new_directory_are_the_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "new"
    Store(path).close()
    (path / "data.mdb").chmod(0o644)
    (path / "headrace.lock").chmod(0o644)
    Store(path).close()
    assert [item.stat().st_mode & 0o777 for item in (path, path / "data.mdb", path / "headrace.lock")] == [
        0o700, 0o600, 0o600,
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="becomes another user for a moment")
def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = Path(tempfile.mkdtemp())
    Store(path).close()
    path.chmod(0o755)
    for item in path.iterdir():
        item.chmod(0o444)
    os.seteuid(65534)
    try:
        with pytest.raises(UnusableDirectory, match="cannot be written: Permission denied"):
            Store(path)
    finally:
        os.seteuid(0)
        shutil.rmtree(path)


@pytest.mark.process
def test_the_command_line_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    os.truncate(filled(tmp_path), 10_000)
    words = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--nounixsocket", "--dbpath", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "data.mdb is truncated" in done.stderr
