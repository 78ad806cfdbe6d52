"""Keystrings: any BSON value as bytes that sort in MongoDB's order of values (KeyString V1, ascending).

Rule: comparing two keystrings as bytes is equivalent to comparing the values, for all types and any nesting. Equal
numbers have equal keystrings whatever their types (1, 1.0, NumberLong(1), NumberDecimal("1.00")). Type bits hold the
information that a keystring lacks: the type of a number, symbol or string, and the trailing zeros of a decimal. They
are stored separately, as a bit stream.

    value      type byte | payload              a prefix of another's only where a string has a 00: "x", "x\\0y"
    string     3C | UTF-8, each 00 written 00 FF | 00
    object     46 | (general type byte of the field | name 00 | its complete keystring)* | 00
    array      50 | keystrings of the items | 00
    binData    5A | length byte, or FF and 4 bytes when 255 or more | subtype | data
    numbers    as follows

    1E                    NaN, below all numbers
    1F | 8 bytes          <= -2^63: as 33, inverted
    20..27 | 8..1 bytes   integer part < 0 and above -2^63: as 2B..32, inverted
    28 | 8 bytes          between -1 and 0: as 2A, inverted
    29                    zero
    2A | 8 bytes          between 0 and 1
    2B..32 | 1..8 bytes   from 1 below 2^63, by the bytes k that `integer part << 1` needs; when there is
                          a fraction the lowest bit is 1 and the value goes on to 8 bytes
    33 | 8 bytes          >= 2^63

A decimal that equals no double is written as the double next to it towards zero, with a mark in the lowest two bits
(one bit at 33 and below 2^-255) that announces what follows, and mostly a continuation of 8 bytes: the distance from
that double, in units of the 34th digit.

    mark 0   it is the double            mark 2   it is the double rounded up to 15 digits (0.1, 1.23)
    mark 1   continuation, less than that         mark 3   continuation, more than that

Decimals beyond the largest double, and below the smallest normal one, hold themselves in 16 bytes, scaled to 34 digits.

The type bits:

    string 0 · symbol 1 · int 00 · long 01 · double 10 · decimal 11, then the lowest 6 bits of the exponent
    decimal NaN and infinities 11 · -0.0 (double) 11000
    decimal zero 11, then 1 + (e >> 12) in 3 bits, then 12 bits of e, the exponent (+ 12288 if negative)

Bits are in the order of the values (including values in objects and arrays), the highest bit of a group first. Each
byte is filled from its lowest bit. Other types have no type bits. Stored form, if any bit is 1:

    1 byte below 80: itself | up to 127 bytes: (80 | size) bytes | more: 80, size as uint32 little-endian, bytes

A key of several values is their concatenated keystrings. The end byte 04 closes a resume token. Keys in the store have
no end byte. Source: the KeyString description in the project's reference, section 2.6, and published accounts of
KeyString V1; how MongoDB writes decimals below 2.2E-308 is not among those, so there only the order is promised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from struct import Struct
from typing import Any, Final

from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.values import bson

ZERO: Final = b"\x29"
NAN: Final = b"\x1e"

_POSITIVE: Final = tuple(bytes((0x2B + k - 1,)) for k in range(9))
_NEGATIVE: Final = tuple(bytes((0x27 - k + 1,)) for k in range(9))
_POSITIVE_LEAST: Final = tuple(0x2B + k - 1 << 8 * k for k in range(9))
_NEGATIVE_MOST: Final = tuple((0x27 - k + 2 << 8 * k) - 1 for k in range(9))
"""Each kind with `k` bytes after it, as one number: an integer's keystring is the sum or the difference."""
_ALL_ONES: Final = (1 << 64) - 1
_FRACTION_SCALES: Final = tuple(float(256**k) for k in range(8))

TWO_53: Final = 1 << 53
TWO_63: Final = 1 << 63
DOUBLE_MAX: Final = 1.7976931348623157e308
DOUBLE_MIN_NORMAL: Final = 2.2250738585072014e-308
TWO_MARK_BITS_MIN: Final = 2.0**-255
SMALL_SCALE: Final = 2.0**256

MARK_EQUAL, MARK_LESS, MARK_FIFTEEN_DIGITS, MARK_MORE = range(4)

