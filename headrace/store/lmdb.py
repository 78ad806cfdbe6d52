"""The LMDB environment that implements `kv.py`, and the lock that keeps other processes out of the directory.

Rules:
- One process opens a directory. A second process is refused with `DirectoryInUse` (an advisory lock, which the kernel
  releases however the process ends).
- LMDB's lock table (`lock.mdb`, created again at each start) lists the open read transactions. A commit uses no page
  that a listed transaction can read. Any thread may use or end a read transaction, one thread at a time.
- LMDB's write lock belongs to a thread: the thread that begins the write transaction ends it (`begin_write_in`).
- At default settings a commit is on disk when it returns. Opening a directory syncs it, because a killed process may
  have left a commit in the system's memory.
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
from headrace.store.kv import Table, TableKey, Transaction

TABLES: Final = ("catalog", "documents", "ids", "images", "indexes", "meta", "oplog", "runs", "sessions", "topics")

LmdbError = lmdb.Error
LOCK_FILE: Final = "headrace.lock"
READERS_FILE: Final = "lock.mdb"
NEW_READERS_FILE: Final = "lock.mdb.new"
NEW_FILE: Final = "data.mdb.new"
"""The name of a data file that is being made."""
COPY_FOLDER: Final = "compact.new"
"""The folder of a copy that will replace the data file."""
_NEW_FILE_BYTES: Final = 1 << 20
_READER_BYTES: Final = 64
_GROWTH_BYTES: Final = 1 << 30
"""Address space beyond twice the file's size, for reading a file that another process writes to."""
_DISK_ERRORS: Final = frozenset({errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})


_DAMAGE: Final = (
    lmdb.CorruptedError, lmdb.CursorFullError, lmdb.PageFullError, lmdb.PageNotFoundError, lmdb.ProblemError,
)  # fmt: skip


class DirectoryInUse(Exception):
    """Another process has the data directory open."""


class HalfExchanged(Exception):
    """The data file may have been replaced while a process has the old file open. That process must end."""


class FileReplaced(Exception):
    """The data file was replaced while a reader opened it. A message about the new file follows."""


def is_disk_failure(error: BaseException) -> bool:
    """Return whether a write failed because the disk or the map is full, or the disk fails."""
    if isinstance(error, lmdb.MapFullError):
        return True
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, lmdb.Error):
        number = getattr(error, "code", None)
    return number in _DISK_ERRORS


def is_damage(error: BaseException) -> bool:
    """Return whether LMDB found damaged pages in its file, for example a tree without end or a page with a wrong
    size."""
    return isinstance(error, _DAMAGE)


def is_unusable(error: BaseException) -> bool:
    """Return whether LMDB refuses all transactions since it failed to write a meta page."""
    return isinstance(error, lmdb.PanicError)


