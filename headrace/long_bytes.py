"""Copies of long bytes, made in pieces with a tick between them.

Memory that is used for the first time costs some times what is copied into it: 16 MB at once take 9 ms. So the copy is
made as C extensions make one: a new `bytes` object, which nobody has seen yet, is filled piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import c_ssize_t, c_void_p, memmove, py_object, pythonapi
from typing import Final

from headrace.turns import tick

AT_ONCE_BYTES: Final = 256 * 1024
"""Copied without a tick."""

_new_bytes = pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = py_object, (c_void_p, c_ssize_t)
_address = pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = c_void_p, (py_object,)


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """As `b"".join(pieces)`."""
    pieces = list(pieces)
    size = sum(map(len, pieces))
    if size <= AT_ONCE_BYTES:
        return b"".join(pieces)
    copy: bytes = _new_bytes(None, size)
    at: int = _address(copy)
    for short in _short(pieces):
        memmove(at, short, len(short))
        at += len(short)
    return copy


def _short(pieces: list[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces of about `AT_ONCE_BYTES`, with a tick before each."""
    group: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if len(piece) > AT_ONCE_BYTES:
            yield b"".join(group)
            yield from map(bytes, slices(piece))
            group, size = [], 0
            continue
        group.append(piece)
        size += len(piece)
        if size >= AT_ONCE_BYTES:
            tick()
            yield b"".join(group)
            group, size = [], 0
    yield b"".join(group)


def cut(data: bytes, start: int, end: int) -> bytes:
    """As `data[start:end]`."""
    if end - start <= AT_ONCE_BYTES:
        return data[start:end]
    return joined((memoryview(data)[start:end],))


def slices(data: bytes | memoryview) -> Iterator[memoryview]:
    """The bytes, in pieces, with a tick before each."""
    view = memoryview(data)
    for start in range(0, len(view), AT_ONCE_BYTES):
        tick()
        yield view[start : start + AT_ONCE_BYTES]
