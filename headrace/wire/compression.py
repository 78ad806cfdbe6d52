"""Compressed messages: the compressors by id and by name, compression and decompression.

Rule: a decompressor's output is never longer than the message declares, and detecting a longer one takes no more
memory. Every fault of the bytes is a `ProtocolError`.

Client and server agree on the compressors in hello, and the client decides which requests are compressed. A reply has
its request's compressor, but is plain for the commands of `NEVER_COMPRESSED`. Long messages are compressed and
decompressed in another thread, while other commands run (`thread_calls`). No compressor outlives a call, because
servers in several threads may call at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import zstandard

from headrace.thread_calls import call_in_thread
from headrace.wire.message import ProtocolError

LONG_BYTES: Final = 256 * 1024
"""Messages up to this size are compressed and decompressed without another thread."""

NOOP: Final = 0
SNAPPY: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3

NAMES: Final[dict[str, int]] = {"snappy": SNAPPY, "zlib": ZLIB, "zstd": ZSTD}

NEVER_COMPRESSED: Final = frozenset(
    b"authenticate copydb copydbSaslStart copydbgetnonce createUser getnonce hello isMaster "
    b"ismaster saslContinue saslStart updateUser".split()
)
"""Commands whose requests and replies hold secrets, or that come before the agreement on a compressor."""


def decompress(compressor: int, data: bytes | memoryview, size: int, head: bytes = b"") -> bytes:
    """Return `head` and the `size` decompressed bytes of `data`. Raises `ProtocolError` for invalid data."""
    decompressor = _DECOMPRESSORS.get(compressor)
    if decompressor is None:
        raise ProtocolError(f"unknown compressor {compressor}")
    try:
        plain = call_in_thread(decompressor, data, size) if size > LONG_BYTES else decompressor(data, size)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise ProtocolError(f"compressed message cannot be read: {error}") from error
    if len(plain) != size:
        raise ProtocolError(f"compressed message holds {len(plain)} bytes, not the {size} it says")
    return b"".join((head, plain))


def compress(compressor: int, data: bytes) -> bytes:
    """Return `data` compressed. `compressor` is one of the ids above."""
    compressed: bytes = (
        call_in_thread(_COMPRESSORS[compressor], data) if len(data) > LONG_BYTES else _COMPRESSORS[compressor](data)
    )
    return compressed


Bytes = bytes | memoryview


def _noop_in(data: Bytes, size: int) -> Bytes:
    return data


def _snappy_in(data: Bytes, size: int) -> Bytes:
    if _snappy_size(data) != size:
        raise ProtocolError("snappy data of another size than the message says")
    return memoryview(cramjam.snappy.decompress_raw(data))


def _snappy_size(data: bytes | memoryview) -> int:
    """Return the size in snappy's preamble (a little-endian base-128 number), or -1 if there is none."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    return -1


def _zlib_in(data: Bytes, size: int) -> Bytes:
    machine = zlib.decompressobj()
    plain = machine.decompress(data, size + 1)
    if not machine.eof:
        raise ProtocolError("zlib data is cut off or longer than the message says")
    return plain


def _zstd_in(data: Bytes, size: int) -> Bytes:
    if zstandard.frame_content_size(data) not in (-1, size):
        raise ProtocolError("zstd data of another size than the message says")
    return zstandard.decompress(data, max_output_size=size)


def _noop_out(data: bytes) -> bytes:
    return data


def _snappy_out(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


_COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    NOOP: _noop_out,
    SNAPPY: _snappy_out,
    ZLIB: zlib.compress,
    ZSTD: zstandard.compress,
}
_DECOMPRESSORS: Final[dict[int, Callable[[Bytes, int], Bytes]]] = {
    NOOP: _noop_in,
    SNAPPY: _snappy_in,
    ZLIB: _zlib_in,
    ZSTD: _zstd_in,
}
