"""CRC-32C, which a client may put behind an OP_MSG."""

from __future__ import annotations

from headrace.long_bytes import slices


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C (Castagnoli) of bytes."""
    from google_crc32c import extend  # few clients send checksums

    checksum = 0
    for piece in slices(data):
        checksum = extend(checksum, bytes(piece))
    return checksum
