"""The location of a table: a local folder, or a folder of an object store, as a URL (`s3://bucket/orders`).

The address and credentials of a store are in the environment, on workers too, under the names that `deltalake` reads
(`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ...).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from headrace.spark.tables.checked_paths import STORE_SCHEMES, LocationError, check_scheme

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_UNANSWERED: Final = "error sending request"
"""The words with which a store's client reports that a request got no answer: no connection, or none in time."""


class StoreUnreachable(RuntimeError):
    """An object store does not answer."""


def is_url(path: str | Path) -> bool:
    """Whether `path` is a URL; a `Path` never is."""
    return isinstance(path, str) and "://" in path


def resolved_path(path: str, folder: Path) -> str:
    """Return the path relative to `folder`; a URL is unchanged."""
    return path if is_url(path) else str(folder / path)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table's folder. `url` is an absolute path or the URL of an object store."""

    url: str

    @property
    def in_store(self) -> bool:
        """Whether the folder is in an object store."""
        return "://" in self.url

    @property
    def files(self) -> pa_fs.FileSystem:
        """The folder as a file system; names are relative to the folder."""
        return _files(self)

    def table(self, version: int | None = None) -> DeltaTable | None:
        """Return the Delta table, at the newest or a given version; None if it does not exist."""
        try:
            return DeltaTable(self.url, version=version)
        except TableNotFoundError:
            return None

    def dataset(self, names: Sequence[str], schema: pa.Schema) -> ds.Dataset:
        """Return files of the folder as one dataset.

        Filters must compare casts to `large_string`: merges write views of strings, which Arrow cannot compare.
        """
        # Imported only when a table is read: it imports pandas, which takes half a second.
        import pyarrow.dataset as ds

        return ds.dataset(list(names), schema=schema, format="parquet", filesystem=self.files)

    def create(self, folder: str = "") -> None:
        """Create the folder, or a folder in it; an object store needs none."""
        if not self.in_store:
            Path(self.url, folder).mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        """Whether the folder exists; an object store needs none."""
        return self.in_store or Path(self.url).is_dir()

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        size: int | None = self.files.get_file_info(name).size
        return size

    def sync_file(self, name: str) -> None:
        """Make a closed file survive a power loss; in an object store every file does."""
        if not self.in_store:
            with Path(self.url, name).open("rb+") as file:
                os.fsync(file.fileno())

    def names(self) -> list[str]:
        """Return the names of the files and folders directly in the folder."""
        return [info.base_name for info in self.files.get_file_info(pa_fs.FileSelector("", allow_not_found=True))]

    def folders(self) -> list[str]:
        """Return the names of the folders directly in the folder."""
        infos = self.files.get_file_info(pa_fs.FileSelector("", allow_not_found=True))
        return [info.base_name for info in infos if info.type != pa_fs.FileType.File]

    def remove_file(self, name: str) -> None:
        """Remove a file, if it exists."""
        if self.size(name) is not None:
            self.files.delete_file(name)

    def remove(self) -> bool:
        """Remove the folder with all its files. Return whether there was anything."""
        if self.in_store:
            there = bool(self.names())
            self.files.delete_dir("")
            return there
        there = Path(self.url).exists()
        if there:
            shutil.rmtree(self.url)
        return there

    def __str__(self) -> str:
        return self.url


def location_of(path: str | Path) -> TableLocation:
    """Return the location of a path or URL. Raise LocationError for a URL whose scheme is not an object store's."""
    if not is_url(path):
        if str(path).partition(":/")[0] in STORE_SCHEMES:
            raise LocationError(f"{str(path)!r} is a URL that was converted to a Path: pass it as text")
        return TableLocation(str(Path(path).absolute()))
    check_scheme(str(path))
    return TableLocation(str(path).rstrip("/"))


def check_store(url: str, seconds: float) -> None:
    """Raise StoreUnreachable if the object store of a URL does not answer in time.

    Any answer counts, also a refusal of the credentials or a missing bucket: opening the table reports these.
    """
    scheme, _, rest = url.partition("://")
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    options = {"timeout": f"{seconds:g}s", "connect_timeout": f"{seconds:g}s", "max_retries": "0"}
    try:
        pa_fs.PyFileSystem(DeltaStorageHandler(bucket, options)).get_file_info("_delta_log")
    except OSError as error:
        if _UNANSWERED in str(error):
            raise StoreUnreachable(
                f"no object store answers at {bucket} within {seconds:g} s: see its address and the proxy in the "
                "environment (AWS_ENDPOINT_URL, ...)"
            ) from error


def local_folder(path: str | Path) -> Path:
    """Return the path if it is local, for code that needs a file system: renames, Spark's checkpoints. Raise
    LocationError."""
    if is_url(path):
        raise LocationError(f"this needs a path that is mounted, not {str(path)!r}")
    return Path(location_of(path).url)


@lru_cache(maxsize=64)
def _files(location: TableLocation) -> pa_fs.FileSystem:
    if location.in_store:
        return pa_fs.PyFileSystem(DeltaStorageHandler(location.url))
    return pa_fs.SubTreeFileSystem(location.url, pa_fs.LocalFileSystem())
