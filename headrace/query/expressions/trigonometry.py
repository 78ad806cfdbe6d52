"""Trigonometric operators: doubles by the math library, decimals by series with guard digits."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from bson import Decimal128

from headrace.errors import CommandError
from headrace.query.expressions.arithmetic import numeric
from headrace.query.expressions.expression import Operator
from headrace.query.expressions.numbers import NUMBERS, decimal_of, is_nan, is_nullish, wrap
from headrace.query.expressions.operator_parser import OperatorParser, binary, positional, single
from headrace.values.bson import type_name

_WIDE: Final = decimal.Context(prec=60, Emax=999_999, Emin=-999_999, traps=[])
_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")
_TINY: Final = Decimal("1E-55")
_DEGREE: Final = Decimal("0.01745329251994329576923690768488613")
_RADIAN: Final = Decimal("57.29577951308232087679815481410517")


def _series(term: Decimal, step: Callable[[int, Decimal], Decimal]) -> Decimal:
    """The sum of `term` and the following terms, until they no longer change the sum."""
    total, index = term, 1
    while abs(term) > _TINY:
        term = step(index, term)
        total += term
        index += 1
    return total


def _sine(x: Decimal) -> Decimal:
    x = x.remainder_near(2 * _PI)
    return _series(x, lambda n, term: -term * x * x / (2 * n * (2 * n + 1)))


def _cosine(x: Decimal) -> Decimal:
    return _sine(x + _PI / 2)


def _arctangent(x: Decimal) -> Decimal:
    if x.is_infinite():
        return (_PI / 2).copy_sign(x)
    for _ in range(4):  # each step halves the angle
        x = x / (1 + (1 + x * x).sqrt())
    square, power, total, divisor = x * x, x, x, 1
    while abs(power) > _TINY:
        power = -power * square
        divisor += 2
        total += power / divisor
    return 16 * total


def _arcsine(x: Decimal) -> Decimal:
    return (_PI / 2).copy_sign(x) if abs(x) == 1 else _arctangent(x / (1 - x * x).sqrt())


def _hyperbolic_sine(x: Decimal) -> Decimal:
    return x if x.is_infinite() else (x.exp() - (-x).exp()) / 2


def _hyperbolic_tangent(x: Decimal) -> Decimal:
    if abs(x) > 100:
        return Decimal(1).copy_sign(x)
    twice = (2 * x).exp()
    return (twice - 1) / (twice + 1)


def _area_sine(x: Decimal) -> Decimal:
    return x if x.is_infinite() else (abs(x) + (x * x + 1).sqrt()).ln().copy_sign(x) if x else x


def _area_cosine(x: Decimal) -> Decimal:
    return x if x.is_infinite() else (x + (x * x - 1).sqrt()).ln()


def _area_tangent(x: Decimal) -> Decimal:
    return Decimal("Infinity").copy_sign(x) if abs(x) == 1 else ((1 + x) / (1 - x)).ln() / 2


def _arctangent2(y: Decimal, x: Decimal) -> Decimal:
    if not x and not y:
        return _PI.copy_sign(y) if x.is_signed() else y
    if not x:
        return (_PI / 2).copy_sign(y)
    angle = _arctangent(y / x)
    return angle if x > 0 else angle + _PI.copy_sign(y)


def _trigonometric(
    name: str,
    double: Callable[[float], float],
    exact: Callable[[Decimal], Decimal],
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_ended: bool = False,
) -> OperatorParser:
    """An operator defined from `low` to `high`, inclusive unless `open_ended`."""

    def apply(value: Any) -> Any:
        number = value.to_decimal() if type(value) is Decimal128 else float(value)
        if is_nan(number):
            return value if type(value) is Decimal128 else math.nan
        if not low <= number <= high or (open_ended and number in (low, high)):
            bounds = f"({low},{high})" if open_ended else f"[{low},{high}]"
            raise CommandError(50989, f"cannot apply {name} to {value}, value must be in {bounds}")
        if isinstance(number, Decimal):
            with decimal.localcontext(_WIDE):
                return wrap(exact(number))
        return _guarded(double, number)

    return single(name, numeric(name, apply))


def _guarded(double: Callable[[float], float], number: float) -> float:
    try:
        return double(number)
    except OverflowError:
        return math.copysign(math.inf, 1.0 if double is math.cosh else number)
    except ValueError:  # atanh at its poles
        return math.copysign(math.inf, number)


def _atan2(y: Any, x: Any) -> Any:
    if is_nullish(y) or is_nullish(x):
        return None
    for code, value in ((51044, y), (51045, x)):
        if type(value) not in NUMBERS:
            raise CommandError(code, f"$atan2 only supports numeric types, not {type_name(value)}")
    if type(y) is Decimal128 or type(x) is Decimal128:
        with decimal.localcontext(_WIDE):
            return wrap(_arctangent2(decimal_of(y), decimal_of(x)))
    return math.atan2(y, x)


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$acos": _trigonometric("$acos", math.acos, lambda x: _PI / 2 - _arcsine(x), -1, 1),
    "$acosh": _trigonometric("$acosh", math.acosh, _area_cosine, 1),
    "$asin": _trigonometric("$asin", math.asin, _arcsine, -1, 1),
    "$asinh": _trigonometric("$asinh", math.asinh, _area_sine),
    "$atan": _trigonometric("$atan", math.atan, _arctangent),
    "$atan2": positional(Operator("$atan2", binary(_atan2)), 2),
    "$atanh": _trigonometric("$atanh", math.atanh, _area_tangent, -1, 1),
    "$cos": _trigonometric("$cos", math.cos, _cosine, open_ended=True),
    "$cosh": _trigonometric("$cosh", math.cosh, lambda x: abs(x) if x.is_infinite() else (x.exp() + (-x).exp()) / 2),
    "$degreesToRadians": _trigonometric(
        "$degreesToRadians", lambda degrees: degrees * (math.pi / 180.0), lambda degrees: degrees * _DEGREE
    ),
    "$radiansToDegrees": _trigonometric(
        "$radiansToDegrees", lambda radians: radians * (180.0 / math.pi), lambda radians: radians * _RADIAN
    ),
    "$sin": _trigonometric("$sin", math.sin, _sine, open_ended=True),
    "$sinh": _trigonometric("$sinh", math.sinh, _hyperbolic_sine),
    "$tan": _trigonometric("$tan", math.tan, lambda x: _sine(x) / _cosine(x), open_ended=True),
    "$tanh": _trigonometric("$tanh", math.tanh, _hyperbolic_tangent),
}
