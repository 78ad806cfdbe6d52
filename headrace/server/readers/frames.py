"""The messages between a server and its readers.

    frame    int32 length of the rest | document (BSON) | payload (raw bytes, may be empty)

Rule: both ends are of the same version and trust each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from headrace.values.bson import decode, encode

_LENGTH: Final = Struct("<i")


def frame(document: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a message as bytes."""
    head = encode(document)
    return b"".join((_LENGTH.pack(len(head) + len(payload)), head, payload))


class Frames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = _LENGTH.size

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield (document, payload) of the messages that these bytes complete."""
        self._pieces.append(data)
        self._size += len(data)
        while self._size >= self._wanted:
            buffer = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                self._pieces, self._wanted = [buffer], end
                return
            (head,) = _LENGTH.unpack_from(buffer, _LENGTH.size)
            middle = _LENGTH.size + head
            self._pieces, self._size, self._wanted = [buffer[end:]], len(buffer) - end, _LENGTH.size
            yield decode(buffer[_LENGTH.size : middle]), buffer[middle:end]
