"""CRC-32C, which a client may append to an OP_MSG."""

from __future__ import annotations


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    from google_crc32c import value  # few clients send checksums

    checksum: int = value(bytes(data))
    return checksum
