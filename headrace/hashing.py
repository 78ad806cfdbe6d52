"""Digests of bytes. OpenSSL, which computes them, is loaded at the first call: it takes 3.5 MB of memory, and a program
that opens a store may need no digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 digest."""
    import hashlib

    return hashlib.sha256(data).digest()


def md5(data: bytes = b"") -> _Hash:
    """Return an MD5 hash to which data can be added. It identifies data and does not protect it."""
    import hashlib

    return hashlib.md5(data, usedforsecurity=False)


def digest(name: str, data: bytes = b"") -> bytes:
    """Return the digest by a hash with this name, such as `sha1`."""
    import hashlib

    return hashlib.new(name, data).digest()


def keyed(key: bytes, data: bytes, name: str) -> bytes:
    """Return the HMAC by the hash with this name."""
    import hmac

    return hmac.digest(key, data, name)


def equal(one: bytes, other: bytes) -> bool:
    """Return whether two values are equal, in a time that does not depend on where they differ."""
    import hmac

    return hmac.compare_digest(one, other)