class LmdbEnvironment:
    """An open data directory. `path=None` makes a temporary directory, which is not synced and which `close` removes.

    A new directory, and all files in any directory, are accessible to the owner only.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, map_bytes: int = limits.MAP_BYTES) -> None:
        """Raises `DirectoryInUse` or `UnusableDirectory` and leaves the directory unchanged."""
        self.temporary = path is None
        self.map_bytes = map_bytes
        self._names: dict[Table, str] = {}
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="headrace-") if path is None else path)
        if path is None:  # also without `close`, at the end of the process
            self._remove = weakref.finalize(self, _remove_directory, self.path, os.getpid())
        made = [folder.parent for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file: int | None = _lock(self.path)
        try:
            (self.path / NEW_FILE).unlink(missing_ok=True)
            shutil.rmtree(self.path / COPY_FOLDER, ignore_errors=True)
            if not self.temporary and not self.file_bytes:
                _make_data_file(self.path)
                for folder in (self.path, *made):
                    _sync_directory(folder)
            self._use(self._open(self.path), 0)
            with contextlib.suppress(PermissionError):  # files of another user, which this user may write
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
        """Use an open file for all reads and writes from now on."""
        create = self._lock_file is not None
        self.tables: dict[str, Table] = {name: Table(opened.open_db(name.encode(), create=create)) for name in TABLES}
        self._names |= {table: name for name, table in self.tables.items()}
        self._lmdb, self._begin = opened, opened.begin
        self.number_base = number_base
        """An offset to the commit numbers of the data file, so that numbers go on after the file is replaced."""

    def _make_readers_file(self, folder: pathlib.Path) -> None:
        """Replace LMDB's lock table, which an ended process may have left. Raises `OSError` on a full disk.

        The table is mapped. In a sparse file, a page for which the disk has no room would end the process.
        """
        path = folder / READERS_FILE
        if self.temporary:
            path.unlink(missing_ok=True)
            return
        # A process that reads beside this one sees the old table or the whole new table.
        new = folder / NEW_READERS_FILE
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_bytes(bytes(limits.READER_COUNT_MAX * _READER_BYTES))
        new.replace(path)

    def name_of(self, table: Table) -> str:
        """Return the name of a table. It may belong to a file that was replaced."""
        return self._names[table]

    @property
    def file_bytes(self) -> int:
        """The size of the data file on disk, in bytes; 0 if there is none."""
        try:
            return (self.path / DATA_FILE).stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def files(self) -> str:
        """A name for the present data file and its lock table. Files that replace them have another one."""
        return " ".join(str(_identity(self.path / name)) for name in (DATA_FILE, READERS_FILE))

    @property
    def used_bytes(self) -> int:
        """Bytes of the map up to its last used page. Pages that commits cannot reuse make it grow."""
        return int((self._lmdb.info()["last_pgno"] + 1) * mmap.PAGESIZE)

    def begin_read(self) -> SharedTransaction:
        """Return a read transaction on the last commit, for one reader and all that `join` it.

        Every read of a value that does not match its checksum raises `DamagedValue`.
        """
        begun = self._begin(None, None, False, False)  # names cost 0.3 µs a call
        return SharedTransaction(begun, self.describe, self.tables, self.number_base)

    def begin_write(self) -> Transaction:
        """Begin the write transaction in this thread, which must also end it. The caller ensures that no other is
        open."""
        return CheckedTransaction(self._begin(None, None, True, False), self.describe)

    def is_usable(self) -> bool:
        """Return whether transactions can begin. After LMDB has failed to write a meta page it begins none, because the
        page may or may not be on the disk."""
        try:
            self._lmdb.begin().abort()
        except lmdb.Error as error:
            return not is_unusable(error)
        return True

    def begin_write_in(self, call: Callable[[Callable[[], None]], None]) -> Transaction:
        """Begin the write transaction in this thread, which must also commit it. `call` runs a function in this thread
        and waits for it."""
        return ThreadTransaction(self._begin(None, None, True, False), self.describe, call)

    def begin_plain(self, *, write: bool = False) -> Transaction:
        """Begin a transaction that returns values as they are stored, checksums included."""
        return cast("Transaction", self._lmdb.begin(write=write, buffers=False))

    @contextlib.contextmanager
    def reading(self) -> Iterator[SharedTransaction]:
        """Open a read transaction for the duration of a `with`."""
        transaction = self.begin_read()
        try:
            yield transaction
        finally:
            transaction.abort()

    def forget_dead_readers(self) -> int:
        """Free the pages that killed processes, which read beside this one, still hold; return the number of
        processes."""
        return int(self._lmdb.reader_check())

    def copy_to(self, descriptor: int) -> None:
        """Write the last commit, without free pages, to an open file; do not sync it. May run in any thread. The caller
        keeps the environment open meanwhile."""
        self._lmdb.copyfd(descriptor, compact=True)

    def open_copy(self, folder: pathlib.Path) -> DataFileCopy:
        """Open a copy in a folder, written by `copy_to`, to update it."""
        return DataFileCopy(self._lmdb, self.tables, folder, self.map_bytes)

    def exchange(self, folder: pathlib.Path) -> None:
        """Replace the data file by the file in a folder, which has the same rows. No write transaction may be open.

        Open read transactions keep the old file until the last of them ends. Raises `LmdbError` or `OSError` when
        nothing has changed; otherwise `HalfExchanged`.
        """
        number = self.number_base + self._lmdb.info()["last_txnid"]
        opened = self._open(folder)
        try:
            sync_folder(self.path)  # fails here rather than after the renames
            (folder / READERS_FILE).rename(self.path / READERS_FILE)
        except OSError:
            opened.close()
            raise
        try:
            (folder / DATA_FILE).rename(self.path / DATA_FILE)
            sync_folder(self.path)
            self._use(opened, number - opened.info()["last_txnid"])
        except (lmdb.Error, OSError) as error:
            raise HalfExchanged(f"the data file of {self.path} cannot be replaced: {error}") from error

    def close(self) -> None:
        """Close the directory and free it for other processes. Remove a temporary directory. A second call does
        nothing."""
        self._lmdb.close()
        self._release()

    def _release(self) -> None:
        """Release the lock of the directory, and remove a temporary directory."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self.temporary:
            self._remove()


class ReaderEnvironment(LmdbEnvironment):
    """A read-only data directory, open in the process that started this one. Each transaction is listed in the lock
    table, so that the other process reuses none of its pages."""

    def __init__(self, path: pathlib.Path, *, map_bytes: int, number_base: int, files: str) -> None:
        """`number_base`, `files`: taken from the other process. Raises `FileReplaced`."""
        self.temporary = False
        self.path = path
        self.map_bytes = map_bytes
        self._lock_file = None
        self._names = {}
        self.reopen(number_base, files)
        self.describe = lambda table, key: f"the value of {key.hex()} in the table {self.name_of(table)}"

    def reopen(self, number_base: int, files: str) -> None:
        """Read the data file and lock table that have the name `files`. Open transactions keep reading their file.

        Raises `FileReplaced` if the other process has replaced them. The lock table of one data file must not be
        combined with the pages of another: the other process would not see the transactions."""
        opened = lmdb.open(
            str(self.path), map_size=self.map_bytes, max_dbs=len(TABLES), readonly=True, create=False, readahead=False,
            max_spare_txns=8, max_readers=limits.READER_COUNT_MAX,
        )  # fmt: skip
        if self.files != files:
            opened.close()
            raise FileReplaced
        self._use(opened, number_base)


