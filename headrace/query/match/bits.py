"""`$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`: masks and their tests.

Rule: integral numbers of at most 64 bits are tested in two's complement with infinite sign extension. A decimal is
rounded to an integer first; a double that is not integral never matches. Binary data is little-endian and its bits
beyond the end are clear. Source: MongoDB's manual, "Bitwise Query Operators".
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

from bson import Binary, Decimal128, Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.numbers import int64_of, no_long
from headrace.values.bson.to_string import to_string
from headrace.values.paths import ValueTest

NUMBERS: Final = (int, Int64, float, Decimal128)
OUT_OF_RANGE: Final = -(2**63)
"""Stands for a decimal that does not fit a 64-bit integer."""
SIGN_BIT: Final = 63
"""Every position beyond this one in a number repeats the sign."""
FIRST_CLEAR_BIT: Final = 8 * limits.INTERNAL_DOCUMENT_BYTES_MAX
"""A bit that is clear in every binary value. All positions beyond it are clear, too."""


@dataclass(frozen=True, slots=True)
class _Masks:
    """The same bits as two masks, one for numbers and one for binary data."""

    of_number: int
    of_bytes: int


def parse_bits(name: str, argument: Any, path: str) -> ValueTest:
    """The test of operator `name`. `argument` is a list of bit positions, a number or binary data.

    Raises 2 for an argument or position of the wrong type or range, 9 for a number that is not a non-negative integer.
    """
    masks = _parse_mask(name, argument, path)

    number_mask, holds = masks.of_number, _HOLDS[name]

    def test(value: Any) -> bool:
        kind = type(value)
        if kind is int or kind is Int64:
            return holds(value & number_mask, number_mask)
        bits = _bits(value)
        if bits is None:
            return False
        mask = masks.of_bytes if kind is bytes or kind is Binary else number_mask
        return holds(bits & mask, mask)

    return test


_HOLDS: Final[dict[str, Callable[[int, int], bool]]] = {
    "$bitsAllClear": lambda bits, mask: bits == 0,
    "$bitsAllSet": operator.eq,
    "$bitsAnyClear": operator.ne,
    "$bitsAnySet": lambda bits, mask: bits != 0,
}
"""For each operator whether it holds for the set bits that its mask selects, and the mask."""


def _bits(value: Any) -> int | None:
    """A value that is no integer as an unbounded two's complement integer; None if it has no bits to test."""
    kind = type(value)
    if kind is bytes or kind is Binary:
        return int.from_bytes(value, "little")
    if kind is float:
        return int(value) if value.is_integer() and -(2.0**63) <= value < 2.0**63 else None
    if kind is not Decimal128:
        return None
    decimal = value.to_decimal()
    if not decimal.is_finite() or abs(decimal) >= 2**63:
        return OUT_OF_RANGE
    return int(decimal.quantize(Decimal(1), ROUND_HALF_EVEN))


def _parse_mask(name: str, argument: Any, path: str) -> _Masks:
    if type(argument) in (bytes, Binary):
        mask = int.from_bytes(argument, "little")
        return _Masks(mask, mask)
    if type(argument) is list:
        return _mask_of([_parse_position(item) for item in argument])
    if type(argument) not in NUMBERS:
        received = f"{name}: {to_string(argument)}"
        raise CommandError(2, f"{path} takes an Array, a number, or a BinData but received: {received}")
    number = int64_of(argument)
    if number is None:
        raise CommandError(9, no_long(name, argument))
    if number < 0:
        raise CommandError(9, f"Expected a non-negative number in: {name}: {argument}")
    return _Masks(number, number)


def _mask_of(positions: list[int]) -> _Masks:
    """The masks with these bits set."""
    of_number = 0
    for position in positions:
        of_number |= 1 << min(position, SIGN_BIT)
    bits = bytearray(min(max(positions, default=0), FIRST_CLEAR_BIT) // 8 + 1)
    for position in positions:
        at = min(position, FIRST_CLEAR_BIT)
        bits[at // 8] |= 1 << at % 8
    return _Masks(of_number, int.from_bytes(bits, "little"))


def _parse_position(item: Any) -> int:
    if type(item) not in NUMBERS:
        raise CommandError(2, f"bit positions must be an integer but got: {to_string(item)}")
    position = int64_of(item)
    if position is None or not -(2**31) <= position < 2**31:
        raise CommandError(2, f"bit positions cannot be represented as a 32-bit signed integer: {item}")
    if position < 0:
        raise CommandError(2, f"bit positions must be >= 0 but got: {item}")
    return position
