"""Durable files: a file is written under a temporary name, synced and renamed, so it exists completely or not at
all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any], *, temporary: str | None = None) -> None:
    """Replace the file at `path` by a file that `write` makes at the path it is given, in the same folder.

    After a crash the old file or the new one exists, and perhaps the temporary one. The temporary name (`temporary`, by
    default `_<name>.writing`) begins with an underscore, so that readers of tables ignore it.
    """
    writing = path.with_name(temporary or f"_{path.name}.writing")
    write(writing)
    with writing.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(writing, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
