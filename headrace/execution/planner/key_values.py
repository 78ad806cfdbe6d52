"""The values that can be decoded from an index key alone.

These are strings, booleans, dates, timestamps and ObjectIds. Numbers cannot be decoded, because 5 and 5.0 have one key.
Nor can null, whose key a missing field has as well, nor nested values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.store.indexes.index_keys import INVERTED

NUMBER_BYTES: Final = 4
"""The length of the index number with which a key begins. The keys of `_id` have none."""


def key_values(key: bytes, descending: Sequence[bool], at: int) -> list[Any] | None:
    """Return the values of fields from a place in a key on; None if one is ambiguous."""
    values: list[Any] = []
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
    """Return (value, start of the next value); None if the key is ambiguous."""
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
    """Return a text that ends with 00. A 00 inside the text is followed by FF."""
    end = key.index(0, at)
    while key[end + 1 : end + 2] == b"\xff":
        end = key.index(0, end + 2)
    return key[at:end].replace(b"\0\xff", b"\0").decode(), end + 1
