"""Decodes keystrings to raw BSON: the inverse of `encoding.py`, given the type bits.

Rule: with its type bits a keystring decodes to exactly the bytes from which it was made. Two values are exceptions: a
NaN becomes the canonical NaN, and a non-canonical decimal becomes zero. Without type bits, integral numbers decode to
int or long, other numbers to double, or to decimal if no double is equal; symbols decode to strings. Type bits that do
not fit a number (a client may send any) are corrected rather than refused.

Errors that a client can cause: 50811 for an unknown type byte, 15 for a truncated key or a key nested too deeply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from struct import Struct
from typing import Final

from headrace import limits
from headrace.errors import CommandError
from headrace.values.keystring.encoding import (
    COEFFICIENT_MAX,
    DECIMAL,
    DECIMAL_ZERO,
    DOUBLE,
    DOUBLE_MIN_NORMAL,
    EXPONENT_BIAS,
    INT,
    LONG,
    MARK_EQUAL,
    MARK_FIFTEEN_DIGITS,
    MARK_MORE,
    NEGATIVE_ZERO_OFFSET,
    SMALL_SCALE,
    STORED_EXPONENT_BITS,
    TWO_63,
    TypeBitsReader,
    cut_to_34_digits,
    rounded_up_to_15_digits,
)

_INT, _LONG, _DOUBLE, _DECIMAL = 0x10, 0x12, 0x01, 0x13
_ALL_ONES: Final = (1 << 64) - 1
_BIASED_EXPONENT_MAX: Final = 12287
_EXACT: Final = Context(prec=80, Emin=-99999, Emax=99999)
_pack_double: Final = Struct("<d").pack
_unpack_double: Final = Struct("<d").unpack
_DECIMAL_NAN: Final = bytes(15) + b"\x7c"
_DECIMAL_INFINITY: Final = {False: bytes(15) + b"\x78", True: bytes(15) + b"\xf8"}

TypedValue = tuple[int, bytes]


class KeyCursor:
    """A position in a keystring and in its type bits. Reading past the end raises CommandError 15."""

    __slots__ = ("_key", "at", "bits")

    def __init__(self, key: bytes, type_bits: bytes | None, start: int = 0) -> None:
        self._key = key
        self.at = start
        """The offset in the key of the next byte to read."""
        self.bits = TypeBitsReader(type_bits)

    def at_end(self) -> bool:
        """Whether the key is read to its end."""
        return self.at >= len(self._key)

    def byte(self) -> int:
        """The next byte, as an int. Raises 15."""
        return self.take(1)[0]

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises 15."""
        start = self.at
        self.at = start + size
        if self.at > len(self._key):
            raise _cut_short(size, len(self._key) - start, start)
        return self._key[start : self.at]

    def word(self, negative: bool) -> int:
        """The next 8 bytes as a big-endian integer, complemented if `negative`."""
        word = int.from_bytes(self.take(8), "big")
        return _ALL_ONES - word if negative else word

    def until_zero(self) -> bytes:
        """The bytes before the next 00, which is consumed."""
        end = self._key.find(b"\0", self.at)
        if end < 0:
            raise _cut_short(1, 0, len(self._key))
        text = self._key[self.at : end]
        self.at = end + 1
        return text

    def escaped(self) -> bytes:
        """The bytes before the first 00 that is not followed by FF, with 00 FF unescaped to 00."""
        end = self._key.find(b"\0", self.at)
        while end >= 0 and self._key[end + 1 : end + 2] == b"\xff":
            end = self._key.find(b"\0", end + 2)
        if end < 0:
            raise _cut_short(1, 0, len(self._key))
        text = self._key[self.at : end]
        self.at = end + 1
        return text.replace(b"\0\xff", b"\0")


def _cut_short(wanted: int, left: int, offset: int) -> CommandError:
    return CommandError(15, f"buffer size too small to read ({wanted}) bytes out of buffer[{left}] at offset: {offset}")


