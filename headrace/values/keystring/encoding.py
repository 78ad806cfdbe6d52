"""Keystrings: any BSON value as bytes that sort in MongoDB's order of values (KeyString V1, ascending).

Rule: comparing two keystrings as bytes is equivalent to comparing the values, for all types and any nesting. Equal
numbers have equal keystrings whatever their types (1, 1.0, NumberLong(1), NumberDecimal("1.00")). Type bits hold the
information that a keystring lacks: the type of a number, symbol or string, and the trailing zeros of a decimal. They
are stored separately: see `typebits.py`.

    value      type byte | payload              a prefix of another's only where a string has a 00: "x", "x\\0y"
    string     3C | UTF-8, each 00 written 00 FF | 00
    object     46 | (general type byte of the field | name 00 | its complete keystring)* | 00
    array      50 | keystrings of the items | 00
    binData    5A | length byte, or FF and 4 bytes when 255 or more | subtype | data
    numbers    see `number_encoding.py`

A key of several values is their concatenated keystrings. The end byte 04 closes a resume token. Keys in the store have
no end byte. Source: the KeyString description in the project's reference, section 2.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final

from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.values import bson
from headrace.values.keystring.number_encoding import decimal_key, double_key, integer_key

END: Final = b"\x04"

_double_of: Final = Struct("<d").unpack
_from_bytes: Final = int.from_bytes


def encode_element(bson_type: int, value: bytes) -> bytes:
    """The keystring of a BSON element: its type byte (minKey is 255 or -1) and the raw bytes of its value."""
    if bson_type == 0x07:
        return b"d" + value
    if bson_type == 0x10:
        return integer_key(_from_bytes(value, "little", signed=True))
    if bson_type == 0x02:
        if value.find(0, 4) == len(value) - 1:
            return b"<" + value[4:]
        return b"<" + value[4:-1].replace(b"\0", b"\0\xff") + b"\0"
    return _ENCODERS[bson_type](value)


def encode_values(values: Iterable[Any]) -> bytes:
    """The concatenated keystrings of Python values (the types of `values/bson`)."""
    return encode_array_items(bson.encode({"": list(values)})[6:-1])


def encode_value(value: Any) -> bytes:
    """The keystring of one Python value. Common types have faster encoders, which give the same bytes."""
    encoder = DIRECT_ENCODERS.get(type(value))
    return encode_values((value,)) if encoder is None else encoder(value)


def encode_array_items(array: bytes) -> bytes:
    """The concatenated keystrings of the values of a BSON array or document, without an end byte."""
    return b"".join([encode_element(kind, array[start:end]) for kind, _, start, end in bson.iter_elements(array)])


def encode_fields(document: bytes) -> bytes:
    """The payload of a document: general type byte, name and keystring of each field, and the closing 00."""
    pieces: list[bytes] = []
    for kind, name, start, end in bson.iter_elements(document):
        pieces += (GENERAL_TYPES[kind], name, b"\0", encode_element(kind, document[start:end]))
    pieces.append(b"\0")
    return b"".join(pieces)


def _string_like(text: bytes) -> bytes:
    """Length-prefixed BSON text (without its type) as escaped bytes and their terminator."""
    return text[4:-1].replace(b"\0", b"\0\xff") + b"\0"


def _binary(value: bytes) -> bytes:
    size = len(value) - 5
    length = bytes((size,)) if size < 0xFF else b"\xff" + size.to_bytes(4, "big")
    return b"\x5a" + length + value[4:]


def _date(value: bytes) -> bytes:
    return b"\x78" + (_from_bytes(value, "little") ^ 1 << 63).to_bytes(8, "big")


def _dbpointer(value: bytes) -> bytes:
    """Namespace length, namespace, ObjectId."""
    name = value[4:-13]
    return b"\x96" + len(name).to_bytes(4, "big") + name + value[-12:]


def _code_with_scope(value: bytes) -> bytes:
    code_end = 8 + _from_bytes(value[4:8], "little")
    return b"\xaa" + _string_like(value[4:code_end]) + encode_fields(value[code_end:])


_ENCODERS: Final[dict[int, Callable[[bytes], bytes]]] = {
    -1: lambda value: b"\x0a",
    0x01: lambda value: double_key(_double_of(value)[0]),
    0x02: lambda value: b"<" + _string_like(value),
    0x03: lambda value: b"\x46" + encode_fields(value),
    0x04: lambda value: b"\x50" + encode_array_items(value) + b"\0",
    0x05: _binary,
    0x06: lambda value: b"\x0f",
    0x07: lambda value: b"d" + value,
    0x08: lambda value: b"\x6f" if value[0] else b"\x6e",
    0x09: _date,
    0x0A: lambda value: b"\x14",
    0x0B: lambda value: b"\x8c" + value,
    0x0C: _dbpointer,
    0x0D: lambda value: b"\xa0" + _string_like(value),
    0x0E: lambda value: b"<" + _string_like(value),
    0x0F: _code_with_scope,
    0x10: lambda value: integer_key(_from_bytes(value, "little", signed=True)),
    0x11: lambda value: b"\x82" + value[::-1],
    0x12: lambda value: integer_key(_from_bytes(value, "little", signed=True)),
    0x13: decimal_key,
    0x7F: lambda value: b"\xf0",
    0xFF: lambda value: b"\x0a",
}

# The byte before a field's name: one for all numbers, one for both booleans, otherwise the type byte.
GENERAL_TYPES: Final[dict[int, bytes]] = {
    0x01: b"\x1e", 0x02: b"\x3c", 0x03: b"\x46", 0x04: b"\x50", 0x05: b"\x5a", 0x06: b"\x0f", 0x07: b"\x64",
    0x08: b"\x6e", 0x09: b"\x78", 0x0A: b"\x14", 0x0B: b"\x8c", 0x0C: b"\x96", 0x0D: b"\xa0", 0x0E: b"\x3c",
    0x0F: b"\xaa", 0x10: b"\x1e", 0x11: b"\x82", 0x12: b"\x1e", 0x13: b"\x1e", 0x7F: b"\xf0", 0xFF: b"\x0a",
}  # fmt: skip


def _text(value: str) -> bytes:
    text = value.encode()
    return b"<" + (text.replace(b"\0", b"\0\xff") if b"\0" in text else text) + b"\0"


def _integer(value: int) -> bytes:
    return integer_key(value) if -(1 << 63) <= value < 1 << 63 else encode_values((value,))


DIRECT_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    bool: lambda value: b"\x6f" if value else b"\x6e",
    DatetimeMS: lambda value: b"\x78" + (int(value) + (1 << 63)).to_bytes(8, "big"),
    float: double_key,
    int: _integer,
    Int64: _integer,
    type(None): lambda value: b"\x14",
    ObjectId: lambda value: b"d" + value.binary,
    str: _text,
}
"""The fast encoders of the most common types."""
