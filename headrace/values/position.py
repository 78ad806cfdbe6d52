"""Positions: a point in the oplog as one 64-bit integer, `seconds << 32 | increment`.

Rule: positions sort in commit order, so comparing integers is enough.

    Position        seconds (32 bits) | increment (32 bits)
    as a key        the same 8 bytes, big-endian: sorts as the positions do
    as BSON value   the same 8 bytes, little-endian (the value of a Timestamp in a document)
"""

from __future__ import annotations

from typing import Final, TypeAlias

from bson import Timestamp

Position: TypeAlias = int

FIRST: Final[Position] = 0
LAST: Final[Position] = (1 << 64) - 1

_INCREMENT_MASK: Final = (1 << 32) - 1


def position(seconds: int, increment: int) -> Position:
    """The position of the `increment`-th commit of the second `seconds`; both fit 32 bits unsigned."""
    return seconds << 32 | increment


def from_timestamp(timestamp: Timestamp) -> Position:
    """The position of a Timestamp."""
    return timestamp.time << 32 | timestamp.inc


def to_timestamp(at: Position) -> Timestamp:
    """The Timestamp of a position, as clients see it."""
    return Timestamp(at >> 32, at & _INCREMENT_MASK)


def shell_text(at: Position) -> str:
    """The position as MongoDB's messages write a Timestamp: `Timestamp(seconds, increment)`."""
    return f"Timestamp({seconds(at)}, {increment(at)})"


def seconds(at: Position) -> int:
    """The seconds since the Unix epoch: the upper half."""
    return at >> 32


def increment(at: Position) -> int:
    """The number of the commit within its second: the lower half."""
    return at & _INCREMENT_MASK


def to_key(at: Position) -> bytes:
    """The 8 bytes of the position, big-endian. They sort like positions."""
    return at.to_bytes(8, "big")


def from_key(key: bytes | memoryview) -> Position:
    """The inverse of `to_key`; `key` is exactly 8 bytes."""
    return int.from_bytes(key, "big")


def to_bson_value(at: Position) -> bytes:
    """The 8 value bytes of a BSON Timestamp."""
    return at.to_bytes(8, "little")


def from_bson_value(value: bytes | memoryview) -> Position:
    """The position in the 8 value bytes of a BSON Timestamp."""
    return int.from_bytes(value, "little")