def _make_data_file(path: pathlib.Path) -> None:
    """Make a data file with empty tables under a temporary name, sync it, and rename it."""
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
    """Sync the names in a directory, if its file system supports it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_directory(path: pathlib.Path, process: int) -> None:
    """Remove a temporary directory, but only in the process that made it, not in its forks."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked_for_reading(path: pathlib.Path) -> Iterator[None]:
    """Keep other processes out of the directory during the `with`, without writing. Raises `DirectoryInUse`."""
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a copy that has only the data file
        yield
        return
    try:
        _take(path, descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def read_only(path: pathlib.Path) -> Iterator[tuple[Transaction, dict[str, Table]]]:
    """Open a plain transaction on the directory's data file, with its tables, for the duration of a `with`."""
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
    """A copy of an open data file, updated key by key and not synced. One thread at a time may use it."""

    def __init__(
        self, source: lmdb.Environment, tables: dict[str, Table], folder: pathlib.Path, map_bytes: int
    ) -> None:
        self._source = source
        self._lmdb = lmdb.open(
            str(folder), map_size=map_bytes, max_dbs=len(TABLES), sync=False, lock=False, readahead=False, create=False
        )
        self._tables = {tables[name]: Table(self._lmdb.open_db(name.encode(), create=False)) for name in TABLES}

    def take(self, keys: Iterable[TableKey]) -> None:
        """Copy the source's last committed values of these keys, given by the source's tables."""
        with self._source.begin(buffers=False) as read, self._lmdb.begin(write=True) as written:
            source, copy = cast("Transaction", read), cast("Transaction", written)
            for table, key in keys:
                value = source.get(key, db=table)
                if value is None:
                    copy.delete(key, db=self._tables[table])
                else:
                    copy.put(key, value, db=self._tables[table])

    def has_all_rows(self) -> bool:
        """Return whether each table has as many rows as in the source."""
        with self._source.begin() as read, self._lmdb.begin() as written:
            source, copy = cast("Transaction", read), cast("Transaction", written)
            return all(
                source.stat(table)["entries"] == copy.stat(own)["entries"] for table, own in self._tables.items()
            )

    def sync(self) -> None:
        """Sync the copy. May run in any thread."""
        self._lmdb.sync(True)

    def close(self) -> None:
        """Close the copy, and forget the source, which may have been replaced. A second call does nothing."""
        self._lmdb.close()
        self.__dict__.pop("_source", None)


class ReadersChanged(Exception):
    """Another process opened the directory during a read. It does not know of this reader and may have reused pages."""


class Beside:
    """A data file, read from another process than the one that has the directory open, if any.

    The read transactions are listed in LMDB's lock table, so that the other process keeps their pages. A process that
    opens the directory makes a new table, so a read that spans that moment may be wrong. `reading` and `copy` then
    raise `ReadersChanged`, and the caller reads again.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Raises `UnusableDirectory` if there is no readable data file."""
        self.path = path
        if not (path / DATA_FILE).is_file() or not (path / DATA_FILE).stat().st_size:
            raise UnusableDirectory(f"{path} has no data file of Headrace")

    @contextlib.contextmanager
    def _open(self) -> Iterator[lmdb.Environment]:
        readers = self.path / READERS_FILE
        with contextlib.suppress(OSError):
            readers.touch(mode=0o600)  # a table that another process puts there is then recognised as new
        before = _identity(readers)
        environment = None
        try:
            # Leave room for data that the other process adds before the transaction begins.
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
        """Open a checked transaction, with the tables, for a short `with`. Its reads are valid only if nothing is
        raised."""
        with self._open() as environment, environment.begin() as plain:
            tables = {name: Table(environment.open_db(name.encode(), plain, create=False)) for name in TABLES}
            names = {table: name for name, table in tables.items()}
            yield CheckedTransaction(plain, lambda table, key: f"{key.hex()} in {names[table]} of {self.path}"), tables

    def copy(self, target: pathlib.Path) -> None:
        """Write the last commit to a new data file in the folder `target`, without free pages.

        The copy is not synced: it is read at once, and a sync would make the other process's commits wait for the disk.
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
    """Lock an open lock file. Raises `DirectoryInUse` and leaves the descriptor open."""
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
    """Return the id of the process that has the directory open, or None."""
    try:
        with locked_for_reading(path):
            return None
    except DirectoryInUse:
        return int((path / LOCK_FILE).read_text() or 0) or None


def wait_until_free(path: pathlib.Path) -> None:
    """Wait until no process has the directory open."""
    with (path / LOCK_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _lock(path: pathlib.Path) -> int:
    """Check the directory and lock it for this process. Closing the returned descriptor releases the lock."""
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
