"""A piece: the unit of an archive, compressed, encrypted if there is a key, and with a checksum of its own.

    plain       "HRB1" + b"\\0" + SHA-256 of the name and what follows (32) + Zstandard
    encrypted   "HRB1" + b"\\1" + nonce (12) + AES-256-GCM of Zstandard, with the name as associated data

The checksum includes the name, so that a piece under another name does not match.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Final

import zstandard

from headrace.hashing import sha256

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
PIECE_BYTES_MAX: Final = 64 << 20
"""The maximum size of a decompressed piece."""
_PLAIN: Final = b"HRB1\0"
_ENCRYPTED: Final = b"HRB1\1"
_NONCE_BYTES: Final = 12
_DIGEST_BYTES: Final = 32


class DamagedArchive(Exception):
    """A piece of the archive is missing, torn or altered, or does not fit the other pieces."""


class WrongKey(Exception):
    """The archive needs a key, the key is malformed, or the `cryptography` package is missing."""


class Sealer:
    """Makes and reads pieces, with or without a key."""

    def __init__(self, key: bytes | None = None) -> None:
        """`key`: 32 bytes. Raises `WrongKey`."""
        self._cipher: AESGCM | None = None
        if key is not None:
            self._cipher = _cipher(key)

    def seal(self, name: str, data: bytes) -> bytes:
        """Return a piece with this name that contains some data."""
        packed = zstandard.ZstdCompressor(level=1).compress(data)
        if self._cipher is None:
            return _PLAIN + sha256(name.encode() + b"\0" + packed) + packed
        nonce = os.urandom(_NONCE_BYTES)
        return _ENCRYPTED + nonce + self._cipher.encrypt(nonce, packed, name.encode())

    def unseal(self, name: str, piece: bytes) -> bytes:
        """Return the data of a piece. Raises `DamagedArchive` and `WrongKey`."""
        kind, rest = piece[: len(_PLAIN)], piece[len(_PLAIN) :]
        if kind == _PLAIN:
            packed = rest[_DIGEST_BYTES:]
            if sha256(name.encode() + b"\0" + packed) != rest[:_DIGEST_BYTES]:
                raise DamagedArchive(f"{name} does not match its checksum")
        elif kind == _ENCRYPTED:
            packed = self._decrypted(name, rest)
        else:
            raise DamagedArchive(f"{name} is not a piece of a Headrace archive, or is torn")
        try:
            return zstandard.ZstdDecompressor().decompress(packed, max_output_size=PIECE_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise DamagedArchive(f"{name} cannot be decompressed: {error}") from None

    def _decrypted(self, name: str, rest: bytes) -> bytes:
        if self._cipher is None:
            raise WrongKey("the archive is encrypted: give its key with --keyFile, or in HEADRACE_BACKUP_KEY")
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], name.encode())
        except (InvalidTag, ValueError):
            raise DamagedArchive(f"{name} is altered, torn, or encrypted with another key") from None


def key_of(text: str) -> bytes:
    """Return the key in a text of 64 hexadecimal digits. Raises `WrongKey`."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise WrongKey("a key is 64 hexadecimal digits, such as `openssl rand -hex 32` prints")
    return key


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise WrongKey("encryption requires the package cryptography: pip install 'headrace[backup]'") from None
    return AESGCM(key)


def checksum(entry: bytes) -> int:
    """Return the CRC-32 of an oplog entry, which distinguishes histories."""
    return zlib.crc32(entry)
