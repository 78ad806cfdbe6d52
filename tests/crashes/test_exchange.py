"""The power is lost at each step of a compaction's exchange of files: the directory has the old file or the new one.

The names of a directory reach the disk on their own: a rename counts once the folder is synced, and may count before.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.commands.maintenance import sizes
from headrace.dispatch.arguments import number
from headrace.store import compaction
from headrace.store import lmdb as environments
from headrace.store.check.directory import check
from headrace.store.data_file import DATA_FILE
from headrace.testing.driven import DrivenServer
from tests.crashes.disk_calls import DiskObserver, observed, writes_through
from tests.crashes.disk_record import SYNCED, THROUGH, WRITE, WRITTEN_THROUGH, DiskEntry, DiskState, is_data_file

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the calls are seen on Linux")


class Disk(DiskObserver):
    """The data files of a directory by their inode, the names that are on the disk, and the renames that may be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / DATA_FILE
        self.named = file.stat().st_ino
        self.renamed: list[int] = []
        self.files = {self.named: DiskState(file.read_bytes())}
        self.acknowledged: set[Any] = set()
        self.moments: list[tuple[str, list[bytes], set[Any]]] = []
        """The last step, the files that a loss of power may leave then, and the acknowledged documents."""
        self.random = Random(1)

    def note(self, what: str) -> None:
        """Keep what a loss of power may leave now."""
        left = [self.files[inode].after_power_loss(self.random) for inode in (self.named, *self.renamed)]
        self.moments.append((what, left, set(self.acknowledged)))

    def _take(self, descriptor: int, kind: int, offset: int = 0, data: bytes = b"") -> None:
        state = self.files.get(os.fstat(descriptor).st_ino)
        if state is not None and is_data_file(descriptor):
            state.take(DiskEntry(0, kind, offset, data))
            self.note(("write", "sync", "write", "written through")[kind])

    def before_write(self, descriptor: int, offset: int, data: bytes) -> None:
        self._take(descriptor, THROUGH if writes_through(descriptor) else WRITE, offset, data)

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        if writes_through(descriptor):
            self._take(descriptor, WRITTEN_THROUGH)

    def after_sync(self, descriptor: int) -> None:
        self._take(descriptor, SYNCED)

    def has_renamed(self, target: Path) -> None:
        """A file has another name, but not yet for certain."""
        if target == self.path / DATA_FILE:
            self.renamed.append(target.stat().st_ino)
        self.note(f"rename to {target.name}")

    def has_synced(self, descriptor: int) -> None:
        """Python has synced a new data file, or the folder."""
        there = os.fstat(descriptor)
        if stat.S_ISDIR(there.st_mode):
            self.named, self.renamed = (self.renamed or [self.named])[-1], []
            self.note("folder synced")
        elif is_data_file(descriptor):
            self.files[there.st_ino] = DiskState(os.pread(descriptor, there.st_size, 0))


@contextmanager
def seen(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show the disk all that is done to it."""
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        disk.has_synced(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        made = rename(path, target)
        disk.has_renamed(target)
        return made

    with monkeypatch.context() as patch, observed(disk):
        patch.setattr(os, "fsync", synced)
        patch.setattr(Path, "rename", renamed)
        yield


def compacted(path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Compact a directory between writes; return what its disk had."""
    monkeypatch.setattr(sizes, "TARGET", number("freeSpaceTargetMB", default=0))
    monkeypatch.setattr(compaction, "PIECE_COUNT", 5)
    with DrivenServer(path) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": key, "x": "x" * 500} for key in range(100)]})
        server.must("t", {"delete": "c", "deletes": [{"q": {"_id": {"$gte": 20}}, "limit": 0}]})
        disk = Disk(path)
        disk.acknowledged = set(range(20))

        def write(pause: int) -> None:
            server.must("t", {"insert": "c", "documents": [{"_id": f"{pause}-{each}"} for each in range(9)]})
            disk.acknowledged |= {f"{pause}-{each}" for each in range(9)}
            disk.note("acknowledged")

        with seen(disk, monkeypatch):
            answer, pauses = server.in_turns("t", {"compact": "c", "force": True}, write)
            for more in range(3):
                write(pauses + 1 + more)
        assert answer["bytesFreed"] > 0, answer
    return disk


def losses(disk: Disk, path: Path) -> list[str]:
    """Open each directory that a loss of power may leave; return what is wrong."""
    wrong: list[str] = []
    first = next(at for at, (what, _, _) in enumerate(disk.moments) if what.startswith("rename")) - 25
    for at, (what, files, acknowledged) in enumerate(disk.moments[first:], first):
        for content in files:
            shutil.rmtree(path, ignore_errors=True)
            (path / "compact.new").mkdir(parents=True)
            (path / "compact.new" / DATA_FILE).write_bytes(content[: len(content) // 2])
            (path / DATA_FILE).write_bytes(content)
            try:
                problems = check(path).problems
                with DrivenServer(path) as server:
                    found = server.must("t", {"find": "c", "batchSize": 100_000, "projection": {"_id": 1}})
                    ids = {item["_id"] for item in found["cursor"]["firstBatch"]}
                if problems or acknowledged - ids or (path / "compact.new").exists():
                    wrong.append(f"{at}, after {what}: {problems}, lost {acknowledged - ids}")
            except Exception as error:
                wrong.append(f"{at}, after {what}: {error!r}")
    return wrong


def is_noticed(disk: Disk, path: Path) -> bool:
    """Whether a child process finds losses, or dies of one: LMDB may, of a page that was not written."""
    child = get_context("fork").Process(target=lambda: os._exit(bool(losses(disk, path))))
    child.start()
    child.join()
    return child.exitcode != 0


def test_a_loss_of_power_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = compacted(tmp_path / "data", monkeypatch)
    steps = [what for what, _, _ in disk.moments if what.startswith(("rename", "folder"))]
    assert steps == ["folder synced", "rename to lock.mdb", "rename to data.mdb", "folder synced"]
    assert any(len(files) == 2 for _, files, _ in disk.moments)
    assert losses(disk, tmp_path / "lost") == []


@pytest.mark.parametrize("planted", ["names", "commits"])
def test_what_is_not_synced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    if planted == "names":
        monkeypatch.setattr(environments, "sync_folder", lambda folder: None)
    else:
        opening = environments.lmdb.open
        monkeypatch.setattr(environments.lmdb, "open", lambda *words, **more: opening(*words, **more | {"sync": False}))
    disk = compacted(tmp_path / "data", monkeypatch)
    assert is_noticed(disk, tmp_path / "lost")