def read_number(cursor: KeyCursor, type_byte: int) -> TypedValue:
    """The number whose type byte (1E to 33) was just read, as (BSON type, raw value)."""
    kind = cursor.bits.read_number()
    if type_byte == 0x29:
        return _zero(cursor, kind)
    if type_byte == 0x1E:
        return (_DECIMAL, _DECIMAL_NAN) if kind == DECIMAL else (_DOUBLE, _pack_double(float("nan")))
    negative = type_byte < 0x29
    if type_byte in (0x28, 0x2A):
        return _small(cursor, kind, negative)
    if type_byte in (0x1F, 0x33):
        return _large(cursor, kind, negative)
    return _middle(cursor, kind, negative, 0x27 - type_byte + 1 if negative else type_byte - 0x2B + 1)


def _zero(cursor: KeyCursor, kind: int) -> TypedValue:
    if kind == DOUBLE:
        return _DOUBLE, _pack_double(0.0)
    if kind != DECIMAL:
        return (_LONG, bytes(8)) if kind == LONG else (_INT, bytes(4))
    zero = cursor.bits.read(3)
    if zero < DECIMAL_ZERO:
        return _DOUBLE, _pack_double(-0.0)
    which = (zero - DECIMAL_ZERO) << 12 | cursor.bits.read(12)
    negative, exponent = divmod(which, NEGATIVE_ZERO_OFFSET)
    return _DECIMAL, _decimal_bytes(bool(negative), exponent, 0)


def _middle(cursor: KeyCursor, kind: int, negative: bool, size: int) -> TypedValue:
    """A number with 1 <= magnitude < 2^63 whose doubled integer part has `size` bytes."""
    head = int.from_bytes(cursor.take(size), "big")
    if negative:
        head = (1 << 8 * size) - 1 - head
    if not head & 1:
        return _integer(cursor, kind, -(head >> 1) if negative else head >> 1)
    spare = 8 - size
    rest = int.from_bytes(cursor.take(spare), "big")
    if negative:
        rest = (1 << 8 * spare) - 1 - rest
    mark = rest & 3 if spare else MARK_MORE
    integer = Decimal(head >> 1)
    if kind != DOUBLE and integer >= 1 << 53:
        return _decimal(cursor, kind, negative, _continued(cursor, negative, integer))
    double = ((head >> 1 << 8 * spare) + (rest & ~3)) / float(256**spare)
    return _double_or_adjacent(cursor, kind, negative, double, mark)


def _integer(cursor: KeyCursor, kind: int, number: int) -> TypedValue:
    if kind == DECIMAL:
        return _decimal(cursor, kind, number < 0, Decimal(abs(number)))
    if kind == DOUBLE:
        return _DOUBLE, _pack_double(float(number))
    if kind == INT and -(1 << 31) <= number < 1 << 31:
        return _INT, number.to_bytes(4, "little", signed=True)
    return _LONG, number.to_bytes(8, "little", signed=True)


def _large(cursor: KeyCursor, kind: int, negative: bool) -> TypedValue:
    """A number with magnitude >= 2^63, infinity, or a decimal beyond the doubles."""
    word = cursor.word(negative)
    if word == _ALL_ONES:
        infinity = _pack_double(float("-inf" if negative else "inf"))
        return (_DECIMAL, _DECIMAL_INFINITY[negative]) if kind == DECIMAL else (_DOUBLE, infinity)
    if word & TWO_63:
        return _decimal(cursor, kind, negative, _itself(word - TWO_63, cursor.word(negative)))
    if kind == LONG and negative:
        return _LONG, (-TWO_63).to_bytes(8, "little", signed=True)
    double = _from_bits(word >> 1 | 1 << 62)
    return _double_or_adjacent(cursor, kind, negative, double, MARK_MORE if word & 1 else MARK_EQUAL)


