"""Type bits: the types that a keystring does not contain, as a bit stream stored separately.

    string 0 · symbol 1 · int 00 · long 01 · double 10 · decimal 11, then the lowest 6 bits of the exponent
    decimal NaN and infinities 11 · -0.0 (double) 11000
    decimal zero 11, then 1 + (e >> 12) in 3 bits, then 12 bits of e, the exponent (+ 12288 if negative)

Bits are in the order of the values (including values in objects and arrays), the highest bit of a group first. Each
byte is filled from its lowest bit. Other types have no type bits. Stored form, if any bit is 1:

    1 byte below 80: itself | up to 127 bytes: (80 | size) bytes | more: 80, size as uint32 little-endian, bytes
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from headrace.errors import CommandError
from headrace.values import bson
from headrace.values.keystring.number_encoding import read_decimal128

INT, LONG, DOUBLE, DECIMAL = range(4)

STORED_EXPONENT_BITS: Final = 6
NEGATIVE_DOUBLE_ZERO: Final = 0
DECIMAL_ZERO: Final = 1
NEGATIVE_ZERO_OFFSET: Final = 12288
_OVERFLOW: Final = 15
_NEGATIVE_ZERO_VALUE: Final = Struct("<d").pack(-0.0)


class TypeBits:
    """A bit stream that is being written. Its first bit is the lowest of `word`."""

    __slots__ = ("count", "word")

    def __init__(self) -> None:
        self.word = 0
        self.count = 0

    def add(self, bits: int, width: int) -> None:
        """Append the lowest `width` bits of `bits`, highest first."""
        for shift in range(width - 1, -1, -1):
            self.word |= (bits >> shift & 1) << self.count
            self.count += 1

    def add_element(self, bson_type: int, value: bytes) -> None:
        """Append the type bits of a raw BSON element."""
        collect = _COLLECTORS.get(bson_type)
        if collect is not None:
            collect(self, value)

    def stored(self) -> bytes | None:
        """The stored form; None if no bit is 1, because then nothing is stored."""
        if not self.word:
            return None
        data = self.word.to_bytes((self.count + 7) >> 3, "little")
        if len(data) == 1 and data[0] < 0x80:
            return data
        if len(data) <= 0x7F:
            return bytes((0x80 | len(data),)) + data
        return b"\x80" + len(data).to_bytes(4, "little") + data


class TypeBitsReader:
    """A bit stream that is being read. Every bit past its end is 0, as without type bits."""

    __slots__ = ("_at", "_word")

    def __init__(self, stored: bytes | None) -> None:
        self._word = int.from_bytes(_unwrapped(stored), "little") if stored else 0
        self._at = 0

    def read(self, width: int) -> int:
        """The next `width` bits as an integer, highest first."""
        bits = 0
        for _ in range(width):
            bits = bits << 1 | self._word >> self._at & 1
            self._at += 1
        return bits

    def read_number(self) -> int:
        """INT, LONG, DOUBLE or DECIMAL. For DECIMAL the exponent or the kind of zero is not read yet."""
        return self.read(2)


def type_bits(document: bytes) -> bytes | None:
    """The stored type bits of all values of a raw BSON document or array; None if there are none."""
    bits = TypeBits()
    _add_items(bits, document)
    return bits.stored()


def _unwrapped(stored: bytes) -> bytes:
    """The bytes of the bits, without their size. Raises 15 if there are fewer bytes than the size says."""
    first = stored[0]
    if first < 0x80:
        return stored[:1]
    if first > 0x80:
        start, size = 1, first & 0x7F
    else:
        start, size = 5, int.from_bytes(stored[1:5], "little")
    if len(stored) < start + size:
        raise CommandError(_OVERFLOW, "type bits are shorter than they say")
    return stored[start : start + size]


def _add_items(bits: TypeBits, document: bytes) -> None:
    for kind, _, start, end in bson.iter_elements(document):
        bits.add_element(kind, document[start:end])


def _add_scope(bits: TypeBits, value: bytes) -> None:
    _add_items(bits, value[8 + int.from_bytes(value[4:8], "little") :])


def _add_double(bits: TypeBits, value: bytes) -> None:
    bits.add(*((DECIMAL << 3 | NEGATIVE_DOUBLE_ZERO, 5) if value == _NEGATIVE_ZERO_VALUE else (DOUBLE, 2)))


def _add_decimal(bits: TypeBits, value: bytes) -> None:
    bits.add(DECIMAL, 2)
    decoded = read_decimal128(value)
    if decoded is None:
        return
    negative, exponent, coefficient = decoded
    if coefficient:
        bits.add(exponent & 63, STORED_EXPONENT_BITS)
        return
    which = exponent + NEGATIVE_ZERO_OFFSET * negative
    bits.add(DECIMAL_ZERO + (which >> 12), 3)
    bits.add(which & 0xFFF, 12)


_COLLECTORS: Final[dict[int, Callable[[TypeBits, bytes], None]]] = {
    0x01: _add_double,
    0x02: lambda bits, value: bits.add(0, 1),
    0x03: _add_items,
    0x04: _add_items,
    0x0E: lambda bits, value: bits.add(1, 1),
    0x0F: _add_scope,
    0x10: lambda bits, value: bits.add(INT, 2),
    0x12: lambda bits, value: bits.add(LONG, 2),
    0x13: _add_decimal,
}
