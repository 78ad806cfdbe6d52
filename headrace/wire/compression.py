"""Compressed messages: the compressors by id and by name, and undoing and doing what they do.

Rule: what comes out of a decompressor is never longer than the message said it would be, and no more
memory than that is taken to find it out. All that can be wrong with the bytes is a `ProtocolError`.

The compressors are agreed upon in hello; which requests travel compressed the client decides. A reply goes
out in the compressor of its request, but plain for the commands of `NEVER_COMPRESSED`.
Long messages tick in pieces; only what snappy has compressed is decompressed at once, aside (`aside_calls`).
No compressor is kept between calls: servers in several threads may call at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import zstandard

from headrace.aside_calls import call_aside
from headrace.long_bytes import joined, slices
from headrace.turns import in_pieces, tick
from headrace.wire.message import ProtocolError

PIECE_BYTES: Final = 256 * 1024
"""Compressed or decompressed without a tick."""
DEFLATED_BYTES: Final = 64 * 1024
"""The same for zlib's compressor, which takes up to 5 ms for as much."""

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


def decompress(compressor: int, data: bytes | memoryview, size: int, head: bytes = b"") -> bytes:
    """`head` and the `size` bytes that `data` was made from; anything else raises `ProtocolError`."""
    decompressor = _DECOMPRESSORS.get(compressor)
    if decompressor is None:
        raise ProtocolError(f"unknown compressor {compressor}")
    try:
        pieces = decompressor(data, size)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise ProtocolError(f"compressed message cannot be read: {error}") from error
    result_size = sum(map(len, pieces))
    if result_size != size:
        raise ProtocolError(f"compressed message holds {result_size} bytes, not the {size} it says")
    return joined([head, *pieces])


def compress(compressor: int, data: bytes) -> bytes:
    """`data` compressed; `compressor` is one of the ids above."""
    return _COMPRESSORS[compressor](data)


Pieces = list[bytes | memoryview]


def _noop_in(data: bytes | memoryview, size: int) -> Pieces:
    return [data]


def _snappy_in(data: bytes | memoryview, size: int) -> Pieces:
    if _snappy_size(data) != size:
        raise ProtocolError("snappy data of another size than the message says")
    if size <= PIECE_BYTES:
        return [memoryview(cramjam.snappy.decompress_raw(data))]
    return [memoryview(call_aside(cramjam.snappy.decompress_raw, data))]


def _snappy_size(data: bytes | memoryview) -> int:
    """The size that snappy's preamble promises (a little-endian base-128 number); -1 if there is none."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    return -1


def _zlib_in(data: bytes | memoryview, size: int) -> Pieces:
    machine = zlib.decompressobj()
    pieces: Pieces = []
    left = size + 1
    for compressed in slices(data):
        unread: bytes | memoryview = compressed
        while left and len(unread) and not machine.eof:
            tick()
            piece = machine.decompress(unread, min(left, PIECE_BYTES))
            pieces.append(piece)
            left -= len(piece)
            unread = machine.unconsumed_tail
    while left and not machine.eof and (piece := machine.decompress(b"", min(left, PIECE_BYTES))):
        tick()
        pieces.append(piece)
        left -= len(piece)
    if not machine.eof:
        raise ProtocolError("zlib data is cut off or longer than the message says")
    return pieces


def _zstd_in(data: bytes | memoryview, size: int) -> Pieces:
    if zstandard.frame_content_size(data) not in (-1, size):
        raise ProtocolError("zstd data of another size than the message says")
    if size <= PIECE_BYTES:
        return [zstandard.decompress(data, max_output_size=size)]
    pieces: Pieces = []
    left = size + 1
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        while left and (piece := reader.read(min(left, PIECE_BYTES))):
            tick()
            pieces.append(piece)
            left -= len(piece)
    return pieces


def _noop_out(data: bytes) -> bytes:
    return data


def _snappy_out(data: bytes) -> bytes:
    """Pieces are compressed by themselves, and follow each other behind one preamble: the size."""
    if len(data) <= PIECE_BYTES:
        return bytes(cramjam.snappy.compress_raw(data))
    size, preamble = len(data), bytearray()
    while size >= 0x80:
        preamble.append(size & 0x7F | 0x80)
        size >>= 7
    preamble.append(size)
    pieces = [bytes(preamble)]
    for piece in in_pieces(data, PIECE_BYTES):
        packed = bytes(cramjam.snappy.compress_raw(piece))
        pieces.append(packed[_preamble_bytes(packed) :])
    return joined(pieces)


def _preamble_bytes(packed: bytes) -> int:
    return next(index for index, byte in enumerate(packed) if byte < 0x80) + 1


def _zlib_out(data: bytes) -> bytes:
    machine = zlib.compressobj()
    return joined([*map(machine.compress, in_pieces(data, DEFLATED_BYTES)), machine.flush()])


def _zstd_out(data: bytes) -> bytes:
    machine = zstandard.ZstdCompressor(level=3).compressobj(size=len(data))
    return joined([*map(machine.compress, in_pieces(data, PIECE_BYTES)), machine.flush()])


_COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    NOOP: _noop_out,
    SNAPPY: _snappy_out,
    ZLIB: _zlib_out,
    ZSTD: _zstd_out,
}
_DECOMPRESSORS: Final[dict[int, Callable[[bytes | memoryview, int], Pieces]]] = {
    NOOP: _noop_in,
    SNAPPY: _snappy_in,
    ZLIB: _zlib_in,
    ZSTD: _zstd_in,
}
