"""An archive: snapshots of a data directory, and the oplog in segments.

    archive                                  {"format": 1, "history": hex of the directory's history id}
    snapshots/POSITION/manifest              {"position", "checksum", "takenMs", "pieces"}; written last
    snapshots/POSITION/NNNNNN                pieces of the data file, in order
    log/AFTER-LAST                           the entries strictly after AFTER up to LAST, inclusive
      CRC-32 of the entry at AFTER (4)       0 if AFTER is 0
      position (8) + entry (BSON), ...       ascending

Positions in names are 16 hexadecimal digits. Segments form a chain: each begins where another ends, and the checksum of
the entry at AFTER shows whether both belong to one history. A segment may overlap the segments that it was merged from.

All files are pieces: compressed, encrypted if there is a key, and each with a checksum of its own. The checksum
includes the name, so that a piece under another name does not match.

    plain       "HRB1" + b"\\0" + SHA-256 of the name and what follows (32) + Zstandard
    encrypted   "HRB1" + b"\\1" + nonce (12) + AES-256-GCM of Zstandard, with the name as associated data
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zstandard

from headrace.backup.places import Place
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


SNAPSHOT_PIECE_BYTES: Final = 16 << 20
SEGMENT_BYTES_MAX: Final = 16 << 20
"""A segment ends after this number of bytes of entries. Its last entry may exceed it."""
_FORMAT: Final = 1
_CHECKSUM: Final = Struct(">I")
_POSITION: Final = Struct(">Q")
_LENGTH: Final = Struct("<i")

Entry = tuple[int, bytes]
"""A position and its oplog entry."""


class BackupSnapshot(NamedTuple):
    """A snapshot: a data file at one position."""

    position: int
    checksum: int
    """The CRC-32 of the entry at the position."""
    taken_ms: int
    pieces: int


class Segment(NamedTuple):
    """The entries strictly after one position up to another, inclusive."""

    after: int
    last: int

    @property
    def name(self) -> str:
        """The segment's name in the archive."""
        return f"log/{self.after:016x}-{self.last:016x}"