def _small(cursor: KeyCursor, kind: int, negative: bool) -> TypedValue:
    """A number with 0 < magnitude < 1."""
    word = cursor.word(negative)
    prefix = word >> 62
    if prefix == 3:
        return _double_or_adjacent(cursor, kind, negative, _from_bits((word & ~3) >> 2), word & 3)
    if prefix == 0:
        return _decimal(cursor, kind, negative, _itself(word, cursor.word(negative)))
    double = _from_bits((word - (1 << 62)) >> 1) / SMALL_SCALE
    if word & 1 and double < DOUBLE_MIN_NORMAL:
        return _decimal(cursor, kind, negative, _itself(cursor.word(negative), cursor.word(negative)))
    return _double_or_adjacent(cursor, kind, negative, double, MARK_MORE if word & 1 else MARK_EQUAL)


def _double_or_adjacent(cursor: KeyCursor, kind: int, negative: bool, double: float, mark: int) -> TypedValue:
    """The double, or the decimal that equals the double or lies just beyond it."""
    if mark == MARK_EQUAL or not math.isfinite(double):  # Only an invalid key holds a NaN here.
        if kind == DECIMAL and math.isfinite(double):
            return _decimal(cursor, kind, negative, Decimal(double))
        return _DOUBLE, _pack_double(-double if negative else double)
    if mark == MARK_FIFTEEN_DIGITS:
        return _decimal(cursor, kind, negative, rounded_up_to_15_digits(double))
    return _decimal(cursor, kind, negative, _continued(cursor, negative, Decimal(double)))


def _continued(cursor: KeyCursor, negative: bool, start: Decimal) -> Decimal:
    coefficient, exponent = cut_to_34_digits(start)
    return Decimal(coefficient + cursor.word(negative)).scaleb(exponent, _EXACT)


def _itself(high: int, low: int) -> Decimal:
    coefficient = (high & (1 << 49) - 1) << 64 | low
    return Decimal(coefficient).scaleb((high >> 49) - EXPONENT_BIAS, _EXACT)


def _from_bits(bits: int) -> float:
    return float(_unpack_double(bits.to_bytes(8, "little"))[0])


def _decimal(cursor: KeyCursor, kind: int, negative: bool, magnitude: Decimal) -> TypedValue:
    """The decimal of this value whose exponent ends in the 6 stored bits; without stored bits, the shortest decimal."""
    least = max(magnitude.adjusted() - 33, -EXPONENT_BIAS) + EXPONENT_BIAS
    if kind == DECIMAL:
        stored = cursor.bits.read(STORED_EXPONENT_BITS)
        exponent = least + (stored - least & 63)
        coefficient = magnitude.scaleb(EXPONENT_BIAS - exponent, _EXACT)
        if coefficient == coefficient.to_integral_value() and exponent <= _BIASED_EXPONENT_MAX:
            return _DECIMAL, _decimal_bytes(negative, exponent, int(coefficient))
    plain = _EXACT.normalize(magnitude).as_tuple().exponent
    exponent = min(max(int(plain) + EXPONENT_BIAS, 0), _BIASED_EXPONENT_MAX)
    coefficient = magnitude.scaleb(EXPONENT_BIAS - exponent, _EXACT)
    return _DECIMAL, _decimal_bytes(negative, exponent, min(int(coefficient), COEFFICIENT_MAX))


def _decimal_bytes(negative: bool, exponent: int, coefficient: int) -> bytes:
    return (int(negative) << 127 | exponent << 113 | coefficient).to_bytes(16, "little")


_END: Final = 0x04


def decode_all(key: bytes, type_bits: bytes | None = None) -> list[TypedValue]:
    """All values of a key as (BSON type, raw value), up to the end byte 04 or the end of the key.

    Raises 15 and 50811.
    """
    cursor = KeyCursor(key, type_bits)
    values: list[TypedValue] = []
    while not cursor.at_end():
        type_byte = cursor.byte()
        if type_byte == _END:
            break
        values.append(_value(cursor, type_byte, 0))
    return values


def decode_value(key: bytes, type_bits: bytes | None = None) -> TypedValue:
    """The first value of a key as (BSON type, raw value). Raises 15 and 50811."""
    cursor = KeyCursor(key, type_bits)
    return _value(cursor, cursor.byte(), 0)


