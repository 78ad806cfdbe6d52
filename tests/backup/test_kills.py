"""The backup of a server that runs, as a process beside it; `python -m tests.backup.kills` kills for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

from headrace.backup.source import DirectorySource
from tests.backup.kills import Lives, run
from tests.backup.moments import run as restore_moments
from tests.backup.standby_kills import run as promote_after_kills


@pytest.mark.process
def test_a_hundred_random_moments_are_restored_as_they_were(tmp_path: Path) -> None:
    assert restore_moments(100, 7, tmp_path) == 100


@pytest.mark.process
def test_after_kills_of_server_and_backup_the_archive_has_what_was_shipped(tmp_path: Path) -> None:
    assert run(4, 7, tmp_path) == 4


@pytest.mark.process
def test_after_kills_of_a_server_and_a_backup_that_reads_it_the_archive_has_what_was_shipped(tmp_path: Path) -> None:
    assert run(4, 9, tmp_path, remote=True) == 4


def headrace(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.process
def test_a_running_server_is_backed_up_by_its_address_and_directory(tmp_path: Path) -> None:
    lives, archive = Lives(tmp_path, 1), str(tmp_path / "archive")
    try:
        lives.start_server()
        client = lives.client(60)
        with client.shop.watch() as stream:
            client.shop.c.insert_one({"_id": 1})
            assert "stored 1 snapshot and 0 oplog entries" in headrace("backup", str(lives.data), archive).stdout
            client.shop.c.insert_one({"_id": 2})
            client.shop.c.insert_one({"_id": 3})
            tokens = [next(stream)["_id"]["_data"] for _ in range(3)]
        client.close()
        address = f"mongodb://127.0.0.1:{lives.port}"
        assert "stored 2 oplog entries" in headrace("backup", address, archive).stdout
    finally:
        lives.close()
    target = str(tmp_path / "restored")
    assert "replayed 1 oplog entries" in headrace("restore", archive, target, "--at", tokens[1]).stdout
    assert "documents 2," in headrace("check", target).stdout
    assert headrace("backup", "check", archive).returncode == 0
    next((tmp_path / "archive" / "log").iterdir()).write_bytes(b"torn")
    failed = headrace("backup", "check", archive)
    assert failed.returncode == 1 and "is torn" in failed.stdout
    refused = headrace("restore", archive, str(tmp_path / "again"))
    assert refused.returncode == 1 and "is torn" in refused.stderr and not (tmp_path / "again").exists()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="children of a process are found in /proc")
def test_a_standby_that_was_killed_takes_the_place_of_a_server_that_was_killed(tmp_path: Path) -> None:
    assert promote_after_kills(2, 3, tmp_path) == 2


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="children of a process are found in /proc")
def test_a_standby_of_a_server_goes_on_after_kills_of_both(tmp_path: Path) -> None:
    assert promote_after_kills(2, 5, tmp_path, remote=True) == 2


@pytest.mark.process
def test_a_directory_that_grows_while_it_is_read_is_backed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives, opened = Lives(tmp_path, 1), lmdb.open
    try:
        lives.start_server()
        client = lives.client(60)

        def grow(count: int = 16) -> None:
            client.shop.c.insert_many([{"text": "x" * 1_000_000} for _ in range(count)])

        def open_and_grow(*args: Any, **options: Any) -> Any:
            environment = opened(*args, **options)
            grow()
            return environment

        grow()
        monkeypatch.setattr(lmdb, "open", open_and_grow)
        source = DirectorySource(lives.data)
        before = source.look(0).newest
        with source.copied() as copy:
            assert copy.newest > before
        client.close()
    finally:
        lives.close()
