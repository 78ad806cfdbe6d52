"""Places of archives: files by name. Each file exists completely or not at all.

A name has parts separated by `/`. When `put` returns, the file is stored, even if the machine stops then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.durable_files import replace_file, sync_folder

_UNFINISHED: Final = ".unfinished"
_LOCK: Final = "writer.lock"


class ArchiveInUse(Exception):
    """Another process writes to the archive."""


class Place(Protocol):
    """A folder or a bucket."""

    def names(self, prefix: str) -> list[str]:
        """Return the names under a prefix that ends with `/`, sorted."""

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes; None if it does not exist."""

    def put(self, name: str, data: bytes) -> None:
        """Store a file, or replace it."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other writers away during a `with`, if the place supports that. Raises `ArchiveInUse`."""


def place_of(where: str) -> Place:
    """Return a place: an object store for a URL such as s3://bucket/backup, otherwise a folder."""
    return ObjectStore(where) if "://" in where else Folder(Path(where))


class Folder:
    """A folder of a file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self, prefix: str) -> list[str]:
        folder = self._path / prefix
        found = []
        for parent, _, files in os.walk(folder):
            base = Path(parent).relative_to(self._path).as_posix()
            found += [f"{base}/{file}" for file in files if not file.endswith(_UNFINISHED)]
        return sorted(found)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        path = self._path / name
        made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, partial(_write, data=data), temporary=path.name + _UNFINISHED)
        for folder in made:
            sync_folder(folder.parent)

    def remove(self, name: str) -> None:
        path = self._path / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder is not empty
            path.parent.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Any:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveInUse(f"another process writes to the archive {self}") from None
            yield
        finally:
            os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)


class ObjectStore:
    """A bucket, through fsspec. An object exists once its upload has ended. There is no lock between writers."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise OSError(
                f"{url} requires the package fsspec, and that of its scheme: pip install 'headrace[backup]'"
            ) from None
        self._url = url
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:  # the scheme's package is missing, or the scheme is unknown
            raise OSError(f"{url} cannot be used: {error}") from None

    def __str__(self) -> str:
        return self._url

    def names(self, prefix: str) -> list[str]:
        root = self._root.rstrip("/") + "/"
        self._files.invalidate_cache()
        try:
            found = self._files.find(root + prefix)
        except FileNotFoundError:
            return []
        return sorted(name[name.index(root) + len(root) :] for name in found)

    def get(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        self._files.pipe_file(f"{self._root}/{name}", data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    @contextlib.contextmanager
    def lock(self) -> Any:
        yield
