"""The values that a key of an index holds, where the key alone says what they are.

Strings, booleans, dates, timestamps and ObjectIds are in a key as they are in the document. Numbers are not: 5 and 5.0
are one key; nor is null, which a missing field has, too; nor what is nested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.store.indexes.index_keys import INVERTED

_NUMBER_BYTES: Final = 4


def key_values(key: bytes, descending: Sequence[bool]) -> list[Any] | None:
    """The values of the first fields of a key, its index's number included; None where one of them is not clear."""
    values: list[Any] = []
    at = _NUMBER_BYTES
    inverted: bytes | None = None
    for down in descending:
        if down and inverted is None:
            inverted = key.translate(INVERTED)
        read = value_at(inverted if down and inverted is not None else key, at)
        if read is None:
            return None
        value, at = read
        values.append(value)
    return values


def value_at(key: bytes, at: int) -> tuple[Any, int] | None:
    """(value, where the next begins); None where the key does not say what it is."""
    kind = key[at]
    at += 1
    if kind == 0x3C:
        return _text(key, at)
    if kind == 0x64:
        return ObjectId(key[at : at + 12]), at + 12
    if kind == 0x78:
        return DatetimeMS(int.from_bytes(key[at : at + 8], "big") - (1 << 63)), at + 8
    if kind in (0x6E, 0x6F):
        return kind == 0x6F, at
    if kind == 0x82:
        number = int.from_bytes(key[at : at + 8], "big")
        return Timestamp(number >> 32, number & 0xFFFFFFFF), at + 8
    return None


def _text(key: bytes, at: int) -> tuple[str, int]:
    """Text up to a 00; one in the text is followed by FF."""
    end = key.index(0, at)
    while key[end + 1 : end + 2] == b"\xff":
        end = key.index(0, end + 2)
    return key[at:end].replace(b"\0\xff", b"\0").decode(), end + 1