class BackupArchive:
    """The archive at one place."""

    def __init__(self, place: Place, sealer: Sealer) -> None:
        self.place = place
        self._sealer = sealer

    def __str__(self) -> str:
        return str(self.place)

    def _get(self, name: str) -> bytes | None:
        piece = self.place.get(name)
        return None if piece is None else self._sealer.unseal(name, piece)

    def _put(self, name: str, data: bytes) -> None:
        self.place.put(name, self._sealer.seal(name, data))

    def _json(self, name: str) -> dict[str, Any] | None:
        data = self._get(name)
        return None if data is None else json.loads(data)

    # The history.

    def history(self) -> bytes | None:
        """Return the history id of the directory that is backed up here; None if the archive is empty.

        Raises `DamagedArchive` if the archive has another format.
        """
        about = self._json("archive")
        if about is None:
            return None
        if about["format"] != _FORMAT:
            raise DamagedArchive(f"the archive has format {about['format']}, and this version reads {_FORMAT}")
        return bytes.fromhex(about["history"])

    def begin(self, history: bytes) -> None:
        """Begin an empty archive for a history."""
        self._put("archive", json.dumps({"format": _FORMAT, "history": history.hex()}).encode())

    # Snapshots.

    def snapshots(self) -> list[BackupSnapshot]:
        """Return the complete snapshots, oldest first."""
        found = []
        for name in self.place.names("snapshots/"):
            if name.endswith("/manifest"):
                about = self._json(name) or {}
                found.append(BackupSnapshot(about["position"], about["checksum"], about["takenMs"], about["pieces"]))
        return sorted(found)

    def put_snapshot_piece(self, position: int, number: int, data: bytes) -> None:
        """Store a piece of a snapshot."""
        self._put(_piece_name(position, number), data)

    def complete_snapshot(self, snapshot: BackupSnapshot) -> None:
        """Store the manifest of a snapshot after its pieces."""
        about = {
            "position": snapshot.position, "checksum": snapshot.checksum, "takenMs": snapshot.taken_ms,
            "pieces": snapshot.pieces,
        }  # fmt: skip
        self._put(_manifest_name(snapshot.position), json.dumps(about).encode())

    def snapshot_pieces(self, snapshot: BackupSnapshot) -> Iterator[bytes]:
        """Yield the pieces of a snapshot's data file. Raises `DamagedArchive`."""
        for number in range(snapshot.pieces):
            name = _piece_name(snapshot.position, number)
            data = self._get(name)
            if data is None:
                raise DamagedArchive(f"{name} is missing")
            yield data

    def remove_snapshot(self, position: int) -> None:
        """Remove a snapshot, or the pieces of an unfinished one."""
        self.place.remove(_manifest_name(position))
        for name in self.place.names(f"snapshots/{position:016x}/"):
            self.place.remove(name)

    def unfinished_snapshots(self) -> list[int]:
        """Return the positions of snapshots without a manifest."""
        names = self.place.names("snapshots/")
        complete = {name.split("/")[1] for name in names if name.endswith("/manifest")}
        return sorted({int(name.split("/")[1], 16) for name in names if name.split("/")[1] not in complete})

    # The log.

    def segments(self) -> list[Segment]:
        """Return the segments by their beginning, the longest first. Raises `DamagedArchive` for any other name."""
        found = []
        for name in self.place.names("log/"):
            try:
                after, last = (int(part, 16) for part in name.removeprefix("log/").split("-"))
            except ValueError:
                raise DamagedArchive(f"{name} is not the name of a segment") from None
            found.append(Segment(after, last))
        return sorted(found, key=lambda segment: (segment.after, -segment.last))

    def put_segment(self, after: int, after_checksum: int, entries: list[Entry]) -> Segment:
        """Store the entries that follow the position `after`."""
        segment = Segment(after, entries[-1][0])
        data = [_CHECKSUM.pack(after_checksum)]
        for position, entry in entries:
            data += (_POSITION.pack(position), entry)
        self._put(segment.name, b"".join(data))
        return segment

    def read_segment(self, segment: Segment) -> tuple[int, list[Entry]]:
        """Return (checksum of the entry at `after`, the entries). Raises `DamagedArchive`."""
        data = self._get(segment.name)
        if data is None:
            raise DamagedArchive(f"{segment.name} is missing")
        (after_checksum,) = _CHECKSUM.unpack_from(data)
        entries, at = [], _CHECKSUM.size
        while at < len(data):
            (position,) = _POSITION.unpack_from(data, at)
            start = at + _POSITION.size
            at = start + _LENGTH.unpack_from(data, start)[0]
            entries.append((position, data[start:at]))
        if not entries or entries[-1][0] != segment.last or at != len(data):
            raise DamagedArchive(f"{segment.name} does not end where its name says")
        return after_checksum, entries

    def last_entry(self) -> Entry | None:
        """Return the newest entry of the log; None if there is no segment."""
        segments = self.segments()
        if not segments:
            return None
        return self.read_segment(max(segments, key=lambda segment: segment.last))[1][-1]

    def remove_segment(self, segment: Segment) -> None:
        """Remove a segment."""
        self.place.remove(segment.name)

    def new_entries(self, after: int, after_checksum: int) -> Iterator[Entry]:
        """Yield `entries` up to the end of the log. It ends early if segments are merged while they are read."""
        segments = self.segments()
        try:
            yield from self.entries(after, after_checksum)
        except DamagedArchive:
            if self.segments() == segments:
                raise

    def entries(self, after: int, after_checksum: int, through: int | None = None) -> Iterator[Entry]:
        """Yield the entries strictly after one position up to another, inclusive, or up to the end of the log.

        `after_checksum`: the checksum of the entry at `after`. Raises `DamagedArchive` if a segment is missing, damaged
        or belongs to another history.
        """
        segments = self.segments()
        end = max((segment.last for segment in segments), default=after)
        end = end if through is None else min(through, end)
        while after < end:
            fitting = [segment for segment in segments if segment.after <= after < segment.last]
            if not fitting:
                following = min((segment.after for segment in segments if segment.after > after), default=end)
                raise DamagedArchive(f"the log has no segment from {after:016x} to {following:016x}")
            segment = max(fitting, key=lambda item: item.last)
            first_checksum, entries = self.read_segment(segment)
            before = {segment.after: first_checksum, **{position: checksum(entry) for position, entry in entries}}
            if before.get(after) != after_checksum:
                raise DamagedArchive(f"{segment.name} is of another history: its entry at {after:016x} is another one")
            for position, entry in entries:
                if after < position <= end:
                    yield position, entry
            after, after_checksum = segment.last, before[segment.last]


def _piece_name(position: int, number: int) -> str:
    return f"snapshots/{position:016x}/{number:06d}"


def _manifest_name(position: int) -> str:
    return f"snapshots/{position:016x}/manifest"
