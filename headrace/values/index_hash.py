"""The hash under which a hashed index stores a value. It is MongoDB's, so that `$toHashedIndexKey` agrees.

    the first 8 bytes, as a signed little-endian number, of the MD5 of: 4 zero bytes (the seed), then the value
    value    its type's rank in the order of types (4 bytes, little-endian), then
             numbers: truncated to 64 bits, as 8 bytes · objects, arrays: their elements, and an end (rank 0, a 00)
             code with scope: its text, then its scope's elements · others: their bytes as in BSON
    element  its rank, its name with a closing zero byte, then as a value

Rule: equal values have the same hash, whatever their types. Different values may share a hash (1 and 1.5 do).
Source: MongoDB's documentation of hashed indexes and `$toHashedIndexKey`, and the answers of its servers.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from bson import Decimal128, ObjectId

from headrace.hashing import md5
from headrace.values.bson import encode, iter_elements

_RANKS: Final = {
    0x01: 10, 0x02: 15, 0x03: 20, 0x04: 25, 0x05: 30, 0x06: 0, 0x07: 35, 0x08: 40, 0x09: 45, 0x0A: 5, 0x0B: 50,
    0x0C: 55, 0x0D: 60, 0x0E: 15, 0x0F: 65, 0x10: 10, 0x11: 47, 0x12: 10, 0x13: 10, 0x7F: 127, 0xFF: -1,
}  # fmt: skip
"""The rank of a type, by BSON type."""
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_rank: Final = Struct("<i").pack
_long: Final = Struct("<q").pack
_double: Final = Struct("<d").unpack


def hash_of(value: Any) -> int:
    """The hash of a Python value (of the types of `values/bson`)."""
    if type(value) is str:
        text = value.encode()
        return _hashed(_TEXT + (len(text) + 1).to_bytes(4, "little") + text + b"\0")
    if type(value) is ObjectId:
        return _hashed(_OBJECT_ID + value.binary)
    raw = encode({"": value})
    ((kind, _, start, end),) = iter_elements(raw)
    return hash_of_element(kind, raw[start:end])


def hash_of_element(kind: int, value: bytes) -> int:
    """The hash of a raw BSON element."""
    pieces = [b"\0\0\0\0"]
    _add(pieces, kind, None, value)
    return _hashed(b"".join(pieces))


def _hashed(data: bytes) -> int:
    return int.from_bytes(md5(data).digest()[:8], "little", signed=True)


_TEXT: Final = b"\0\0\0\0" + _rank(_RANKS[0x02])
_OBJECT_ID: Final = b"\0\0\0\0" + _rank(_RANKS[0x07])
NULL_HASH: Final = int.from_bytes(bytes.fromhex("f7b8810a025e7520"), "little", signed=True)
"""The hash of null and of a missing value."""


def _add(pieces: list[bytes], kind: int, name: bytes | None, value: bytes) -> None:
    pieces.append(_rank(_RANKS[kind]))
    if name is not None:
        pieces += (name, b"\0")
    if kind in (0x03, 0x04):
        _add_elements(pieces, value)
    elif kind == 0x0F:
        size = int.from_bytes(value[4:8], "little")
        pieces.append(value[8 : 8 + size])
        _add_elements(pieces, value[8 + size :])
    else:
        number = _number(kind, value)
        pieces.append(value if number is None else _long(number))


def _add_elements(pieces: list[bytes], document: bytes) -> None:
    for kind, name, start, end in iter_elements(document):
        _add(pieces, kind, name, document[start:end])
    pieces += (_rank(0), b"\0")


def _number(kind: int, value: bytes) -> int | None:
    """A number truncated to a 64-bit integer, NaN to 0; None if the element is not a number."""
    if kind in (0x10, 0x12):
        return int.from_bytes(value, "little", signed=True)
    if kind == 0x01:
        number = _double(value)[0]
        if number != number:  # noqa: PLR0124
            return 0
        return _bounded(number) if abs(number) >= 1 << 63 else int(number)
    if kind != 0x13:
        return None
    decimal = Decimal128.from_bid(value).to_decimal()
    if decimal.is_nan():
        return 0
    return _bounded(decimal) if decimal.is_infinite() or decimal.adjusted() > 18 else _bounded(int(decimal))


def _bounded(number: Any) -> int:
    return _LEAST if number <= _LEAST else _GREATEST if number >= _GREATEST else int(number)
