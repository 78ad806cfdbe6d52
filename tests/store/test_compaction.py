"""`headrace compact` makes the file smaller, and leaves the old file or the new one whenever it is cut off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import main
from headrace.store import lmdb
from headrace.store.catalog_changes import collect_garbage
from headrace.store.check.directory import check
from headrace.store.compaction import compact
from headrace.store.data_file import UnusableDirectory
from headrace.store.lmdb import DataFileCopy, HalfExchanged, LmdbEnvironment
from headrace.testing.driven import DrivenServer
from tests.backup.random_history import RandomHistory, seen

BESIDE = """
import sys
from pathlib import Path
from headrace.store.lmdb import Beside

with Beside(Path(sys.argv[1])).reading() as (kv, tables):
    first = kv.stat(tables["documents"])["entries"]
    print("reads", flush=True)
    sys.stdin.readline()
    with kv.cursor(tables["documents"]) as cursor:
        assert sum(1 for _ in cursor.iternext()) == first == 100
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is much larger than its 100 documents."""
    with DrivenServer(tmp_path / "data") as server:
        server.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(100)]})
        for _ in range(3):
            server.must("t", {"insert": "large", "documents": [{"x": os.urandom(10_000)} for _ in range(200)]})
        server.must("t", {"drop": "large"})
        txn = server.store.begin()
        while collect_garbage(txn, 1000):
            pass
        server.store.commit(txn)
    return tmp_path / "data"


def ids(path: Path) -> list[int]:
    with DrivenServer(path) as server:
        found = server.must("t", {"find": "c", "batchSize": 1000})
    return [item["_id"] for item in found["cursor"]["firstBatch"]]


def test_the_file_is_smaller_and_has_everything(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (data / "data.mdb").stat()
    assert main(["compact", str(data)]) == 0
    after = (data / "data.mdb").stat()
    assert after.st_size < before.st_size * 0.7 and after.st_mode == before.st_mode
    assert capsys.readouterr().out == f"{data}: {before.st_size / 1e6:.1f} MB, now {after.st_size / 1e6:.1f} MB\n"
    assert check(data).problems == []
    assert ids(data) == list(range(100))
    inode = (data / "data.mdb").stat().st_ino
    sizes = compact(data)
    assert sizes.after == sizes.before or (data / "data.mdb").stat().st_ino != inode
    assert {path.name for path in data.iterdir()} <= {"data.mdb", "headrace.lock", "lock.mdb", "_tmp"}


@pytest.mark.long
def test_a_compacted_history_goes_on_as_before(tmp_path: Path) -> None:
    server = DrivenServer(tmp_path / "data")
    history = RandomHistory(server, 5)
    for _ in range(100):
        history.step()
    expected = seen(server)
    server.close()
    compact(tmp_path / "data")
    server._open()
    assert seen(server) == expected
    for _ in range(30):
        history.step()
    server.close()
    assert check(tmp_path / "data").problems == []


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (LmdbEnvironment, "copy_to"), (os, "fsync"), (DataFileCopy, "has_all_rows"),
        (Path, "rename"), (lmdb, "sync_folder"),
    ],
)  # fmt: skip
def test_what_is_cut_off_leaves_the_old_file_or_the_new_one(
    data: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        with pytest.raises((HalfExchanged, OSError), match="the power went"):
            compact(data)
    assert not (data / "compact.new").exists()
    (data / "compact.new").mkdir()
    (data / "compact.new" / "data.mdb").write_bytes(b"of a process that was killed")
    assert ids(data) == list(range(100))
    assert not (data / "compact.new").exists()
    assert check(data).problems == []


def test_a_directory_in_use_or_without_data_is_refused(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with headrace.open(data):
        assert main(["compact", str(data)]) == 100
        assert "is in use by another headrace process" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(UnusableDirectory, match="no data file"):
            compact(path)
    assert list((tmp_path / "empty").iterdir()) == [] and not (tmp_path / "missing").exists()


@pytest.mark.process
def test_who_reads_beside_it_reads_the_old_file_or_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, readers = DataFileCopy.has_all_rows, []

    def count_while_read(copy: DataFileCopy) -> bool:
        command = [sys.executable, "-c", BESIDE, str(data)]
        pipe = subprocess.PIPE
        reader = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        readers.append(reader)
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        reader.stdin.close()
        return count(copy)

    monkeypatch.setattr(DataFileCopy, "has_all_rows", count_while_read)
    sizes = compact(data)
    assert sizes.after < sizes.before
    with readers[0] as reader:
        assert reader.stderr is not None
        said = reader.stderr.read()
        assert reader.wait(60) == 0 or "ReadersChanged" in said, "it is told that what it read does not count"
    assert ids(data) == list(range(100))
