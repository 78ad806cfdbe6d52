"""The record of what a process does to its data file, and the files that a loss of power may leave of it.

    entry   int64 time · uint8 kind · int64 offset · uint32 size · the bytes written

A write may reach the disk at any time until a sync after it returns, or never, or in part: sectors of 512 bytes are
whole or not there. LMDB relies on that: what of a meta page changes lies in its first sector, and is written when
everything that it leads to is synced. A sector that is half new is damage that disks detect by themselves.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from headrace.store.data_file import DATA_FILE
from tests.crashes.disk_calls import DiskObserver, writes_through

SECTOR_BYTES: Final = 512
WRITE, SYNCED, THROUGH, WRITTEN_THROUGH = range(4)
_HEAD: Final = struct.Struct("=qBqI")


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """A call, at a time in ns of the monotonic clock: before a write, after a sync."""

    at: int
    kind: int
    offset: int = 0
    data: bytes = b""


class Recorder(DiskObserver):
    """Hands the record on, piece by piece. `sync_ms`: how slow the disk is."""

    def __init__(self, emit: Callable[[bytes], None], sync_ms: int = 0) -> None:
        self._emit = emit
        self._sync_seconds = sync_ms / 1000
        self._lock = threading.Lock()

    def _record(self, kind: int, offset: int = 0, data: bytes = b"") -> None:
        with self._lock:
            self._emit(_HEAD.pack(time.monotonic_ns(), kind, offset, len(data)) + data)

    def before_write(self, descriptor: int, offset: int, data: bytes) -> None:
        if is_data_file(descriptor):
            self._record(THROUGH if writes_through(descriptor) else WRITE, offset, data)

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        if is_data_file(descriptor) and writes_through(descriptor):
            self._record(WRITTEN_THROUGH)

    def before_sync(self, descriptor: int) -> None:
        if self._sync_seconds:
            time.sleep(self._sync_seconds)

    def after_sync(self, descriptor: int) -> None:
        if is_data_file(descriptor):
            self._record(SYNCED)


def is_data_file(descriptor: int) -> bool:
    """Whether it is open on LMDB's file."""
    return os.readlink(f"/proc/self/fd/{descriptor}").endswith(DATA_FILE)


def entries_of_record(record: bytes) -> Iterator[DiskEntry]:
    """The entries that are complete: the process may have ended while it wrote the last one."""
    at = 0
    while at + _HEAD.size <= len(record):
        moment, kind, offset, size = _HEAD.unpack_from(record, at)
        at += _HEAD.size
        if at + size > len(record):
            return
        yield DiskEntry(moment, kind, offset, record[at : at + size])
        at += size


class DiskState:
    """The data that is on the disk for certain, and the data that may be on it too."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.pending: list[tuple[int, bytes]] = []

    def copy(self) -> DiskState:
        """A copy that goes on alone."""
        made = DiskState(self.content)
        made.pending = list(self.pending)
        return made

    def take(self, entry: DiskEntry) -> None:
        """The next call of the process."""
        if entry.kind in (WRITE, THROUGH):
            self.pending.append((entry.offset, entry.data))
        elif entry.kind == SYNCED:
            self.settle()
        else:  # all that went before it is synced already, or may still be lost: only this write is certain
            write(self.content, *self.pending.pop())

    def settle(self) -> None:
        """All writes are on the disk."""
        for offset, data in self.pending:
            write(self.content, offset, data)
        self.pending.clear()

    def after_power_loss(self, random: Random) -> bytes:
        """A file that the disk may have then."""
        content = bytearray(self.content)
        mood = random.random()
        for offset, data in self.pending:
            if mood < 0.15:  # none of them
                continue
            choice = 0.0 if mood < 0.3 else random.random()  # below 0.3: all of them
            if choice < 0.4:
                write(content, offset, data)
            elif choice < 0.7:
                for at in range(0, len(data), SECTOR_BYTES):
                    if random.random() < 0.5:
                        write(content, offset + at, data[at : at + SECTOR_BYTES])
            elif choice < 0.8:
                write(content, offset, data[: random.randrange(len(data)) // SECTOR_BYTES * SECTOR_BYTES])
        if random.random() < 0.3:  # the size came to the disk, and the data did not
            end = max((offset + len(data) for offset, data in self.pending), default=0)
            content.extend(bytes(max(0, end - len(content))))
        return bytes(content)


def write(content: bytearray, offset: int, data: bytes) -> None:
    """Write into a file that may have to grow."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
