"""Digests of bytes. OpenSSL, which computes them, is loaded with the first: it is 3.5 MB of memory, and a program that
opens a store may need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes) -> bytes:
    """The SHA-256 digest."""
    import hashlib

    return hashlib.sha256(data).digest()


def md5(data: bytes = b"") -> _Hash:
    """An MD5 hash to add to: it names data and does not protect it."""
    import hashlib

    return hashlib.md5(data, usedforsecurity=False)


def digest(name: str, data: bytes = b"") -> bytes:
    """The digest by a hash's name, such as `sha1`."""
    import hashlib

    return hashlib.new(name, data).digest()


def keyed(key: bytes, data: bytes, name: str) -> bytes:
    """The HMAC with the hash of this name."""
    import hmac

    return hmac.digest(key, data, name)


def equal(one: bytes, other: bytes) -> bool:
    """Whether they are equal, in a time that does not depend on where they differ."""
    import hmac

    return hmac.compare_digest(one, other)
