"""Compressed messages: the compressors by id and by name, and undoing and doing what they do.

Rule: what comes out of a decompressor is never longer than the message said it would be, and no more
memory than that is taken to find it out. All that can be wrong with the bytes is a `ProtocolError`.

The compressors are agreed upon in hello; which requests travel compressed the client decides. A reply goes
out in the compressor of its request, but plain for the commands of `NEVER_COMPRESSED`.
No compressor is kept between calls: servers in several threads may call at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import snappy
import zstandard

from headrace.wire.message import ProtocolError

NOOP: Final = 0
SNAPPY: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3

NAMES: Final[dict[str, int]] = {"snappy": SNAPPY, "zlib": ZLIB, "zstd": ZSTD}

NEVER_COMPRESSED: Final = frozenset(
    b"authenticate copydb copydbSaslStart copydbgetnonce createUser getnonce hello isMaster "
    b"ismaster saslContinue saslStart updateUser".split()
)
"""Commands whose requests and replies hold secrets, or come before a compressor is agreed upon."""


def decompress(compressor: int, data: bytes, size: int) -> bytes:
    """The `size` bytes that `data` was made from; anything else raises `ProtocolError`."""
    decompressor = _DECOMPRESSORS.get(compressor)
    if decompressor is None:
        raise ProtocolError(f"unknown compressor {compressor}")
    try:
        result = decompressor(data, size)
    except (zlib.error, zstandard.ZstdError, snappy.UncompressError) as error:
        raise ProtocolError(f"compressed message cannot be read: {error}") from error
    if len(result) != size:
        raise ProtocolError(f"compressed message holds {len(result)} bytes, not the {size} it says")
    return result


def compress(compressor: int, data: bytes) -> bytes:
    """`data` compressed; `compressor` is one of the ids above."""
    return _COMPRESSORS[compressor](data)


def _noop_in(data: bytes, size: int) -> bytes:
    return data


def _snappy_in(data: bytes, size: int) -> bytes:
    if _snappy_size(data) != size:
        raise ProtocolError("snappy data of another size than the message says")
    unpacked: bytes = snappy.uncompress(data)
    return unpacked


def _snappy_size(data: bytes) -> int:
    """The size that snappy's preamble promises (a little-endian base-128 number); -1 if there is none."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    return -1


def _zlib_in(data: bytes, size: int) -> bytes:
    machine = zlib.decompressobj()
    result = machine.decompress(data, size + 1)
    if not machine.eof:
        raise ProtocolError("zlib data is cut off or longer than the message says")
    return result


def _zstd_in(data: bytes, size: int) -> bytes:
    if zstandard.frame_content_size(data) not in (-1, size):
        raise ProtocolError("zstd data of another size than the message says")
    unpacked: bytes = zstandard.decompress(data, max_output_size=size)
    return unpacked


def _noop_out(data: bytes) -> bytes:
    return data


def _zstd_out(data: bytes) -> bytes:
    packed: bytes = zstandard.compress(data, 3)
    return packed


_COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    NOOP: _noop_out,
    SNAPPY: snappy.compress,
    ZLIB: zlib.compress,
    ZSTD: _zstd_out,
}
_DECOMPRESSORS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    NOOP: _noop_in,
    SNAPPY: _snappy_in,
    ZLIB: _zlib_in,
    ZSTD: _zstd_in,
}
