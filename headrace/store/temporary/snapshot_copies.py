"""Copies of the data file for backups on other machines. Each has one committed state, without free pages.

    _tmp/…/data.mdb     while a thread makes the copy; LMDB copies it, and commits free no pages meanwhile
    a file without a name   afterwards, so that nothing remains however the process ends

A copy is removed when its reader ends it, after ten minutes without a read, or when the store closes. If there are too
many copies, the one that was not read for the longest time is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.store.checksums.transaction import CheckedTransaction
from headrace.store.data_file import DATA_FILE
from headrace.store.lmdb import LmdbEnvironment, LmdbError, read_only
from headrace.thread_calls import OwnThread, call_in_thread

if TYPE_CHECKING:
    from headrace.store.temporary.spill_file import SpillFolder


class CopiedState(NamedTuple):
    """The state that a copy contains."""

    position: int
    """The newest position of the oplog."""
    checksum: int
    """The CRC-32 of the entry at `position`."""
    size: int
    """The size of the file in bytes."""


class SnapshotCopy:
    """One copy. A thread starts to make it at once."""

    def __init__(self, environment: LmdbEnvironment, folder: SpillFolder, now_ms: float) -> None:
        """Raises 14031 if the disk has no room."""
        try:
            folder.path.mkdir(mode=0o700, exist_ok=True)
            disk = os.statvfs(folder.path)
            if disk.f_bavail * disk.f_frsize < environment.file_bytes + folder.free_bytes_min:
                raise CommandError(14031, "the disk has no room for a copy of the data file")
            self._folder = Path(tempfile.mkdtemp(prefix="snapshot-", dir=folder.path))
            self._file = os.open(self._folder / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failed(error) from error
        self.used_ms = now_ms
        self._environment = environment
        self._state: CopiedState | None = None
        self._thread = OwnThread(self._copy)

    def _copy(self) -> CopiedState:
        try:
            self._environment.copy_to(self._file)
            with read_only(self._folder) as (plain, tables):
                kv = CheckedTransaction(plain, lambda table, key: f"the newest entry of the oplog, {key.hex()}")
                with kv.cursor(tables["oplog"]) as cursor:
                    cursor.last()
                    key, entry = cursor.item()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return CopiedState(int.from_bytes(key, "big"), zlib.crc32(entry), os.fstat(self._file).st_size)

    def state(self) -> CopiedState | None:
        """Return the state of the copy; None while it is being made. Raises 14031 if the copy has failed."""
        if self._state is None and self._thread.is_over:
            try:
                self._state = self._thread.result()
            except (LmdbError, OSError) as error:
                raise _failed(error) from error
        return self._state

    def read(self, offset: int, size: int) -> bytes:
        """Return a piece of the file, shorter at its end. Other clients run during the read. Raises 14031."""
        file = os.dup(self._file)  # the copy may be closed meanwhile
        try:
            return call_in_thread(os.pread, file, size, offset)  # type: ignore[no-any-return]
        except OSError as error:
            raise _failed(error) from error
        finally:
            os.close(file)

    def close(self) -> None:
        """Remove the copy. The next write of a copying thread fails, which ends the thread."""
        if not self._thread.is_over:
            nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file, inheritable=False)
            os.close(nowhere)
            self._thread.wait()
        os.close(self._file)


class SnapshotCopies:
    """All copies of a store, by their ids."""

    def __init__(self, environment: LmdbEnvironment, folder: SpillFolder) -> None:
        self._environment = environment
        self._folder = folder
        self._copies: dict[int, SnapshotCopy] = {}

    def begin(self, now_ms: float) -> int:
        """Begin a copy of the last commit; return its id, a random positive number. Raises 14031."""
        if len(self._copies) >= limits.SNAPSHOT_COPY_COUNT:
            self.end(min(self._copies, key=lambda number: self._copies[number].used_ms))
        copy = SnapshotCopy(self._environment, self._folder, now_ms)
        number = (int.from_bytes(os.urandom(8), "big") >> 2) + 1
        self._copies[number] = copy
        return number

    def get(self, number: int, now_ms: float) -> SnapshotCopy:
        """Return a copy. Raises 43 if it does not exist or was removed."""
        copy = self._copies.get(number)
        if copy is None:
            raise CommandError(43, f"snapshot {number} is not there, or no more: begin another one")
        copy.used_ms = now_ms
        return copy

    def end(self, number: int) -> None:
        """Remove a copy, if it exists."""
        with contextlib.suppress(KeyError):
            self._copies.pop(number).close()

    def remove_idle(self, now_ms: float) -> None:
        """Remove copies that were not read for ten minutes."""
        limit = now_ms - limits.CURSOR_IDLE_MS_MAX
        for number in [number for number, copy in self._copies.items() if copy.used_ms < limit]:
            self.end(number)

    def close(self) -> None:
        """Remove all copies."""
        for number in list(self._copies):
            self.end(number)


def _failed(error: Exception) -> CommandError:
    return CommandError(14031, f"the data file cannot be copied: {error}")
