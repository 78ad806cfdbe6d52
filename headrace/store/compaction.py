"""Compaction: a copy of the data file without free space replaces the file, also while commits go on.

    compact.new/data.mdb   the copy of one commit, which LMDB makes without free pages (`copy`)
    noted keys             the keys that later commits change: in memory, or many of them in a temporary file
    `catch_up`             copies the present values of some noted keys; repeated until few are left
    `exchange`             between two commits: copies the last keys, syncs, and exchanges the names of the files

Rules:
- Whenever the process or the machine ends, the directory has the old file or the whole new one. The copy is synced
  before it gets its name, and the name before the next commit. A start removes an unfinished copy.
- Keys are noted before the copy begins. A key that was changed twice is copied after the second change, too: its value
  is read after the commit that has noted it.
- Open read transactions keep the old file. Its space is freed when the last of them ends.
- A process that reads beside this one (`lmdb.Beside`) never reads a file that commits go to with the reader table of
  another file. The table is replaced before the file. A process that has opened the old table and the new file learns
  that the table was replaced. With the new table and the old file it reads a state that no commit changes any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.store.data_file import DATA_FILE, UnusableDirectory
from headrace.store.kv import TableKey
from headrace.store.lmdb import COPY_FOLDER, READERS_FILE, DataFileCopy, LmdbEnvironment, LmdbError
from headrace.store.temporary.spill_file import SpillFile, SpillFolder, SpillStream
from headrace.thread_calls import OwnThread

PIECE_COUNT: Final = 512
"""The number of keys copied in one transaction, which takes some milliseconds. With at most this number left, the files
are exchanged."""


class Compacted(NamedTuple):
    """The size of the data file before and after, in bytes."""

    before: int
    after: int


class Compaction:
    """One compaction of an open directory."""

    def __init__(self, environment: LmdbEnvironment, spill: SpillFolder, *, size: int) -> None:
        """`size`: bytes that the copy will have. Raises 117 if another compaction is running, 14031 without disk
        space, and `OSError`."""
        self._environment = environment
        self._folder = environment.path / COPY_FOLDER
        disk = os.statvfs(environment.path)
        if disk.f_bavail * disk.f_frsize < size + spill.free_bytes_min:
            raise CommandError(14031, "the disk has no room for a copy of the data file")
        try:
            self._folder.mkdir(mode=0o700)
        except FileExistsError:
            raise CommandError(117, "another compaction has not ended yet") from None
        try:
            self._file = os.open(self._folder / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            self._folder.rmdir()
            raise
        with contextlib.suppress(OSError):  # only root may
            owner = (environment.path / DATA_FILE).stat()
            os.fchown(self._file, owner.st_uid, owner.st_gid)
        self._copy: DataFileCopy | None = None
        self._thread: OwnThread | None = None
        self._is_closed = False
        self._tables = list(environment.tables.values())
        self._committed: set[TableKey] = set()
        self._new_count = 0  # the number of keys committed since the last `catch_up`
        self._spilled: deque[SpillStream] = deque()
        self._spill = spill
        self._spill_file: SpillFile | None = None
        self.is_due = False
        """Whether to exchange the files at the next commit."""
        self.result: Compacted | None = None
        """The sizes, after the files were exchanged."""
        self.failure: Exception | None = None

    # The copy.

    def copy(self) -> OwnThread:
        """Copy and sync the last commit in a thread. Its result is the sizes; it raises `LmdbError` and `OSError`."""
        self._thread = OwnThread(self._make_copy)
        return self._thread

    def _make_copy(self) -> Compacted:
        before = self._environment.file_bytes
        copying = OwnThread(self._environment.copy_to, self._file)
        try:
            while not copying.is_over:
                os.fdatasync(self._file)  # in short steps, so that no commit waits for the whole sync
                copying.wait(0.01)
        finally:
            copying.wait()
        copying.result()
        os.fsync(self._file)
        self._copy = self._environment.open_copy(self._folder)
        return Compacted(before, os.fstat(self._file).st_size)

    def sync(self) -> OwnThread:
        """Sync the copy in a thread, so that the exchange has little left to sync."""
        assert self._copy is not None
        self._thread = OwnThread(self._copy.sync)
        return self._thread

    # The changes since the copy began.

    def published(self, keys: set[TableKey]) -> bool:
        """Handle a published commit that has written these keys, with no write transaction open. Return whether the
        files were exchanged.

        Raises `HalfExchanged`. Any other failure ends only the compaction.
        """
        self._committed |= keys
        self._new_count += len(keys)
        try:
            if len(self._committed) > limits.COMPACTION_KEY_COUNT:
                self._spill_committed()
            if self.is_due:
                self.exchange()
        except (CommandError, LmdbError, OSError, UnusableDirectory) as error:
            self.failure, self.is_due = error, False
        return self.result is not None

    def _spill_committed(self) -> None:
        file = self._spill_file = self._spill_file or self._spill.open_file()
        numbers = {table: bytes([number]) for number, table in enumerate(self._tables)}
        records = sorted(numbers[table] + key for table, key in self._committed)
        self._committed.clear()
        for start in range(0, len(records), PIECE_COUNT):
            stream = file.stream()
            for record in records[start : start + PIECE_COUNT]:
                stream.append(record)
            stream.flush()
            self._spilled.append(stream)

    @property
    def _is_close(self) -> bool:
        return not self._spilled and len(self._committed) <= PIECE_COUNT

    def catch_up(self) -> bool:
        """Copy some of the changed keys, always more than were added since the last call, so that the work ends. Return
        whether few are left. Raises an earlier failure of the compaction."""
        if self.failure is not None:
            raise self.failure
        left, self._new_count = PIECE_COUNT + 2 * self._new_count, 0
        while left > 0 and not self._is_close:
            left -= self._take_piece()
        return self._is_close

    def _take_piece(self) -> int:
        assert self._copy is not None
        if self._spilled:
            keys = [(self._tables[record[0]], record[1:]) for record in self._spilled.popleft().records()]
        else:
            keys = [self._committed.pop() for _ in range(min(PIECE_COUNT, len(self._committed)))]
            keys.sort(key=lambda item: item[1])
        self._copy.take(keys)
        return len(keys)

    def exchange(self) -> None:
        """Replace the data file by the copy. No write transaction may be open. Raises `UnusableDirectory`, `LmdbError`
        or `OSError` when nothing has changed; otherwise `HalfExchanged`."""
        assert self._copy is not None
        before = self._environment.file_bytes
        while self._spilled or self._committed:
            self._take_piece()
        if not self._copy.has_all_rows():
            raise UnusableDirectory(f"{self._environment.path} has other rows than its copy: check the directory")
        self._copy.close()
        self._environment.exchange(self._folder)
        self.result = Compacted(before, self._environment.file_bytes)

    def close(self) -> None:
        """Remove the rest of the copy. The next write of a copying thread fails, which ends the thread."""
        if self._is_closed:
            return
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self._file, inheritable=False)
        os.close(nowhere)
        self._is_closed = True
        if self._spill_file is not None:
            self._spill_file.close()
        if self._thread is None or self._thread.is_over:
            self._remove()
        else:
            self._thread = OwnThread(self._remove_after, self._thread)

    def wait(self) -> None:
        """Wait until no thread works on the copy."""
        if self._thread is not None:
            self._thread.wait()

    def _remove_after(self, thread: OwnThread) -> None:
        thread.wait()
        self._remove()

    def _remove(self) -> None:
        if self._copy is not None:
            self._copy.close()
        os.close(self._file)
        shutil.rmtree(self._folder, ignore_errors=True)


def compact(path: Path) -> Compacted:
    """Compact a directory that no process has open. Raises `DirectoryInUse`, `UnusableDirectory`, `LmdbError` or
    `OSError` when nothing has changed. After `HalfExchanged` the directory has the old file or the new one."""
    file = path / DATA_FILE
    if not file.is_file() or not file.stat().st_size:
        raise UnusableDirectory(f"{path} has no data file of Headrace")
    environment = LmdbEnvironment(path)
    try:
        compaction = Compaction(environment, SpillFolder(path, free_bytes_min=0, clears=False), size=0)
        try:
            sizes: Compacted = compaction.copy().result()
            if sizes.after >= sizes.before:
                return Compacted(sizes.before, sizes.before)
            compaction.exchange()
        finally:
            compaction.close()
    finally:
        environment.close()
    (path / READERS_FILE).unlink()  # another user may own it
    return sizes
