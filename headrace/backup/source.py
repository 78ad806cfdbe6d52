"""The source of a backup: a data directory, read beside the process that serves it, if any.

`remote_source.py` has the other kind of source: a server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from headrace.backup.archive import SEGMENT_BYTES_MAX, SNAPSHOT_PIECE_BYTES, Entry, checksum
from headrace.store.data_file import DATA_FILE, UnusableDirectory
from headrace.store.kv import Table, Transaction
from headrace.store.lmdb import Beside, ReadersChanged

_TRIES: Final = 10
"""How often a directory is read again if other processes open it meanwhile."""
NO_ENTRIES: Final = (1 << 64) - 2
"""A position after every entry."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Look:
    """A committed state of the oplog."""

    history: bytes
    newest: int
    """The position of the newest entry."""
    before: int | None
    """The checksum of the entry at the position that the entries follow; None: there is none, or it was pruned."""
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copied data file."""

    history: bytes
    newest: int
    checksum: int
    """The checksum of the newest entry."""
    pieces: Iterator[bytes]
    """The file, in pieces of `SNAPSHOT_PIECE_BYTES`."""


class Source(Protocol):
    """A history with its oplog, to which other processes keep writing."""

    @property
    def name(self) -> str:
        """The source's name for users."""

    def look(self, after: int) -> Look:
        """Return the state of the oplog, and the first entries after a position.

        Raises `NoOplog`, `DamagedValue`, `OSError` if the source cannot be reached, and `ReadersChanged` if processes
        open the directory again and again.
        """

    def copied(self) -> AbstractContextManager[Copy]:
        """Open a copy of the last commit for the duration of a `with`."""


class NoOplog(Exception):
    """The directory has no oplog, which a backup needs."""


class DirectorySource:
    """A data directory."""

    def __init__(self, path: Path) -> None:
        """Raises `UnusableDirectory`."""
        self.path = path
        self.name = str(path)
        self._beside = Beside(path)

    def look(self, after: int) -> Look:
        """Return the state of the oplog as `Source.look` does, with `SEGMENT_BYTES_MAX` of entries."""
        return _retried(lambda: self._look(after))

    def _look(self, after: int) -> Look:
        with self._beside.reading() as (kv, tables):
            history, newest = _state(self.path, kv, tables)
            before = kv.get(_key(after), db=tables["oplog"])
            entries = _entries(kv, tables["oplog"], after)
            return Look(history, newest[0], None if before is None else checksum(before), entries)

    @contextmanager
    def copied(self) -> Iterator[Copy]:
        """Open a copy of the last commit, in a temporary folder beside the directory, for the duration of a `with`.

        If the user may not write there, as is usual for a service, the folder is in the directory itself.
        """
        path = self.path.resolve()
        parent, prefix = path.parent, f".{path.name}-backup-"
        if not os.access(parent, os.W_OK):
            parent, prefix = path, ".backup-"
        _remove_left_behind(parent, prefix)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder, _held(folder):
            target = Path(folder)

            def copy() -> None:
                (target / DATA_FILE).unlink(missing_ok=True)
                self._beside.copy(target)

            _retried(copy)
            with Beside(target).reading() as (kv, tables):
                history, newest = _state(target, kv, tables)
            with (target / DATA_FILE).open("rb") as file:
                pieces = iter(lambda: file.read(SNAPSHOT_PIECE_BYTES), b"")
                yield Copy(history, newest[0], checksum(newest[1]), pieces)


@contextmanager
def _held(folder: str) -> Iterator[None]:
    """Lock a folder, so that other processes see that its process lives."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_left_behind(parent: Path, prefix: str) -> None:
    """Remove the copies of killed backups. A copy that is being made is locked, or has no file yet."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (folder / DATA_FILE).exists():
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def _retried(read: Callable[[], Result]) -> Result:
    for _ in range(_TRIES - 1):
        try:
            return read()
        except ReadersChanged:
            continue
    return read()


def _key(position: int) -> bytes:
    return position.to_bytes(8, "big")


def _state(path: Path, kv: Transaction, tables: dict[str, Table]) -> tuple[bytes, Entry]:
    history = kv.get(b"history-id", db=tables["meta"])
    with kv.cursor(tables["oplog"]) as cursor:
        if not cursor.last():
            raise NoOplog(f"{path} has no oplog, which a backup goes by")
        key, entry = cursor.item()
    if history is None:
        raise UnusableDirectory(f"{path} was made by a version before 0.2 and has no history id: start its server once")
    return history, (int.from_bytes(key, "big"), entry)


def _entries(kv: Transaction, oplog: Table, after: int) -> list[Entry]:
    entries: list[Entry] = []
    size = 0
    with kv.cursor(oplog) as cursor:
        if cursor.set_range(_key(after + 1)):
            for key, entry in cursor.iternext():
                entries.append((int.from_bytes(key, "big"), entry))
                size += len(entry)
                if size >= SEGMENT_BYTES_MAX:
                    break
    return entries
