"""Files that appear under their name complete and durable, or not at all: written aside, synced, then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any], *, temporary: str | None = None) -> None:
    """Replaces the file at `path` by what `write` writes to the path it is given, in the same folder.

    After a crash there is the old file or the new one, and perhaps the temporary one, whose name (`temporary`, by
    default `_<name>.writing`) begins with an underscore, so that readers of tables ignore it.
    """
    writing = path.with_name(temporary or f"_{path.name}.writing")
    write(writing)
    with writing.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(writing, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
