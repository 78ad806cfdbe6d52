"""Walks raw BSON without decoding it: the type, name and range of each element of a document.

Rule: documents stay bytes where only the range of a field is needed. Only names are copied.

    document   int32 total | element* | 00
    element    type (1 byte) | name 00 | value

An element is `(type, name, start, end)`: the type byte (255 is minKey), the name as bytes and the half-open range of
its value in `data`. The input was validated by the codec or written by Headrace. A malformed document raises
`bson.InvalidBSON`, but not every malformed document is detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error
from typing import Final, TypeAlias

from bson import InvalidBSON

RawElement: TypeAlias = tuple[int, bytes, int, int]

# The size of a value: (fixed bytes, whether an int32 at its start adds to them).
_SIZES: Final[dict[int, tuple[int, bool]]] = {
    0x01: (8, False), 0x02: (4, True), 0x03: (0, True), 0x04: (0, True), 0x05: (5, True), 0x06: (0, False),
    0x07: (12, False), 0x08: (1, False), 0x09: (8, False), 0x0A: (0, False), 0x0C: (16, True), 0x0D: (4, True),
    0x0E: (4, True), 0x0F: (0, True), 0x10: (4, False), 0x11: (8, False), 0x12: (8, False), 0x13: (16, False),
    0x7F: (0, False), 0xFF: (0, False),
}  # fmt: skip
FIXED: Final = [-1] * 256
"""The size of a value, for each type with a fixed size; -1 for other types."""
COUNTED: Final = [-1] * 256
"""The bytes of a value that the int32 at its start does not include; -1 for types without that int32."""
for _type, (_base, _counted) in _SIZES.items():
    (COUNTED if _counted else FIXED)[_type] = _base

_REGEX: Final = 0x0B
_int32_at: Final = Struct("<i").unpack_from


def value_size(bson_type: int, data: bytes, offset: int) -> int:
    """The size in bytes of the value of this type that starts at `offset`. Raises `bson.InvalidBSON`."""
    size = FIXED[bson_type]
    if size >= 0:
        return size
    base = COUNTED[bson_type]
    if base >= 0:
        try:
            return base + int(_int32_at(data, offset)[0])
        except error:
            raise InvalidBSON("a length lies beyond the end of its document") from None
    if bson_type != _REGEX:
        raise InvalidBSON(f"unknown BSON type {bson_type}")
    return _end_of_name(data, _end_of_name(data, offset)) - offset


def iter_elements(data: bytes, start: int = 0) -> Iterator[RawElement]:
    """The elements of the document (or array) that starts at `start` in `data`, in order. Raises `bson.InvalidBSON`."""
    at = start + 4
    while bson_type := _type_at(data, at):
        name_end = data.find(b"\0", at + 1)
        if name_end < 0:
            raise InvalidBSON("a field name does not end")
        value = name_end + 1
        size = FIXED[bson_type]
        end = value + (size if size >= 0 else value_size(bson_type, data, value))
        yield bson_type, data[at + 1 : name_end], value, end
        at = end


def find_element(data: bytes, name: bytes, start: int = 0) -> tuple[int, int, int] | None:
    """`(type, start, end)` of the first field named `name` in the document at `start`, or None."""
    at = start + 4
    wanted = name + b"\0"
    try:
        while bson_type := data[at]:
            at += 1
            if data.startswith(wanted, at):
                value = at + len(wanted)
                return bson_type, value, value + value_size(bson_type, data, value)
            value = data.find(b"\0", at) + 1
            if not value:
                raise InvalidBSON("a field name does not end")
            size = FIXED[bson_type]
            if size >= 0:
                at = value + size
            elif (base := COUNTED[bson_type]) >= 0:
                at = value + base + _int32_at(data, value)[0]
            else:
                at = value + value_size(bson_type, data, value)
    except (IndexError, error):
        raise InvalidBSON("a value lies beyond the end of its document") from None
    return None


def first_element(data: bytes, start: int = 0) -> RawElement | None:
    """The first element of the document at `start`, or None if it is empty."""
    bson_type = _type_at(data, start + 4)
    if not bson_type:
        return None
    value = _end_of_name(data, start + 5)
    return bson_type, data[start + 5 : value - 1], value, value + value_size(bson_type, data, value)


def _type_at(data: bytes, at: int) -> int:
    try:
        return data[at]
    except IndexError:
        raise InvalidBSON("a value lies beyond the end of its document") from None


def _end_of_name(data: bytes, at: int) -> int:
    """The offset after the 00 that ends the name (or any C string) starting at `at`."""
    end = data.find(b"\0", at)
    if end < 0:
        raise InvalidBSON("a C string does not end")
    return end + 1
