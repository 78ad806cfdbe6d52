"""The files of a Delta table's log, by version: which can be removed, and removing them."""

from __future__ import annotations

import re
from typing import Final

import pyarrow.fs as pa_fs

from headrace.spark.tables.table_location import TableLocation

LOG_FOLDER: Final = "_delta_log"
_VERSION: Final = re.compile(r"(\d{20})\.(.+)")


def cut_of(location: TableLocation, oldest: int, time_s: int) -> int | None:
    """Return the version before which the log can be removed; None if nothing can be.

    It is the last version with a checkpoint that is not after `oldest`, or that was made before `time_s`. Every later
    read begins with that checkpoint.
    """
    checkpoints = {}
    for info in _log(location):
        matched = _VERSION.fullmatch(info.base_name)
        if matched and matched[2] == "checkpoint.parquet":
            checkpoints[int(matched[1])] = info.mtime.timestamp() if info.mtime else float("inf")
    cuts = [version for version, made in checkpoints.items() if version <= oldest or made < time_s]
    return max(cuts, default=None)


def remove_log_before(location: TableLocation, cut: int) -> int:
    """Remove the log of all versions before `cut`, oldest first. Return the number of files."""
    names = sorted(info.base_name for info in _log(location))
    old = [name for name in names if (matched := _VERSION.fullmatch(name)) and int(matched[1]) < cut]
    for name in old:
        location.remove_file(f"{LOG_FOLDER}/{name}")
    return len(old)


def _log(location: TableLocation) -> list[pa_fs.FileInfo]:
    infos: list[pa_fs.FileInfo] = location.files.get_file_info(pa_fs.FileSelector(LOG_FOLDER, allow_not_found=True))
    return infos
