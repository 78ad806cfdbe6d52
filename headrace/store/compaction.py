"""Compaction: a data file as small as what it holds takes the place of the old one, also while commits go on.

    compact.new/data.mdb   the copy of one commit, which LMDB makes without free pages (`copy`)
    noted keys             those that later commits change, in memory; of many, in a temporary file
    `catch_up`             gives the copy the present values of some of them, again and again, until few are left
    `exchange`             between two commits: the last of them, a sync, and the files exchange their names

Rules:
- Whenever the process or the machine ends, the directory has the old file or the whole new one. The copy is synced
  before it gets its name, and the name before the next commit. A start removes a copy that was not finished.
- Keys are noted before the copy begins. A key that was changed twice is copied after the second change, too: its value
  is read after the commit that has noted it.
- An open read transaction keeps the old file, whose space is free when the last of them has ended.
- A process that reads beside this one (`lmdb.Beside`) never has the table of readers of one file and the pages of the
  other: the old table is removed before the file is replaced, and the new one comes after it. So that process makes a
  table of its own, and is told that it was replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.store.data_file import DATA_FILE, UnusableDirectory
from headrace.store.kv import Cursor, Environment, Table, TableKey, Transaction
from headrace.store.lmdb import COPY_FOLDER, READERS_FILE, DataFileCopy, LmdbEnvironment, LmdbError
from headrace.store.temporary.spill_file import SpillFile, SpillFolder, SpillStream
from headrace.store.written_keys import RecordingCursor, RecordingTransaction
from headrace.thread_calls import OwnThread

PIECE_COUNT: Final = 512
"""Keys that are copied in one transaction, in some milliseconds; with no more left, the files are exchanged."""


class Compacted(NamedTuple):
    """Bytes of the data file."""

    before: int
    after: int


class Compaction:
    """One compaction of an open directory."""

    def __init__(self, environment: Environment, spill: SpillFolder, *, size: int) -> None:
        """`size`: bytes that the copy will have. Raises 117 where another one is being made, 14031 without room."""
        self._environment = environment
        self._folder = environment.path / COPY_FOLDER
        disk = os.statvfs(environment.path)
        if disk.f_bavail * disk.f_frsize < size + spill.free_bytes_min:
            raise CommandError(14031, "the disk has no room for a copy of the data file")
        try:
            self._folder.mkdir(mode=0o700)
        except FileExistsError:
            raise CommandError(117, "another compaction has not ended yet") from None
        self._file = os.open(self._folder / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._copy: DataFileCopy | None = None
        self._thread: OwnThread | None = None
        self._is_working = False  # a thread is at the copy
        self._is_closed = False
        self._is_left = [True]  # until `_remove`, which the thread may call, too
        self._tables = list(environment.tables.values())
        self._open: set[TableKey] = set()  # changed by the open write transaction, or by an abandoned one
        self._committed: set[TableKey] = set()
        self._new_count = 0  # of committed keys since the last `catch_up`
        self._spilled: deque[SpillStream] = deque()
        self._spill = spill
        self._spill_file: SpillFile | None = None
        self.is_due = False
        """Exchange the files at the next commit."""
        self.result: Compacted | None = None
        """The sizes, once the files are exchanged."""
        self.failure: Exception | None = None

    # The copy.

    def copy(self) -> OwnThread:
        """Copy the last commit and sync the copy, in a thread, whose result are the sizes. It raises `LmdbError` and
        `OSError`."""
        return self._start(self._make_copy)

    def _make_copy(self) -> Compacted:
        before = (self._environment.path / DATA_FILE).stat()
        with contextlib.suppress(PermissionError):
            os.fchown(self._file, before.st_uid, before.st_gid)
        copying = OwnThread(self._environment.copy_to, self._file)
        try:
            while not copying.is_over:
                os.fdatasync(self._file)  # again and again, so that no commit waits for all of it
                copying.wait(0.01)
        finally:
            copying.wait()
        copying.result()
        os.fsync(self._file)
        self._copy = self._environment.open_copy(self._folder)
        return Compacted(before.st_size, os.fstat(self._file).st_size)

    def sync(self) -> OwnThread:
        """Sync what the copy was given, in a thread, so that little is left for the exchange."""
        assert self._copy is not None
        return self._start(self._copy.sync)

    def _start(self, function: Callable[[], object]) -> OwnThread:
        self._is_working = True
        self._thread = OwnThread(self._work, function)
        return self._thread

    def _work(self, function: Callable[[], object]) -> object:
        try:
            return function()
        finally:
            self._is_working = False
            if self._is_closed:
                self._remove()

    # The changes since.

    def noting(self, kv: Transaction) -> Transaction:
        """Return a write transaction that notes the keys it changes."""
        return _NotingTransaction(kv, self._open, self._tables)

    def published(self) -> bool:
        """A commit is published, and no write transaction is open. Return whether the files were exchanged.

        Raises `HalfExchanged`; any other failure ends the compaction alone.
        """
        self._committed |= self._open
        self._new_count += len(self._open)
        self._open.clear()
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
        """Copy some of the changed keys, and more than have come since the last call, so that an end is reached. Return
        whether few are left. Raises what has failed meanwhile."""
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
        """Put the copy in the place of the data file, where no write transaction is open. Raises `UnusableDirectory`,
        `LmdbError`, `OSError`, and nothing has changed; or `HalfExchanged`."""
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
        """Remove what is left of the copy. A thread that makes it ends at its next write, which fails."""
        if self._is_closed:
            return
        nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self._file, inheritable=False)
        os.close(nowhere)
        self._is_closed = True
        if self._spill_file is not None:
            self._spill_file.close()
        if not self._is_working:
            self._remove()

    def wait(self) -> None:
        """Return when no thread is at the copy."""
        if self._thread is not None:
            self._thread.wait()

    def _remove(self) -> None:
        with contextlib.suppress(IndexError):  # it is removed already
            self._is_left.pop()
            if self._copy is not None:
                self._copy.close()
            os.close(self._file)
            shutil.rmtree(self._folder, ignore_errors=True)


class _NotingTransaction(RecordingTransaction):
    """A write transaction that notes all keys that it changes."""

    __slots__ = ()

    def cursor(self, db: Table) -> Cursor:
        """A cursor whose changes are noted."""
        return _NotingCursor(self._written, self._base.cursor(db), db)  # type: ignore[return-value]


class _NotingCursor(RecordingCursor):
    """A cursor whose deletions are noted, too."""

    def delete(self) -> bool:
        self._written.add((self._db, self._cursor.key()))
        return self._cursor.delete()


def compact(path: Path) -> Compacted:
    """Compact a directory that no process has open. Raises `DirectoryInUse`, `UnusableDirectory`, `LmdbError` and
    `OSError`: nothing has changed then; or `HalfExchanged`, and it has the old file or the new one."""
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
    (path / READERS_FILE).unlink()  # which may be another user's
    return sizes