def value_end(key: bytes, at: int) -> int:
    """The offset after the value that begins at `at`. Raises 15 and 50811."""
    cursor = KeyCursor(key, None, at)
    _value(cursor, cursor.byte(), 0)
    return cursor.at


def _value(cursor: KeyCursor, type_byte: int, depth: int) -> TypedValue:
    if 0x1E <= type_byte <= 0x33:
        return read_number(cursor, type_byte)
    if depth > limits.KEY_NESTING_MAX:
        raise CommandError(15, "KeyString format error: nested too deeply")
    read = _READERS.get(type_byte)
    if read is None:
        raise CommandError(50811, f"KeyString format error: Unknown type: {type_byte}")
    return read(cursor, depth)


def _string_like(cursor: KeyCursor) -> bytes:
    """Escaped text in the form of BSON: int32 size, text, 00."""
    text = cursor.escaped()
    return (len(text) + 1).to_bytes(4, "little") + text + b"\0"


def _string(cursor: KeyCursor, _: int) -> TypedValue:
    return (0x0E if cursor.bits.read(1) else 0x02), _string_like(cursor)


def _document(cursor: KeyCursor, depth: int) -> bytes:
    pieces: list[bytes] = []
    while cursor.byte():  # The general type byte of a field, or the 00 that closes the object.
        name = cursor.until_zero()
        kind, value = _value(cursor, cursor.byte(), depth + 1)
        pieces += (bytes((kind,)), name, b"\0", value)
    return _framed(pieces)


def _array(cursor: KeyCursor, depth: int) -> TypedValue:
    pieces: list[bytes] = []
    index = 0
    while type_byte := cursor.byte():
        kind, value = _value(cursor, type_byte, depth + 1)
        pieces += (bytes((kind,)), str(index).encode(), b"\0", value)
        index += 1
    return 0x04, _framed(pieces)


def _framed(pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def _binary(cursor: KeyCursor, _: int) -> TypedValue:
    size = cursor.byte()
    if size == 0xFF:
        size = int.from_bytes(cursor.take(4), "big")
    return 0x05, size.to_bytes(4, "little") + cursor.take(size + 1)


def _date(cursor: KeyCursor, _: int) -> TypedValue:
    return 0x09, (int.from_bytes(cursor.take(8), "big") ^ 1 << 63).to_bytes(8, "little")


def _dbpointer(cursor: KeyCursor, _: int) -> TypedValue:
    size = int.from_bytes(cursor.take(4), "big")
    return 0x0C, (size + 1).to_bytes(4, "little") + cursor.take(size) + b"\0" + cursor.take(12)


def _code_with_scope(cursor: KeyCursor, depth: int) -> TypedValue:
    code = _string_like(cursor)
    scope = _document(cursor, depth)
    return 0x0F, (4 + len(code) + len(scope)).to_bytes(4, "little") + code + scope


_READERS: Final[dict[int, Callable[[KeyCursor, int], TypedValue]]] = {
    0x0A: lambda cursor, depth: (0xFF, b""),
    0x0F: lambda cursor, depth: (0x06, b""),
    0x14: lambda cursor, depth: (0x0A, b""),
    0x3C: _string,
    0x46: lambda cursor, depth: (0x03, _document(cursor, depth)),
    0x50: _array,
    0x5A: _binary,
    0x64: lambda cursor, depth: (0x07, cursor.take(12)),
    0x6E: lambda cursor, depth: (0x08, b"\0"),
    0x6F: lambda cursor, depth: (0x08, b"\1"),
    0x78: _date,
    0x82: lambda cursor, depth: (0x11, cursor.take(8)[::-1]),
    0x8C: lambda cursor, depth: (0x0B, cursor.until_zero() + b"\0" + cursor.until_zero() + b"\0"),
    0x96: _dbpointer,
    0xA0: lambda cursor, depth: (0x0D, _string_like(cursor)),
    0xAA: _code_with_scope,
    0xF0: lambda cursor, depth: (0x7F, b""),
}
