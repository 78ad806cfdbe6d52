"""When a store syncs its file: before anybody reads what a killed process wrote, and before a new file has its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.store.check.directory import check
from headrace.store.lmdb import NEW_FILE
from headrace.store.store import Store
from headrace.testing.driven import DrivenServer
from tests.crashes.disk_calls import DiskObserver, observed, writes_through


class Calls(DiskObserver):
    """Notes what is written and not synced."""

    def __init__(self) -> None:
        self.unsynced = 0
        self.sync_count = 0

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        self.unsynced += not writes_through(descriptor)

    def after_sync(self, descriptor: int) -> None:
        self.unsynced = 0
        self.sync_count += 1


def test_a_commit_that_a_killed_process_left_is_synced_before_it_is_read(tmp_path: Path) -> None:
    with DrivenServer(tmp_path) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
    calls = Calls()
    with observed(calls), DrivenServer(tmp_path) as at:
        assert at.must("t", {"count": "c"})["n"] == 1
    assert calls.sync_count == 1


def test_a_new_data_file_is_complete_and_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, copy = Calls(), tmp_path / "copy"
    synced: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def note_rename(self: Path, target: Path) -> Path:
        assert calls.sync_count and not calls.unsynced
        copy.mkdir()
        shutil.copy(self, copy / target.name)
        return rename(self, target)

    def note_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_fsync)
    path = tmp_path / "a" / "b"
    with observed(calls):
        Store(path).close()
    assert synced == [str(path), str(path.parent), str(tmp_path)]
    Store(copy).close()
    assert check(copy).problems == []


@pytest.mark.parametrize("content", [b"", bytes(4096), b"half of it"])
def test_a_file_whose_making_was_cut_short_is_made_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NEW_FILE).write_bytes(content)
    (tmp_path / "headrace.lock").write_text("1")
    Store(tmp_path).close()
    assert check(tmp_path).problems == []
    assert not (tmp_path / NEW_FILE).exists()
