"""Temporary files in the data directory, for data that an operation cannot hold in memory.

    _tmp/      0700, in the data directory; emptied when a server opens it
    a file     0600; without a name if the system allows it, so that nothing remains however the process ends
    a block    records of one stream, each preceded by its length (uint32); blocks of several streams lie in any order

The files are not synced, and are removed with the operation. A full disk is error 14031, for that operation only.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from headrace import limits
from headrace.errors import CommandError

FOLDER: Final = "_tmp"
_LENGTH = struct.Struct("<I")


class SpillFolder:
    """The folder of a data directory's temporary files."""

    def __init__(
        self, directory: Path, free_bytes_min: int = limits.SPILL_DISK_FREE_BYTES_MIN, *, clears: bool = True
    ) -> None:
        """`free_bytes_min`: disk space to leave for other writers. `clears`: remove files that a killed server may have
        left."""
        self.path = directory / FOLDER
        self.free_bytes_min = free_bytes_min
        if clears:
            shutil.rmtree(self.path, ignore_errors=True)

    def open_file(self) -> SpillFile:
        """Return a new temporary file. Raises 14031 if the disk is full or fails."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            return SpillFile(self, tempfile.TemporaryFile(dir=self.path, buffering=0))
        except OSError as error:
            raise _disk_error(error) from error

    def check_room(self) -> None:
        """Raise 14031 unless the disk has room for other writers, too."""
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize
        if free < self.free_bytes_min:
            raise CommandError(
                14031,
                f"Failed to spill to disk: {free} bytes are available, fewer than the required minimum of "
                f"{self.free_bytes_min}",
            )


class SpillFile:
    """A temporary file with the records of several streams."""

    __slots__ = ("_end", "_file", "_folder")

    def __init__(self, folder: SpillFolder, file: IO[bytes]) -> None:
        self._folder = folder
        self._file = file
        self._end = 0

    def stream(self) -> SpillStream:
        """Return a new stream in this file."""
        return SpillStream(self)

    def write(self, block: bytes) -> int:
        """Append a block; return its offset. Raises 14031."""
        at = self._end
        try:
            self._folder.check_room()
            view, done = memoryview(block), 0
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], at + done)
        except OSError as error:
            raise _disk_error(error) from error
        self._end += len(block)
        return at

    def read(self, at: int, size: int) -> bytes:
        """Return a block. Raises 14031 if the disk fails."""
        try:
            pieces = []
            while size:
                piece = os.pread(self._file.fileno(), size, at)
                if not piece:
                    raise OSError("the file ends too early")
                pieces.append(piece)
                at, size = at + len(piece), size - len(piece)
        except OSError as error:
            raise _disk_error(error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class SpillStream:
    """Records that are appended, and then read from the first one."""

    __slots__ = ("_blocks", "_bytes", "_file", "_pending")

    def __init__(self, file: SpillFile) -> None:
        self._file = file
        self._blocks: list[tuple[int, int]] = []
        self._pending: list[bytes] = []
        self._bytes = 0

    def append(self, record: bytes) -> None:
        """Add a record. Raises 14031 if the disk is full or fails."""
        self._pending += (_LENGTH.pack(len(record)), record)
        self._bytes += len(record)
        if self._bytes >= limits.SPILL_BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the records that are in memory. Raises 14031."""
        block = b"".join(self._pending)
        self._pending, self._bytes = [], 0
        if block:
            self._blocks.append((self._file.write(block), len(block)))

    def records(self) -> Iterator[bytes]:
        """Yield all records in their order. Raises 14031 if the disk fails."""
        self.flush()
        for at, size in self._blocks:
            block, start = self._file.read(at, size), 0
            while start < size:
                (length,) = _LENGTH.unpack_from(block, start)
                start += _LENGTH.size + length
                yield block[start - length : start]


def _disk_error(error: OSError) -> CommandError:
    return CommandError(14031, f"Failed to spill to disk: {error}")
