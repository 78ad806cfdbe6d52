"""Numbers of the four BSON types: result types, exact conversions, sums.

Rule: the result of an operation has the widest type of its operands (decimal, double, long, int in this order). An int
that does not fit 32 bits becomes a long. Decimals have 34 digits. The server adds doubles in double-double precision;
here the sum of doubles is exact (`math.fsum`).
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.values.bson import MISSING, to_string, type_name

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

NUMBERS: Final = frozenset((int, float, Int64, Decimal128))
INTEGERS: Final = frozenset((int, Int64))

CONTEXT: Final = decimal.Context(
    prec=34, rounding=decimal.ROUND_HALF_EVEN, Emin=-6143, Emax=6144, clamp=1, capitals=1, traps=[]
)
EXACT_REMAINDERS: Final = decimal.Context(prec=12_400, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
"""Holds every digit of the quotient of two decimals. Without all digits Python computes no remainder."""
_FIFTEEN: Final = decimal.Context(prec=15, rounding=decimal.ROUND_HALF_EVEN, traps=[])


def is_nan(number: float | Decimal) -> bool:
    """Whether a Python number is NaN."""
    return number.is_nan() if isinstance(number, Decimal) else math.isnan(number)


def is_nullish(value: Any) -> bool:
    """Whether the value is null or missing."""
    return value is None or value is MISSING


def int_or_long(number: int) -> int:
    """An int if the number fits 32 bits, otherwise an Int64. The number must fit 64 bits."""
    return int(number) if INT32_MIN <= number <= INT32_MAX else Int64(number)


def fits_long(number: int) -> bool:
    """Whether an integer fits 64 bits."""
    return INT64_MIN <= number <= INT64_MAX


def decimal_of(value: Any) -> Decimal:
    """A BSON number as a decimal. A double is rounded to 15 digits, as in the server."""
    kind = type(value)
    if kind is Decimal128:
        exact: Decimal = value.to_decimal()
        return exact
    if kind is float:
        return decimal_of_double(value)
    return Decimal(int(value))


def decimal_of_double(value: float) -> Decimal:
    """The double with exactly 15 significant digits, including trailing zeros. Zero, NaN and infinities are
    unchanged."""
    if value == 0.0 or not math.isfinite(value):
        return Decimal(value)
    rounded = _FIFTEEN.create_decimal_from_float(value)
    digits = len(rounded.as_tuple().digits)
    exponent = rounded.as_tuple().exponent
    assert isinstance(exponent, int)
    return rounded.quantize(Decimal((0, (1,), exponent - (15 - digits))), context=CONTEXT)


def exact_decimal(value: float) -> Decimal:
    """The double with all its digits, at most 34."""
    return CONTEXT.create_decimal_from_float(value)


def wrap(value: Decimal) -> Decimal128:
    """A Python decimal as a Decimal128, rounded to its range and 34 digits."""
    rounded = CONTEXT.create_decimal(value)
    return Decimal128(Decimal("NaN") if rounded.is_nan() else rounded)


def double_of(value: Any) -> float:
    """A BSON number as a double."""
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def truthy(value: Any) -> bool:
    """The value coerced to a boolean: false, null, missing and zero are False, all other values True."""
    kind = type(value)
    if kind is bool:
        return bool(value)
    if value is None or value is MISSING:
        return False
    if kind is Decimal128:
        return not value.to_decimal().is_zero()
    return bool(value != 0) if kind in NUMBERS else True


def integral(value: Any) -> int | None:
    """The number as an int if it is integral and finite; None for any other value."""
    kind = type(value)
    if kind in INTEGERS:
        return int(value)
    if kind is float:
        return int(value) if math.isfinite(value) and value == math.floor(value) else None
    if kind is Decimal128:
        number = value.to_decimal()
        return int(number) if number.is_finite() and number == number.to_integral_value() else None
    return None


def int32_of(value: Any) -> int | None:
    """A number of any type as an int if it is integral and fits 32 bits, otherwise None."""
    number = integral(value)
    return number if number is not None and INT32_MIN <= number <= INT32_MAX else None


def int64_of(value: Any) -> int | None:
    """A number of any type as an int if it is integral and fits 64 bits, otherwise None."""
    number = integral(value)
    return number if number is not None and fits_long(number) else None


def no_long(name: str, value: Any) -> str:
    """Say why the value of a field is no 64-bit integer, as the server does where it converts no other numbers."""
    found = f"{name}: {to_string(value)}"
    if type(value) not in NUMBERS:
        return f"Expected a number in: {found}"
    if type(value) is float and math.isnan(value):
        return f"Expected an integer, but found NaN in: {found}"
    if type(value) is float and abs(value) <= INT64_MAX:
        return f"Expected an integer: {found}"
    return f"Cannot represent as a 64-bit integer: {found}"


def nearest_int(value: Any) -> int:
    """An IDL `int` as the server reads it: saturated to 32 bits. Decimals are rounded half to even; 0 if too large."""
    if type(value) is Decimal128:
        number = value.to_decimal()
        if not number.is_finite() or abs(number) > INT32_MAX:
            return 0
        return int(number.to_integral_value(decimal.ROUND_HALF_EVEN))
    return max(INT32_MIN, min(INT32_MAX, to_long(value)))


def coerced_to_long(value: Any) -> int:
    """The number as `to_long`. Raises 31109 for a double beyond 64 bits or NaN, 16004 for other types."""
    if type(value) is float and not INT64_MIN <= value < 2.0**63:
        raise CommandError(31109, f"Can't coerce out of range value {value} to long")
    return to_long(value)


def to_long(value: Any) -> int:
    """The number coerced to a long as in the server: saturated to 64 bits, NaN as 0, doubles truncated, decimals
    rounded.

    Raises 16004 for other types.
    """
    kind = type(value)
    if kind in INTEGERS:
        return int(value)
    if kind is float:
        if math.isnan(value):
            return 0
        return INT64_MAX if value >= INT64_MAX else INT64_MIN if value <= INT64_MIN else int(value)
    if kind is Decimal128:
        number = value.to_decimal()
        if number.is_nan():
            return 0
        if not INT64_MIN < number < INT64_MAX:
            return INT64_MAX if number > 0 else INT64_MIN
        return int(number.to_integral_value(decimal.ROUND_HALF_EVEN))
    raise CommandError(16004, f"can't convert from BSON type {type_name(value)} to long")


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
