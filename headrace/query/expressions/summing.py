"""Sums of numbers of mixed types: integers exactly, doubles with compensation, decimals separately.

Rule: the result is a decimal if any term was a decimal, otherwise a double if any term was a double. A sum of integers
is an integer, or a double if it does not fit 64 bits. The server adds doubles in double-double precision; here the sum
of doubles is exact (`math.fsum`).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from bson import Decimal128, Int64

from headrace.query.expressions.numbers import CONTEXT, exact_decimal, fits_long, int_or_long, wrap


class Total:
    """A running sum of BSON numbers."""

    __slots__ = ("count", "decimals", "doubles", "has_decimal", "has_double", "has_long", "integers")

    def __init__(self) -> None:
        self.integers = 0
        self.doubles: list[float] = []
        self.decimals = Decimal(0)
        self.has_long = self.has_double = self.has_decimal = False
        self.count = 0

    def add(self, value: Any) -> None:
        """Add a number of any BSON type."""
        self.count += 1
        kind = type(value)
        if kind is int:
            self.integers += value
        elif kind is float:
            self.has_double = True
            self.doubles.append(value)
            if len(self.doubles) > 64:
                self._shorten()
        elif kind is Int64:
            self.has_long = True
            self.integers += int(value)
        else:
            self.has_decimal = True
            self.decimals = CONTEXT.add(self.decimals, value.to_decimal())

    def add_integers(self, values: list[int]) -> None:
        """Add 32-bit integers, many at a time."""
        self.count += len(values)
        self.integers += sum(values)

    def _shorten(self) -> None:
        """Replace all doubles by two terms: their sum and its rounding error."""
        high = _sum(self.doubles)
        low = _sum([*self.doubles, -high]) if math.isfinite(high) else 0.0
        self.doubles = [high, low]

    def as_double(self) -> float:
        """The sum of all terms except decimals, as a double."""
        if not self.doubles:
            return _float(self.integers)
        high = _float(self.integers)
        return _sum([*self.doubles, high, _float(self.integers - int(high))])

    def as_decimal(self) -> Decimal:
        """The sum of all terms as a decimal."""
        rest = CONTEXT.create_decimal(self.integers)
        if self.doubles:
            high = self.as_double()
            low = _sum([*self.doubles, _float(self.integers), -high]) if math.isfinite(high) else 0.0
            rest = CONTEXT.add(exact_decimal(high), exact_decimal(low)) if low else exact_decimal(high)
        return CONTEXT.add(self.decimals, rest)

    def result(self) -> Any:
        """The sum, in the type that its terms require."""
        if self.has_decimal:
            return wrap(self.as_decimal())
        if self.has_double or not fits_long(self.integers):
            return self.as_double()
        return Int64(self.integers) if self.has_long else int_or_long(self.integers)

    def mean(self) -> float | Decimal128 | None:
        """The mean: a decimal if any term was a decimal, otherwise a double; None without terms."""
        if not self.count:
            return None
        if self.has_decimal:
            return wrap(CONTEXT.divide(self.as_decimal(), Decimal(self.count)))
        return self.as_double() / self.count


def _float(number: int) -> float:
    return float(number)


def _sum(terms: list[float]) -> float:
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):  # a partial sum left the range, or +inf met -inf
        return sum(terms)
