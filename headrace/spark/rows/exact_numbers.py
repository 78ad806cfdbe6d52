"""Numbers in columns: a number fits a column only if the column represents it exactly.

Each function returns the column's value, or MISSING if the number does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from struct import Struct
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.values.bson import MISSING

DOUBLE_EXACT: Final = 1 << 53
_FLOAT: Final = Struct("<f")


def integers(bits: int) -> Callable[[Any], Any]:
    """Return the function for int and long in columns of integers."""
    beyond = 1 << (bits - 1)

    def store(value: Any) -> Any:
        return int(value) if type(value) in (int, Int64) and -beyond <= value < beyond else MISSING

    return store


def decimals(precision: int, scale: int, *, doubles: bool) -> Callable[[Any], Any]:
    """Return the function for decimal, int and long, and double by its shortest digits if `doubles`."""

    def store(value: Any) -> Any:
        kind = type(value)
        if kind is Decimal128:
            number = value.to_decimal()
        elif kind is int or kind is Int64:
            number = Decimal(int(value))
        elif kind is float and doubles:
            number = Decimal(repr(value))
        else:
            return MISSING
        if not number.is_finite() or (number.is_signed() and not number):
            return MISSING
        _, digits, exponent = number.as_tuple()
        fits = exponent >= -scale and len(digits) + exponent <= precision - scale
        # A zero may have one digit followed by many zeros.
        return number if fits and exponent <= precision - scale else MISSING

    return store


def double(value: Any) -> Any:
    """Return a double, int or long as a double."""
    if type(value) is float:
        return value
    exact = type(value) in (int, Int64) and -DOUBLE_EXACT <= value <= DOUBLE_EXACT
    return float(value) if exact else MISSING


def single(value: Any) -> Any:
    """Return a double, int or long for a column of singles."""
    number = double(value)
    if number is MISSING:
        return MISSING
    try:
        same = math.isnan(number) or _FLOAT.unpack(_FLOAT.pack(number))[0] == number
    except OverflowError:
        return MISSING
    return number if same else MISSING
