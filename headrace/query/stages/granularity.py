"""The series of preferred numbers to which `$bucketAuto` rounds boundaries.

Rule: `up` returns the least number of the series greater than the value, `down` the greatest less than the value. Zero
rounds to zero. Source: MongoDB's documentation of `$bucketAuto`, "Granularity".
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.values.bson import type_name

SERIES: Final[dict[str, tuple[float, ...]]] = {
    "1-2-5": (1.0, 2.0, 5.0),
    "E6": (1.0, 1.5, 2.2, 3.3, 4.7, 6.8),
    "E12": (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2),
    "E24": (1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0, 2.2, 2.4, 2.7, 3.0, 3.3, 3.6,
            3.9, 4.3, 4.7, 5.1, 5.6, 6.2, 6.8, 7.5, 8.2, 9.1),
    "R5": (1.0, 1.6, 2.5, 4.0, 6.3),
    "R10": (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0),
    "R20": (1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3, 7.1, 8.0, 9.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rounder:
    """Rounds to one series. An empty series means the powers of two."""

    series: tuple[float, ...]

    def check(self, value: Any) -> None:
        """Raise an error unless the value can be rounded: a number, not NaN, not negative."""
        if type(value) not in (int, Int64, float, Decimal128):
            raise CommandError(
                40258, f"A value of type '{type_name(value)}' cannot be rounded by a granularity; it must be numeric."
            )
        number = float(value.to_decimal()) if type(value) is Decimal128 else value
        if math.isnan(number):
            raise CommandError(40259, "$bucketAuto can specify a 'granularity' with numeric boundaries only, found NaN")
        if number < 0:
            raise CommandError(
                40260, f"$bucketAuto can specify a 'granularity' with non-negative numbers only: {value}"
            )

    def up(self, value: Any) -> Any:
        """The least number of the series greater than the value."""
        number = _number(value)
        if number in (0, math.inf):
            return value
        if not self.series:
            return 2.0 ** (math.floor(math.log2(number)) + 1)
        factor = self._factor(number)
        index = bisect_right([item * factor for item in self.series], number)
        return self.series[index] * factor if index < len(self.series) else self.series[0] * factor * 10

    def down(self, value: Any) -> Any:
        """The greatest number of the series less than the value."""
        number = _number(value)
        if number in (0, math.inf):
            return value
        if not self.series:
            return 2.0 ** (math.ceil(math.log2(number)) - 1)
        factor = self._factor(number)
        index = bisect_left([item * factor for item in self.series], number)
        return self.series[index - 1] * factor if index else self.series[-1] * factor / 10

    def _factor(self, number: float) -> float:
        """The power of ten that scales the series to the number."""
        factor = 10.0 ** math.floor(math.log10(number))
        return factor if self.series[0] * factor <= number else factor / 10


def _number(value: Any) -> float:
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def parse_granularity(value: Any) -> Rounder:
    """The rounder of a granularity's name."""
    if type(value) is not str:
        raise CommandError(
            40261, f"The $bucketAuto 'granularity' field must be a string, but found type: {type_name(value)}."
        )
    if value == "POWERSOF2":
        return Rounder(())
    if value not in SERIES:
        raise CommandError(40257, f"Unknown rounding granularity '{value}'")
    return Rounder(SERIES[value])
