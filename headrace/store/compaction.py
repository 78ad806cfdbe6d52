"""Compacts a data directory that no process has open: its file becomes as small as what it holds.

    data.mdb.new   the copy, without free pages; synced, then renamed to data.mdb

Rules:
- Whenever the process or the machine ends, the directory has the old file or the whole new one. A start removes a copy
  that was not finished.
- The directory is locked from beginning to end.
- Who reads beside it (`lmdb.Beside`) goes on with the old file, or notices that the table of readers was replaced: it
  has the number of the old file's last transaction. So no process can open it between the two renames.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from headrace.durable_files import sync_folder
from headrace.store.data_file import DATA_FILE, UnusableDirectory
from headrace.store.lmdb import NEW_FILE, READERS_FILE, LmdbEnvironment, alone, table_rows


class Compacted(NamedTuple):
    """Bytes of the data file."""

    before: int
    after: int


def compact(path: Path) -> Compacted:
    """Compact a directory. Raises `DirectoryInUse`, `UnusableDirectory`, `LmdbError` and `OSError`: nothing has changed
    then."""
    file, new = path / DATA_FILE, path / NEW_FILE
    if not file.is_file() or not file.stat().st_size:
        raise UnusableDirectory(f"{path} has no data file of Headrace")
    environment = LmdbEnvironment(path)
    try:
        before = file.stat()
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
            environment.copy_to(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with environment.reading() as kv:
            rows = {name: kv.stat(table)["entries"] for name, table in environment.tables.items()}
        if table_rows(new) != rows:
            raise UnusableDirectory(f"{file} has other numbers of rows than its copy: check the directory")
        after = new.stat()
        if after.st_size < before.st_size:
            with alone(path):
                new.rename(file)
                (path / READERS_FILE).unlink()
            sync_folder(path)
            return Compacted(before.st_size, after.st_size)
        return Compacted(before.st_size, before.st_size)
    finally:
        new.unlink(missing_ok=True)
        environment.close()
