"""Restore of a data directory from an archive, as of a moment; and the check of an archive.

Rule: the directory exists completely or not at all. It is made under a temporary name, and renamed when everything is
on disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headrace.backup.archive import BackupArchive, BackupSnapshot, DamagedArchive, Entry
from headrace.backup.replay import DivergedHistory, Replayer
from headrace.backup.source import Source
from headrace.durable_files import sync_folder
from headrace.store import standby
from headrace.store.check.directory import check as check_directory
from headrace.store.data_file import DATA_FILE
from headrace.store.lmdb import LOCK_FILE, READERS_FILE
from headrace.store.store import Store
from headrace.values.position import seconds

_UNFINISHED: Final = ".restoring"


class NotCovered(Exception):
    """The archive does not cover the moment, or the target is not empty."""


class Moment(NamedTuple):
    """The moment of a restore: the last position to include."""

    position: int
    is_second: bool = False
    """Whether it means everything that was committed up to the end of a second."""


class Restored(NamedTuple):
    """The position of the last entry of a restored directory, and the number of replayed entries."""

    position: int
    replayed: int


def restore(archive: BackupArchive, path: Path, at: Moment | None = None, *, standby_of: str | None = None) -> Restored:
    """Make the directory `path`, which must be empty or missing, as of a moment; None: the end of the archive.

    `standby_of`: the name of the archive, to make a standby that follows it.

    Raises `NotCovered`, `DamagedArchive`, `DivergedHistory` and `OSError`.
    """
    _require_free(path)
    snapshot = _snapshot_before(archive, at)
    with _made(path) as new:
        _write(new, archive.snapshot_pieces(snapshot))
        through = None if at is None else at.position
        entries = archive.entries(snapshot.position, snapshot.checksum, through)
        return _replayed(new, snapshot.position, entries, standby_of)


def copy_of(source: Source, path: Path, *, standby_of: str) -> Restored:
    """Make the directory `path`, which must be empty or missing, a standby with the last commit of a source.

    Raises `NotCovered`, `DamagedArchive` and the source's errors.
    """
    _require_free(path)
    with _made(path) as new, source.copied() as copy:
        _write(new, copy.pieces)
        return _replayed(new, copy.newest, (), standby_of)


def _require_free(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NotCovered(f"{path} is not empty: give a directory that is empty or missing")


@contextmanager
def _made(path: Path) -> Iterator[Path]:
    """Yield a new folder, which is renamed to `path` after the `with` unless that raises."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    yield new
    for name in (LOCK_FILE, READERS_FILE):
        (new / name).unlink(missing_ok=True)
    if path.exists():
        path.rmdir()
    new.rename(path)
    sync_folder(path.parent)


def _snapshot_before(archive: BackupArchive, at: Moment | None) -> BackupSnapshot:
    if archive.history() is None:
        raise NotCovered(f"{archive.place} is not an archive of `headrace backup`")
    snapshots = archive.snapshots()
    if not snapshots:
        raise NotCovered(f"{archive.place} has no complete snapshot")
    if at is None:
        return snapshots[-1]
    end = max([snapshots[-1].position, *(segment.last for segment in archive.segments())])
    if seconds(at.position) > seconds(end) if at.is_second else at.position > end:
        raise NotCovered(f"the archive ends at {shown_position(end)}, before that moment")
    fitting = [snapshot for snapshot in snapshots if snapshot.position <= at.position]
    if not fitting:
        raise NotCovered(f"the archive begins at {shown_position(snapshots[0].position)}, after that moment")
    return fitting[-1]


def shown_position(position: int) -> str:
    """Return a position for users: its time, and the position in hexadecimal digits."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(seconds(position), UTC):%Y-%m-%dT%H:%M:%SZ} ({position:016x})"


def _write(new: Path, pieces: Iterator[bytes]) -> None:
    with (new / DATA_FILE).open("wb") as file:
        (new / DATA_FILE).chmod(0o600)
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _replayed(new: Path, position: int, entries: Iterable[Entry], standby_of: str | None) -> Restored:
    """Replay entries on a snapshot in a folder. Raises `DamagedArchive` unless the snapshot ends at `position`."""
    store = Store(new, standby=True)  # the snapshot may be a standby's
    try:
        if store.last_position != position:
            raise DamagedArchive(
                f"the snapshot {position:016x} has a data file that ends at {store.last_position:016x}"
            )
        replayed = Replayer(store).replay(entries)
        txn = store.begin()
        standby.follow(txn, standby_of)
        store.commit(txn)
        return Restored(store.last_position, replayed)
    finally:
        store.close()


def problems(archive: BackupArchive) -> Iterator[str]:
    """Check an archive, and yield a sentence per problem. It reads every piece, looks for gaps in the log, restores the
    newest moment into a temporary directory, and checks that as `headrace check` does."""
    if archive.history() is None:
        yield f"{archive.place} is not an archive of `headrace backup`"
        return
    for position in archive.unfinished_snapshots():
        yield f"the snapshot {position:016x} has no manifest: the backup was cut off, or the manifest is missing"
    try:
        snapshots = archive.snapshots()
    except DamagedArchive as error:
        yield str(error)
        return
    if not snapshots:
        yield "there is no complete snapshot"
        return
    damaged = list(_damaged(archive, snapshots))
    yield from damaged
    if damaged:
        return
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
        path = Path(folder) / "data"
        try:
            restore(archive, path)
        except (DamagedArchive, DivergedHistory) as error:
            yield str(error)
            return
        yield from check_directory(path).problems


def _damaged(archive: BackupArchive, snapshots: list[BackupSnapshot]) -> Iterator[str]:
    for snapshot in snapshots:
        try:
            for _ in archive.snapshot_pieces(snapshot):
                pass
        except DamagedArchive as error:
            yield str(error)
    for segment in archive.segments():
        try:
            archive.read_segment(segment)
        except DamagedArchive as error:
            yield str(error)
            return
    first = snapshots[0]
    try:
        before: Entry | None = None
        for entry in archive.entries(first.position, first.checksum):
            if before is not None and entry[0] <= before[0]:
                yield f"the entry at {entry[0]:016x} stands after that at {before[0]:016x}"
            before = entry
    except DamagedArchive as error:
        yield str(error)
