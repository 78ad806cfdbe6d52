"""Rounding operators: $ceil, $floor, $round, $trunc."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.expressions.arithmetic import numeric
from headrace.query.expressions.expression import Operator
from headrace.query.expressions.numbers import (
    CONTEXT,
    NUMBERS,
    coerced_to_long,
    exact_decimal,
    fits_long,
    int32_of,
    int_or_long,
    is_nullish,
    wrap,
)
from headrace.query.expressions.operator_parser import OperatorParser, of_values, positional, single
from headrace.values.bson import type_name


def _to_integral(rounding: str) -> Callable[[Any], Any]:
    def apply(value: Any) -> Any:
        if type(value) is float:
            if not math.isfinite(value):
                return value
            rounded = math.ceil(value) if rounding == decimal.ROUND_CEILING else math.floor(value)
            return math.copysign(float(rounded), value)
        if type(value) is Decimal128:
            return wrap(value.to_decimal().quantize(Decimal(1), rounding, CONTEXT))  # NaN beyond 34 digits
        return value

    return apply


def _to_digits(name: str, rounding: str) -> Callable[..., Any]:
    def apply(value: Any, digits: Any = 0) -> Any:
        if is_nullish(value):
            return None
        if type(value) not in NUMBERS:
            raise CommandError(51081, f"{name} only supports numeric types, not {type_name(value)}")
        if is_nullish(digits):
            return None
        return _rounded(name, value, _checked_digits(name, digits), rounding)

    return apply


def _checked_digits(name: str, digits: Any) -> int:
    number = coerced_to_long(digits)
    if int32_of(digits) is None:
        raise CommandError(51082, f"precision argument to  {name} must be a integral value")
    if not -20 <= number <= 100:
        message = f"cannot apply {name} with precision value {number} value must be in [-20, 100]"
        raise CommandError(51083, message)
    return number


def _rounded(name: str, value: Any, digits: int, rounding: str) -> Any:
    if type(value) is float:
        if not math.isfinite(value) or (digits == 0 and abs(value) >= 2**53):
            return value
        return float(_quantized(exact_decimal(value), digits, rounding))
    if type(value) is Decimal128:
        number = value.to_decimal()
        return wrap(_quantized(number, digits, rounding)) if number.is_finite() else value
    if digits >= 0:
        return value
    integer = int(_quantized(Decimal(int(value)), digits, rounding))
    if not fits_long(integer):
        raise CommandError(51080, f"invalid conversion from Decimal128 result in {name} resulting from arguments")
    return Int64(integer) if type(value) is Int64 else int_or_long(integer)


def _quantized(number: Decimal, digits: int, rounding: str) -> Decimal:
    """`number` with `digits` digits after the point, or with as many as 34 digits allow."""
    rounded = number.quantize(Decimal((0, (1,), -digits)), rounding, CONTEXT)
    if not rounded.is_nan():
        return rounded
    return number.quantize(Decimal((0, (1,), number.adjusted() - CONTEXT.prec + 1)), rounding, CONTEXT)


def _single(name: str, rounding: str) -> OperatorParser:
    return single(name, numeric(name, _to_integral(rounding)))


def _to_digits_operator(name: str, rounding: str) -> OperatorParser:
    return positional(Operator(name, of_values(_to_digits(name, rounding))), 1, 2)


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$ceil": _single("$ceil", decimal.ROUND_CEILING),
    "$floor": _single("$floor", decimal.ROUND_FLOOR),
    "$round": _to_digits_operator("$round", decimal.ROUND_HALF_EVEN),
    "$trunc": _to_digits_operator("$trunc", decimal.ROUND_DOWN),
}
