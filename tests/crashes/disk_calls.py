"""The system calls by which LMDB writes its file, seen one by one and in their order.

    with observed(observer): ...     the observer is called before and after each write and sync of this process

The `lmdb` package is a shared library. Its calls into the C library go through a table of addresses, in which those of
`pwrite`, `writev` and `fdatasync` are replaced by functions of this module. Nothing is compiled, and the calls are made
as before. It works where the package is an ELF library of 64 bits.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_POINTERS: Final = {2: "size", 5: "strings", 6: "symbols", 23: "relocations"}
"""The tags of an ELF file's dynamic section that are needed."""
_ENTRY: Final = struct.Struct("<QQ8x")
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong]
_libc.pwrite.restype = ctypes.c_ssize_t
_libc.writev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
_libc.writev.restype = ctypes.c_ssize_t
_PWRITE: Final = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong, use_errno=True
)
_WRITEV: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, use_errno=True)
_FDATASYNC: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)


class DiskObserver:
    """Is called around each call. It may end the process, or raise OSError, with which the call then fails."""

    def before_write(self, descriptor: int, offset: int, data: bytes) -> None:
        """Before bytes are written at an offset of the file."""

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        """After they were: on disk, if the descriptor writes through (`writes_through`)."""

    def before_sync(self, descriptor: int) -> None:
        """Before the file is synced."""

    def after_sync(self, descriptor: int) -> None:
        """After it was: all that was written before is on disk."""


def writes_through(descriptor: int) -> bool:
    """Whether a write by this descriptor is on disk when it returns."""
    import fcntl

    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC)


@contextmanager
def observed(observer: DiskObserver) -> Iterator[None]:
    """Call the observer during the `with`, in whatever thread writes."""
    replaced = {"fdatasync": _fdatasync(observer), "pwrite": _pwrite(observer), "writev": _writev(observer)}
    slots = _slots(set(replaced))
    before = {name: slot.value for name, slot in slots.items()}
    for name, slot in slots.items():
        slot.value = ctypes.cast(replaced[name], ctypes.c_void_p).value
    try:
        yield
    finally:
        for name, slot in slots.items():
            slot.value = before[name]


@contextmanager
def failing() -> Iterator[list[OSError]]:
    """Give LMDB the error that an observer raises; the list has it then."""
    failure: list[OSError] = []
    try:
        yield failure
    except OSError as error:
        failure.append(error)
        ctypes.set_errno(error.errno or errno.EIO)


def _pwrite(observer: DiskObserver) -> Any:
    def pwrite(descriptor: int, buffer: int, size: int, offset: int) -> int:
        data = ctypes.string_at(buffer, size)
        with failing() as failure:
            observer.before_write(descriptor, offset, data)
            written: int = _libc.pwrite(descriptor, buffer, size, offset)
            observer.after_write(descriptor, offset, data[: max(written, 0)])
        return -1 if failure else written

    return _PWRITE(pwrite)


def _writev(observer: DiskObserver) -> Any:
    def writev(descriptor: int, vectors: int, count: int) -> int:
        pieces = struct.iter_unpack("@PN", ctypes.string_at(vectors, count * struct.calcsize("@PN")))
        data = b"".join(ctypes.string_at(at, size) for at, size in pieces)
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        with failing() as failure:
            observer.before_write(descriptor, offset, data)
            written: int = _libc.writev(descriptor, vectors, count)
            observer.after_write(descriptor, offset, data[: max(written, 0)])
        return -1 if failure else written

    return _WRITEV(writev)


def _fdatasync(observer: DiskObserver) -> Any:
    def fdatasync(descriptor: int) -> int:
        with failing() as failure:
            observer.before_sync(descriptor)
            result: int = _libc.fdatasync(descriptor)
            observer.after_sync(descriptor)
        return -1 if failure else result

    return _FDATASYNC(fdatasync)


def _slots(names: set[str]) -> dict[str, ctypes.c_void_p]:
    """Where the library keeps the addresses of these functions. Raises RuntimeError where one is not found."""
    import lmdb.cpython

    path = Path(lmdb.cpython.__file__)
    base, read = _base_of(path), ctypes.string_at
    table = _dynamic_section(path)
    slots: dict[str, ctypes.c_void_p] = {}
    for at in range(0, table["size"], _ENTRY.size):
        offset, info = _ENTRY.unpack(read(base + table["relocations"] + at, _ENTRY.size))
        (name_at,) = struct.unpack("<I", read(base + table["symbols"] + (info >> 32) * 24, 4))
        name = read(base + table["strings"] + name_at).decode()
        if name in names:
            page = (base + offset) & -mmap.PAGESIZE
            _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE)
            slots[name] = ctypes.c_void_p.from_address(base + offset)
    if set(slots) != names:
        raise RuntimeError(f"{path} does not call {sorted(names - set(slots))}")
    return slots


def _base_of(path: Path) -> int:
    """The address at which a library of this process is mapped."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if fields[-1] == str(path.resolve()) and int(fields[2], 16) == 0:
            return int(fields[0].partition("-")[0], 16)
    raise RuntimeError(f"{path} is not mapped")


def _dynamic_section(path: Path) -> dict[str, int]:
    """The addresses, from the library's base on, of the tables that the linker uses."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise RuntimeError(f"{path} is no ELF library of 64 bits")
    (headers,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    for header in range(headers, headers + size * count, size):
        kind, _, offset = struct.unpack_from("<IIQ", data, header)
        if kind == 2:
            break
    found: dict[str, int] = {}
    while (item := struct.unpack_from("<QQ", data, offset))[0]:
        if item[0] in _POINTERS:
            found[_POINTERS[item[0]]] = item[1]
        offset += 16
    return found
