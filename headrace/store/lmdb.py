"""The LMDB environment that implements `kv.py`, and the lock that makes this the only process that has it open.

Rules:
- One process opens a directory; a second is refused with `DirectoryInUse` (an advisory lock, freed by
  the kernel however the process ends).
- LMDB's lock table (`lock.mdb`, made again at each start) has the open read transactions: a commit uses no page that
  one of them can read. They may be used and ended by any thread, one at a time.
- LMDB's write lock belongs to a thread: the one that begins the write transaction ends it (`begin_write_in`).
- A commit at default settings has reached the disk when it returns, and so has all that an opened directory shows: a
  process that was killed may have left a commit in the system's memory.
- A directory has a complete data file or none, whenever the process or the machine ends.

This is the only module that imports lmdb.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

import lmdb

from headrace import limits
from headrace.durable_files import sync_folder
from headrace.store.checksums.transaction import CheckedTransaction, Describe, SharedTransaction, ThreadTransaction
from headrace.store.data_file import DATA_FILE, UnusableDirectory, check_directory
from headrace.store.kv import SharedRead, Table, TableKey, Transaction

TABLES: Final = ("catalog", "documents", "ids", "images", "indexes", "meta", "oplog", "runs", "sessions", "topics")

LmdbError = lmdb.Error
LOCK_FILE: Final = "headrace.lock"
READERS_FILE: Final = "lock.mdb"
NEW_READERS_FILE: Final = "lock.mdb.new"
NEW_FILE: Final = "data.mdb.new"
"""A data file that is being made."""
COPY_FOLDER: Final = "compact.new"
"""The folder of a copy that is to take the place of the data file."""
_NEW_FILE_BYTES: Final = 1 << 20
_READER_BYTES: Final = 64
_GROWTH_BYTES: Final = 1 << 30
"""Address space beyond twice the file, where it is read beside a process that writes to it."""
_DISK_ERRORS: Final = frozenset({errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})


_DAMAGE: Final = (
    lmdb.CorruptedError, lmdb.CursorFullError, lmdb.PageFullError, lmdb.PageNotFoundError, lmdb.ProblemError,
)  # fmt: skip


class DirectoryInUse(Exception):
    """Another process has the data directory open."""


class HalfExchanged(Exception):
    """The data file may have been replaced under a process that has the old one open: it must end."""


def is_disk_failure(error: BaseException) -> bool:
    """Return whether a write failed because the disk or the map is full, or the disk fails."""
    if isinstance(error, lmdb.MapFullError):
        return True
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, lmdb.Error):
        number = getattr(error, "code", None)
    return number in _DISK_ERRORS


def is_damage(error: BaseException) -> bool:
    """Whether LMDB has found pages of its file damaged: a tree without end, a page with less room than it says, too."""
    return isinstance(error, _DAMAGE)


class LmdbEnvironment:
    """An open data directory. `path=None` is a throw-away one that is removed by `close`, and not synced.

    A new directory, and the files in any, are the owner's only.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, map_bytes: int = limits.MAP_BYTES) -> None:
        """Raises `DirectoryInUse` and `UnusableDirectory`; the directory is then as it was."""
        self.temporary = path is None
        self.map_bytes = map_bytes
        self._names: dict[Table, str] = {}
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="headrace-") if path is None else path)
        if path is None:  # also where `close` is not called: at the end of the process
            self._remove = weakref.finalize(self, _remove_directory, self.path, os.getpid())
        made = [folder.parent for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file: int | None = _lock(self.path)
        try:
            (self.path / NEW_FILE).unlink(missing_ok=True)
            shutil.rmtree(self.path / COPY_FOLDER, ignore_errors=True)
            if not self.temporary and not self._file_bytes():
                _make_data_file(self.path)
                for folder in (self.path, *made):
                    _sync_directory(folder)
            self._use(self._open(self.path), 0)
            with contextlib.suppress(PermissionError):  # another user's files, which this one may write
                (self.path / DATA_FILE).chmod(0o600)
                (self.path / LOCK_FILE).chmod(0o600)
        except lmdb.Error as error:
            self._release()
            if isinstance(error, lmdb.MemoryError):
                raise UnusableDirectory(
                    f"cannot reserve {map_bytes} bytes of address space for {self.path / DATA_FILE}; give a smaller "
                    "--mapSize (map_bytes)"
                ) from error
            raise UnusableDirectory(f"{self.path / DATA_FILE} cannot be opened: {error}") from error
        except BaseException:
            self._release()
            raise
        self.describe: Describe = lambda table, key: f"the value of {key.hex()} in the table {self.name_of(table)}"

    def _open(self, folder: pathlib.Path) -> lmdb.Environment:
        """Open the data file in a folder, and sync it."""
        self._make_readers_file(folder)
        opened = lmdb.open(
            str(folder), map_size=self.map_bytes, max_dbs=len(TABLES), sync=not self.temporary, mode=0o600,
            metasync=not self.temporary, readahead=False, max_spare_txns=8, max_readers=limits.READER_COUNT_MAX,
        )  # fmt: skip
        if not self.temporary:
            try:
                opened.sync(True)
            except lmdb.Error:
                opened.close()
                raise
        return opened

    def _use(self, opened: lmdb.Environment, number_base: int) -> None:
        """Read and write an open file from now on."""
        create = self._lock_file is not None
        self.tables: dict[str, Table] = {name: Table(opened.open_db(name.encode(), create=create)) for name in TABLES}
        self._names |= {table: name for name, table in self.tables.items()}
        self._lmdb, self._begin = opened, opened.begin
        self.number_base = number_base

    def _make_readers_file(self, folder: pathlib.Path) -> None:
        """Replace LMDB's lock table, which a process that has ended may have left. Raises `OSError` on a full disk.

        The table is mapped: a page of a sparse file that the disk has no room for would end the process.
        """
        path = folder / READERS_FILE
        if self.temporary:
            path.unlink(missing_ok=True)
            return
        # Who reads beside this process sees the old table or the whole new one.
        new = folder / NEW_READERS_FILE
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_bytes(bytes(limits.READER_COUNT_MAX * _READER_BYTES))
        new.replace(path)

    def name_of(self, table: Table) -> str:
        """The name of a table, also of a file that was replaced."""
        return self._names[table]

    def _file_bytes(self) -> int:
        try:
            return (self.path / DATA_FILE).stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def file_bytes(self) -> int:
        """Bytes of the data file on disk."""
        return self._file_bytes()

    @property
    def used_bytes(self) -> int:
        """Bytes of the map up to its last used page: pages that commits cannot use again make it grow."""
        return int((self._lmdb.info()["last_pgno"] + 1) * mmap.PAGESIZE)

    def begin_read(self) -> SharedRead:
        """Return a read transaction on the last commit, for one reader and all that `join` it."""
        begun = self._begin(None, None, False, False)  # names cost 0.3 µs a call
        return SharedTransaction(begun, self.describe, self.tables, self.number_base)

    def begin_write(self) -> Transaction:
        """Begin the write transaction in this thread, which also ends it. The caller sees to it that there is one."""
        return CheckedTransaction(self._begin(None, None, True, False), self.describe)

    def is_usable(self) -> bool:
        """Return whether transactions can begin: LMDB begins none after it has failed to write a meta page, since
        it is not known whether that is on the disk."""
        try:
            self._lmdb.begin().abort()
        except lmdb.PanicError:
            return False
        return True

    def begin_write_in(self, call: Callable[[Callable[[], None]], None]) -> Transaction:
        """Begin the write transaction in this thread, which also commits it. `call`: calls a function in this thread,
        and waits for it."""
        return ThreadTransaction(self._begin(None, None, True, False), self.describe, call)

    def begin_plain(self, *, write: bool = False) -> Transaction:
        """A transaction that shows values as they are stored, checksums included."""
        return cast("Transaction", self._lmdb.begin(write=write, buffers=False))

    @contextlib.contextmanager
    def reading(self) -> Iterator[SharedRead]:
        """A read transaction for the length of a `with`."""
        transaction = self.begin_read()
        try:
            yield transaction
        finally:
            transaction.abort()

    def forget_dead_readers(self) -> int:
        """Free the pages that processes hold which read beside this one and were killed; return how many did."""
        return int(self._lmdb.reader_check())

    def copy_to(self, descriptor: int) -> None:
        """Write the last commit to an open file, without free pages, and without syncing it. In any thread; the caller
        sees to it that the environment is not closed meanwhile."""
        self._lmdb.copyfd(descriptor, compact=True)

    def open_copy(self, folder: pathlib.Path) -> DataFileCopy:
        return DataFileCopy(self._lmdb, self.tables, folder, self.map_bytes)

    def exchange(self, folder: pathlib.Path) -> None:
        number = self.number_base + self._lmdb.info()["last_txnid"]
        opened = self._open(folder)
        try:
            sync_folder(self.path)  # which will have to work
            (self.path / READERS_FILE).unlink()
        except OSError:
            opened.close()
            raise
        try:
            (folder / DATA_FILE).rename(self.path / DATA_FILE)
            (folder / READERS_FILE).rename(self.path / READERS_FILE)
            sync_folder(self.path)
            self._use(opened, number - opened.info()["last_txnid"])
        except (lmdb.Error, OSError) as error:
            raise HalfExchanged(f"the data file of {self.path} cannot be replaced: {error}") from error

    def close(self) -> None:
        """Close the directory and free it for other processes; remove a throw-away one. Again: nothing."""
        self._lmdb.close()
        self._release()

    def _release(self) -> None:
        """Free the directory for others; a throw-away one is removed."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self.temporary:
            self._remove()


class ReaderEnvironment(LmdbEnvironment):
    """A data directory that the process which has started this one has open. It can only be read; each transaction
    stands in the lock table, so that the other process uses none of its pages."""

    def __init__(self, path: pathlib.Path, *, map_bytes: int, number_base: int) -> None:
        """`number_base`: that of the other process."""
        self.temporary = False
        self.path = path
        self.map_bytes = map_bytes
        self._lock_file = None
        self._names = {}
        self.reopen(number_base)
        self.describe = lambda table, key: f"the value of {key.hex()} in the table {self.name_of(table)}"

    def reopen(self, number_base: int) -> None:
        """Read the file that is there now. Open transactions keep the one that they read."""
        opened = lmdb.open(
            str(self.path), map_size=self.map_bytes, max_dbs=len(TABLES), readonly=True, create=False, readahead=False,
            max_spare_txns=8, max_readers=limits.READER_COUNT_MAX,
        )  # fmt: skip
        self._use(opened, number_base)


def _make_data_file(path: pathlib.Path) -> None:
    """Make a data file with empty tables under another name, sync it, and give it its name."""
    new = path / NEW_FILE
    new.unlink(missing_ok=True)
    environment = lmdb.open(
        str(new), subdir=False, map_size=_NEW_FILE_BYTES, max_dbs=len(TABLES), lock=False, mode=0o600
    )
    try:
        with environment.begin(write=True) as transaction:
            for name in TABLES:
                environment.open_db(name.encode(), transaction)
    finally:
        environment.close()
    new.rename(path / DATA_FILE)


def _sync_directory(path: pathlib.Path) -> None:
    """Sync the names in a directory, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_directory(path: pathlib.Path, process: int) -> None:
    """Remove a throw-away directory, in the process that made it and in no fork of that."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked_for_reading(path: pathlib.Path) -> Iterator[None]:
    """Keep other processes out of the directory during the `with`. Raises `DirectoryInUse`. Nothing is written."""
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a copy of a data file alone
        yield
        return
    try:
        _take(path, descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def read_only(path: pathlib.Path) -> Iterator[tuple[Transaction, dict[str, Table]]]:
    """A plain transaction on the directory's data file, and its tables, for the length of a `with`."""
    environment = lmdb.open(str(path), max_dbs=len(TABLES), lock=False, readonly=True, create=False, readahead=True)
    try:
        with environment.begin(buffers=False) as transaction:
            tables = {}
            for name in TABLES:
                with contextlib.suppress(lmdb.NotFoundError, lmdb.ReadonlyError):
                    tables[name] = Table(environment.open_db(name.encode(), transaction, create=False))
            yield cast("Transaction", transaction), tables
    finally:
        environment.close()


class DataFileCopy:
    """A copy of an open data file, which is brought up to date key by key and not synced. For one thread at a time."""

    def __init__(
        self, source: lmdb.Environment, tables: dict[str, Table], folder: pathlib.Path, map_bytes: int
    ) -> None:
        self._source = source
        self._lmdb = lmdb.open(
            str(folder), map_size=map_bytes, max_dbs=len(TABLES), sync=False, lock=False, readahead=False, create=False
        )
        self._tables = {tables[name]: Table(self._lmdb.open_db(name.encode(), create=False)) for name in TABLES}

    def take(self, keys: Iterable[TableKey]) -> None:
        """Give the keys, by the tables of the source, the values of its last commit."""
        with self._source.begin(buffers=False) as read, self._lmdb.begin(write=True) as written:
            source, copy = cast("Transaction", read), cast("Transaction", written)
            for table, key in keys:
                value = source.get(key, db=table)
                if value is None:
                    copy.delete(key, db=self._tables[table])
                else:
                    copy.put(key, value, db=self._tables[table])

    def has_all_rows(self) -> bool:
        """Whether its tables have as many rows as those of the source."""
        with self._source.begin() as read, self._lmdb.begin() as written:
            source, copy = cast("Transaction", read), cast("Transaction", written)
            return all(
                source.stat(table)["entries"] == copy.stat(own)["entries"] for table, own in self._tables.items()
            )

    def sync(self) -> None:
        """Sync it, in any thread."""
        self._lmdb.sync(True)

    def close(self) -> None:
        """Close the file, and forget the source, which may have been replaced. Again: nothing."""
        self._lmdb.close()
        self.__dict__.pop("_source", None)


class ReadersChanged(Exception):
    """A process has opened the directory meanwhile. It does not know of this reader, and may have reused pages."""


class Beside:
    """A directory's data file, read beside the process that has it open, or without one. Not in that process.

    The read transactions stand in LMDB's lock table, so that the other process keeps their pages. A process that opens
    the directory makes a new table: what was read across that moment may be wrong. `reading` and `copy` then raise
    `ReadersChanged`, and the caller reads again.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Raises `UnusableDirectory` where there is no data file that can be read."""
        self.path = path
        if not (path / DATA_FILE).is_file() or not (path / DATA_FILE).stat().st_size:
            raise UnusableDirectory(f"{path} has no data file of Headrace")

    @contextlib.contextmanager
    def _open(self) -> Iterator[lmdb.Environment]:
        readers = self.path / READERS_FILE
        with contextlib.suppress(OSError):
            readers.touch(mode=0o600)  # so that one which another process puts there is known to be another one
        before = _identity(readers)
        environment = None
        try:
            # Room for what the other process adds before the transaction begins.
            map_bytes = 2 * (self.path / DATA_FILE).stat().st_size + _GROWTH_BYTES
            environment = lmdb.open(
                str(self.path), map_size=map_bytes, max_dbs=len(TABLES), readonly=True, create=False, readahead=False,
                mode=0o600,
            )  # fmt: skip
            if _identity(readers) != before:
                raise ReadersChanged(f"{self.path} was opened by another process meanwhile")
            yield environment
        except Exception as error:
            if _identity(readers) != before:
                raise ReadersChanged(f"{self.path} was opened by another process meanwhile") from error
            if environment is None:
                raise UnusableDirectory(f"{self.path / DATA_FILE} cannot be read: {error}") from error
            raise
        finally:
            if environment is not None:
                environment.close()
        if _identity(readers) != before:
            raise ReadersChanged(f"{self.path} was opened by another process meanwhile")

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[Transaction, dict[str, Table]]]:
        """A checked transaction and the tables for a short `with`. What it read counts only if nothing is raised."""
        with self._open() as environment, environment.begin() as plain:
            tables = {name: Table(environment.open_db(name.encode(), plain, create=False)) for name in TABLES}
            names = {table: name for name, table in tables.items()}
            yield CheckedTransaction(plain, lambda table, key: f"{key.hex()} in {names[table]} of {self.path}"), tables

    def copy(self, target: pathlib.Path) -> None:
        """Write the last commit to a new data file in the folder `target`, without free pages.

        It is not synced: it is a copy to read at once, and commits of the other process would wait for the disk.
        """
        descriptor = os.open(target / DATA_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with self._open() as environment:
                environment.copyfd(descriptor, compact=True)
        finally:
            os.close(descriptor)


def _identity(path: pathlib.Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _take(path: pathlib.Path, descriptor: int, kind: int) -> None:
    """Lock an open lock file. Raises `DirectoryInUse`; the descriptor stays open."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        raise DirectoryInUse(
            f"the data directory {path} is in use by another headrace process"
            f"{f' (pid {holder})' if holder else ''}. One process opens a directory: stop it, give another directory, "
            "or reach it through its server, which a program that has it open starts with `store.serve()`"
        ) from None


def holder_of(path: pathlib.Path) -> int | None:
    """The process that has the directory open, if one has."""
    try:
        with locked_for_reading(path):
            return None
    except DirectoryInUse:
        return int((path / LOCK_FILE).read_text() or 0) or None


def wait_until_free(path: pathlib.Path) -> None:
    """Return when no process has the directory open any more."""
    with (path / LOCK_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _lock(path: pathlib.Path) -> int:
    """Check the directory and take it for this process; the lock goes with the file descriptor."""
    used = (path / LOCK_FILE).exists()
    if not used:
        check_directory(path, TABLES, used=False)
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnusableDirectory(f"{path} cannot be written: {error.strerror}") from None
    try:
        _take(path, descriptor, fcntl.LOCK_EX)
        if used:
            check_directory(path, TABLES, used=os.fstat(descriptor).st_size > 0)
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
