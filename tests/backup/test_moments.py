"""A restored directory is what the original was at that moment: documents, catalog, images, and the oplog's bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.backup.archive import BackupArchive, Sealer
from headrace.backup.places import Folder
from headrace.backup.restore import Moment, problems, restore
from headrace.backup.source import DirectorySource
from headrace.backup.writer import ArchiveWriter
from headrace.clock import SystemClock
from headrace.store.check.directory import check
from headrace.testing.driven import DrivenServer
from tests.backup.random_history import RandomHistory, seen


def ship(path: Path, archive: BackupArchive, *, snapshot: bool = False) -> ArchiveWriter:
    """Back up a directory that no process has open."""
    writer = ArchiveWriter(archive, DirectorySource(path), SystemClock())
    writer.begin()
    writer.ship()
    if snapshot:
        writer.snapshot()
    return writer


def record(path: Path, archive: BackupArchive, seed: int, steps: int, rounds: int) -> list[tuple[int, dict[str, Any]]]:
    """Run a history with backups in between, and return what was seen at each of its positions."""
    moments: dict[int, dict[str, Any]] = {}
    server = DrivenServer(path)
    history = RandomHistory(server, seed)
    for number in range(rounds):
        server.close()
        ship(path, archive, snapshot=number == rounds // 2)
        server._open()
        for _ in range(steps):
            history.step()
            moments[server.store.last_position] = seen(server)
    server.close()
    ship(path, archive)
    return sorted(moments.items())


def compare(folder: Path, archive: BackupArchive, position: int, expected: dict[str, Any]) -> None:
    """Restore at a position, and compare."""
    target = folder / f"at-{position:x}"
    assert restore(archive, target, Moment(position)).position == position
    with DrivenServer(target) as server:
        actual = seen(server)
    for name in sorted({*expected, *actual}):
        assert actual.get(name) == expected.get(name), f"{name} at {position:x}"
    assert check(target).problems == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_restore_at_any_moment_is_what_the_server_was_then(tmp_path: Path, seed: int) -> None:
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    moments = record(tmp_path / "data", archive, seed, steps=40, rounds=3)
    for position, expected in random.Random(seed).sample(moments, 6):
        compare(tmp_path, archive, position, expected)
    assert list(problems(archive)) == []