EXPONENT_BIAS: Final = 6176
COEFFICIENT_MAX: Final = 10**34 - 1
_EXACT: Final = Context(prec=80, Emin=-9999, Emax=9999)
_DOWN_34: Final = Context(prec=34, rounding=ROUND_DOWN, Emin=-6143, Emax=6144)
_UP_15: Final = Context(prec=15, rounding=ROUND_UP, Emin=-6143, Emax=6144)

_double_bits: Final = Struct("<d").pack
_two_words: Final = Struct("<QQ").unpack


def integer_key(number: int) -> bytes:
    """The keystring of an integer. One of more than 64 bits raises the error of `encode_values`."""
    if number > 0:
        shifted = number << 1
        size = (shifted.bit_length() + 7) >> 3
        return (_POSITIVE_LEAST[size] + shifted).to_bytes(size + 1, "big") if size <= 8 else encode_values((number,))
    if number == 0:
        return ZERO
    if number == -TWO_63:
        return double_key(-float(TWO_63))
    shifted = -number << 1
    size = (shifted.bit_length() + 7) >> 3
    return (_NEGATIVE_MOST[size] - shifted).to_bytes(size + 1, "big") if size <= 8 else encode_values((number,))


def double_key(number: float, mark: int = MARK_EQUAL) -> bytes:
    """The keystring of a double. With another `mark`, the keystring of a decimal next to it, without its
    continuation."""
    magnitude = abs(number)
    negative = number < 0
    if magnitude >= TWO_63:
        return _large(magnitude, negative, mark)
    if magnitude >= 1.0:
        integer = int(magnitude)
        if mark == MARK_EQUAL and integer == magnitude:
            return integer_key(-integer if negative else integer)
        return _with_fraction(magnitude, integer, negative, mark)
    if magnitude > 0.0:
        return _small(magnitude, negative, mark)
    return ZERO if number == 0.0 else NAN


def _eight(word: int, negative: bool) -> bytes:
    """8 bytes big-endian, inverted for negative numbers so that greater magnitudes sort first."""
    return (_ALL_ONES - word if negative else word).to_bytes(8, "big")


def _bits(number: float) -> int:
    return int.from_bytes(_double_bits(number), "little")


def _large(magnitude: float, negative: bool, mark: int) -> bytes:
    """A key for 2^63 and above: the top exponent bit is always set, so its bit holds the mark. Infinity is all ones."""
    if math.isinf(magnitude):
        word = _ALL_ONES
    else:
        word = (_bits(magnitude) << 1) & (TWO_63 - 1) | (mark != MARK_EQUAL)
    return (b"\x1f" if negative else b"\x33") + _eight(word, negative)


def _with_fraction(magnitude: float, integer: int, negative: bool, mark: int) -> bytes:
    """A key from 1 up to 2^53: integer part and fraction in 8 bytes, the fraction after the integer part's bytes."""
    size = ((integer << 1).bit_length() + 7) >> 3
    spare = 8 - size
    word = int(magnitude * _FRACTION_SCALES[spare]) + ((integer + 1) << 8 * spare) | mark
    return (_NEGATIVE if negative else _POSITIVE)[size] + _eight(word, negative)


def _small(magnitude: float, negative: bool, mark: int) -> bytes:
    """A key below 1: the double's bits, moved up by two if the exponent's top bits allow, otherwise by one."""
    if magnitude >= TWO_MARK_BITS_MIN:
        word = _bits(magnitude) << 2 | mark
    else:
        word = (_bits(magnitude * SMALL_SCALE) << 1 | (mark != MARK_EQUAL)) + (1 << 62)
    return (b"\x28" if negative else b"\x2a") + _eight(word, negative)


def read_decimal128(value: bytes) -> tuple[bool, int, int] | None:
    """`(negative, biased exponent, coefficient)` of 16 BSON bytes; None for NaN and infinities.

    A coefficient above 34 digits is not canonical and counts as zero, as IEEE 754 says.
    """
    low, high = _two_words(value)
    negative = bool(high >> 63)
    if high >> 61 & 3 == 3:
        if high >> 59 & 15 == 15:
            return None
        return negative, high >> 47 & 0x3FFF, 0
    coefficient = (high & ((1 << 49) - 1)) << 64 | low
    return negative, high >> 49 & 0x3FFF, coefficient if coefficient <= COEFFICIENT_MAX else 0


