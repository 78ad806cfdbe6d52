"""The keystrings of numbers: equal numbers give equal bytes whatever their types, and order is exact.

    1E                    NaN, below all numbers
    1F | 8 bytes          <= -2^63: as 33, inverted
    20..27 | 8..1 bytes   integer part < 0 and above -2^63: as 2B..32, inverted
    28 | 8 bytes          between -1 and 0: as 2A, inverted
    29                    zero
    2A | 8 bytes          between 0 and 1
    2B..32 | 1..8 bytes   from 1 below 2^63, by the bytes k that `integer part << 1` needs; when there is
                          a fraction the lowest bit is 1 and the value goes on to 8 bytes
    33 | 8 bytes          >= 2^63

A decimal that equals no double is written as the double next to it towards zero, with a mark in the lowest
two bits (one bit at 33 and below 2^-255) that announces what follows, and mostly a continuation of 8 bytes:
the distance from that double, in units of the 34th digit.

    mark 0   it is the double            mark 2   it is the double rounded up to 15 digits (0.1, 1.23)
    mark 1   continuation, less than that         mark 3   continuation, more than that

Decimals beyond the largest double, and below the smallest normal one, hold themselves in 16 bytes, scaled
to 34 digits. Source: the project's reference, section 2.6, and published accounts of KeyString V1; how
MongoDB writes decimals below 2.2E-308 is not among those, so there only the order is promised.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from struct import Struct
from typing import Final

ZERO: Final = b"\x29"
NAN: Final = b"\x1e"

_POSITIVE: Final = tuple(bytes((0x2B + k - 1,)) for k in range(9))
_NEGATIVE: Final = tuple(bytes((0x27 - k + 1,)) for k in range(9))
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
    """The keystring of an integer of at most 64 bits."""
    if number > 0:
        shifted = number << 1
        size = (shifted.bit_length() + 7) >> 3
        return _POSITIVE[size] + shifted.to_bytes(size, "big")
    if number == 0:
        return ZERO
    if number == -TWO_63:
        return double_key(-float(TWO_63))
    shifted = -number << 1
    size = (shifted.bit_length() + 7) >> 3
    return _NEGATIVE[size] + ((1 << 8 * size) - 1 - shifted).to_bytes(size, "big")


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
