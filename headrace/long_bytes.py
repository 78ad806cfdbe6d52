"""Copies of long bytes, made in pieces with a tick between them.

Memory that is used for the first time costs some times what is copied into it: 16 MB at once take 9 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Final

from headrace.turns import tick

AT_ONCE_BYTES: Final = 256 * 1024
"""Copied without a tick."""


def joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """As `b"".join(pieces)`."""
    pieces = list(pieces)
    if sum(map(len, pieces)) <= AT_ONCE_BYTES:
        return b"".join(pieces)
    copy = BytesIO()
    for piece in pieces:
        for short in slices(piece):
            copy.write(short)
    return copy.getvalue()  # without another copy, as long as nothing more is written


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