def decimal_key(value: bytes) -> bytes:
    """The keystring of a decimal, given its 16 BSON bytes."""
    decoded = read_decimal128(value)
    if decoded is None:
        high = value[15]
        return NAN if high & 0x7C == 0x7C else double_key(-math.inf if high & 0x80 else math.inf)
    negative, exponent, coefficient = decoded
    if not coefficient:
        return ZERO
    magnitude = Decimal(coefficient).scaleb(exponent - EXPONENT_BIAS, _EXACT)
    below = double_towards_zero(magnitude)
    if Decimal(below) == magnitude:
        return double_key(-below if negative else below)
    if below >= DOUBLE_MAX:
        high, low = _scaled_words(exponent, coefficient)
        return (b"\x1f" if negative else b"\x33") + _eight(high | TWO_63, negative) + _eight(low, negative)
    if below < DOUBLE_MIN_NORMAL:
        return _tiny_decimal(below, exponent, coefficient, negative)
    if TWO_53 <= below < TWO_63:
        return _long_decimal(magnitude, negative)
    return _decimal_near_double(magnitude, below, negative)


def double_towards_zero(magnitude: Decimal) -> float:
    """The greatest finite double that is not above a positive decimal."""
    nearest = float(magnitude)
    return math.nextafter(nearest, 0.0) if Decimal(nearest) > magnitude else nearest


def rounded_up_to_15_digits(double: float) -> Decimal:
    """The least decimal of 15 digits that is not below a positive double."""
    return _UP_15.create_decimal(double)


def cut_to_34_digits(number: Decimal) -> tuple[int, int]:
    """(coefficient, exponent) of a positive number truncated, or padded with zeros, to exactly 34 digits."""
    cut = _DOWN_34.plus(number)
    exponent = cut.adjusted() - 33
    return int(cut.scaleb(-exponent, _EXACT)), exponent


def _decimal_near_double(magnitude: Decimal, below: float, negative: bool) -> bytes:
    signed = -below if negative else below
    if below >= TWO_63 or below < TWO_MARK_BITS_MIN:
        return double_key(signed, MARK_MORE) + _continuation(magnitude, Decimal(below), negative)
    rounded = rounded_up_to_15_digits(below)
    if magnitude == rounded:
        return double_key(signed, MARK_FIFTEEN_DIGITS)
    mark = MARK_LESS if magnitude < rounded else MARK_MORE
    return double_key(signed, mark) + _continuation(magnitude, Decimal(below), negative)


def _continuation(magnitude: Decimal, start: Decimal, negative: bool) -> bytes:
    """The distance of the decimal from `start`, in units of the 34th digit of `start`: 8 bytes."""
    coefficient, exponent = cut_to_34_digits(start)
    return _eight(int(magnitude.scaleb(-exponent, _EXACT)) - coefficient, negative)


def _long_decimal(magnitude: Decimal, negative: bool) -> bytes:
    """A key from 2^53 up to 2^63, where doubles have gaps: the exact integer part, then the fraction."""
    integer = int(magnitude)
    if integer == magnitude:
        return integer_key(-integer if negative else integer)
    size = ((integer << 1).bit_length() + 7) >> 3
    word = integer << 1 | 1
    if size < 8:
        word = word << 8 | MARK_MORE
    head = (_NEGATIVE if negative else _POSITIVE)[size] + _eight(word, negative)
    return head + _continuation(magnitude, Decimal(integer), negative)


def _tiny_decimal(below: float, exponent: int, coefficient: int, negative: bool) -> bytes:
    """A key below the normal doubles: the double, if it is not zero, then the decimal itself."""
    high, low = _scaled_words(exponent, coefficient)
    itself = _eight(high, negative) + _eight(low, negative)
    if not below:
        return (b"\x28" if negative else b"\x2a") + itself
    return _small(below, negative, MARK_MORE) + itself


def _scaled_words(exponent: int, coefficient: int) -> tuple[int, int]:
    """(high, low) words of the decimal without its sign, padded with zeros to 34 digits or as many as it can have."""
    shift = min(34 - len(str(coefficient)), exponent)
    coefficient *= 10**shift
    return (exponent - shift) << 49 | coefficient >> 64, coefficient & _ALL_ONES


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


DIRECT_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    bool: lambda value: b"\x6f" if value else b"\x6e",
    DatetimeMS: lambda value: b"\x78" + (int(value) + (1 << 63)).to_bytes(8, "big"),
    float: double_key,
    int: integer_key,
    Int64: integer_key,
    type(None): lambda value: b"\x14",
    ObjectId: lambda value: b"d" + value.binary,
    str: _text,
}
"""The fast encoders of the most common types."""


# Type bits.


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
