"""Operators of numbers: sums, products, quotients, powers, logarithms; bits; rounding; trigonometry."""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any, Final

from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions.expression import Env, Evaluate, Operator
from headrace.query.expressions.numbers import (
    CONTEXT,
    EXACT_REMAINDERS,
    INT64_MIN,
    INTEGERS,
    NUMBERS,
    Total,
    coerced_to_long,
    decimal_of,
    double_of,
    exact_decimal,
    fits_long,
    int32_of,
    int_or_long,
    is_nan,
    is_nullish,
    to_long,
    wrap,
)
from headrace.query.expressions.operator_parser import (
    OperatorParser,
    binary,
    combining,
    of_values,
    positional,
    single,
    variadic,
)
from headrace.values.bson import type_name

_ONE_PLUS: Final = Decimal(2) ** -113
"""Half the distance from 1 to the next number of 113 bits, in which the server computes `$exp` of a decimal."""


def integer_result(number: int, *operands: Any) -> Any:
    """An integer result: a long if an operand is a long or the result needs 64 bits, a double beyond 64 bits."""
    if not fits_long(number):
        return float(number)
    return Int64(number) if any(type(o) is Int64 for o in operands) else int_or_long(number)


def _make_add(*operands: Evaluate) -> Evaluate:

    def evaluate(env: Env) -> Any:
        total = Total()
        date = False
        for operand in operands:
            value = operand(env)
            if type(value) in NUMBERS:
                total.add(value)
            elif type(value) is DatetimeMS:
                if date:
                    raise CommandError(16612, "only one date allowed in an $add expression")
                date = True
                total.add(Int64(int(value)))
            elif is_nullish(value):
                return None
            else:
                raise CommandError(16554, f"$add only supports numeric or date types, not {type_name(value)}")
        return _shifted_date(total) if date else total.result()

    return evaluate


def _shifted_date(total: Total) -> DatetimeMS:
    value = total.result()
    if type(value) is Decimal128:
        return DatetimeMS(to_long(wrap(value.to_decimal().to_integral_value())))
    if type(value) is float and not (math.isfinite(value) and fits_long(int(value))):
        raise CommandError(15, "date overflow in $add")
    return DatetimeMS(math.floor(value + 0.5) if type(value) is float else int(value))


def subtract(left: Any, right: Any) -> Any:
    """The value of `$subtract`. Raises 16556 and 16613 for other types, 15 for a date out of range."""
    kinds = (type(left), type(right))
    if kinds[0] in NUMBERS and kinds[1] in NUMBERS:
        if Decimal128 in kinds:
            return wrap(CONTEXT.subtract(decimal_of(left), decimal_of(right)))
        if float in kinds:
            return float(left) - float(right)
        return integer_result(int(left) - int(right), left, right)
    if is_nullish(left) or is_nullish(right):
        return None
    if kinds[0] is DatetimeMS:
        return _date_minus(left, right)
    raise CommandError(16556, f"can't $subtract {type_name(right)} from {type_name(left)}")


def _date_minus(left: DatetimeMS, right: Any) -> Any:
    if type(right) is DatetimeMS:
        number = int(left) - int(right)
    elif type(right) in NUMBERS:
        number = int(left) - coerced_to_long(right)
    else:
        raise CommandError(16613, f"can't $subtract {type_name(right)} from Date")
    if not fits_long(number):
        raise CommandError(15, "date overflow in $subtract")
    return Int64(number) if type(right) is DatetimeMS else DatetimeMS(number)


def times(left: Any, right: Any) -> Any:
    """The product of two numbers."""
    if type(left) is Decimal128 or type(right) is Decimal128:
        return wrap(CONTEXT.multiply(decimal_of(left), decimal_of(right)))
    if type(left) is float or type(right) is float:
        return float(left) * float(right)
    return integer_result(int(left) * int(right), left, right)


def divide(left: Any, right: Any) -> Any:
    """The value of `$divide`. Raises 16608 for zero and 16609 for other types."""
    if type(left) in NUMBERS and type(right) in NUMBERS:
        if double_of(right) == 0:
            raise CommandError(16608, "can't $divide by zero")
        if type(left) is Decimal128 or type(right) is Decimal128:
            return wrap(CONTEXT.divide(decimal_of(left), decimal_of(right)))
        return float(left) / float(right)
    if is_nullish(left) or is_nullish(right):
        return None
    message = f"$divide only supports numeric types, not {type_name(left)} and {type_name(right)}"
    raise CommandError(16609, message)


def _mod(left: Any, right: Any) -> Any:
    if type(left) in NUMBERS and type(right) in NUMBERS:
        return _remainder(left, right)
    if is_nullish(left) or is_nullish(right):
        return None
    raise CommandError(16611, f"$mod only supports numeric types, not {type_name(left)} and {type_name(right)}")


def _remainder(left: Any, right: Any) -> Any:
    if double_of(right) == 0:
        is_decimal = type(left) is Decimal128 or type(right) is Decimal128
        raise CommandError(5733415 if is_decimal else 16610, "can't $mod by zero")
    if type(left) is Decimal128 or type(right) is Decimal128:
        return wrap(EXACT_REMAINDERS.remainder(decimal_of(left), decimal_of(right)))
    if type(left) is float or type(right) is float:
        if math.isinf(left) or math.isnan(left) or math.isnan(right):
            return math.nan
        return math.fmod(left, right)
    magnitude = abs(int(left)) % abs(int(right))
    return integer_result(-magnitude if left < 0 else magnitude, left, right)


def numeric(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of one number. It returns None for null and raises 28765 for other types."""

    def apply(value: Any) -> Any:
        if type(value) in NUMBERS:
            return function(value)
        if is_nullish(value):
            return None
        raise CommandError(28765, f"{name} only supports numeric types, not {type_name(value)}")

    return apply


def _abs(value: Any) -> Any:
    if type(value) is Decimal128:
        return wrap(value.to_decimal().copy_abs())
    if type(value) is float:
        return abs(value)
    if int(value) == INT64_MIN:
        raise CommandError(28680, "can't take $abs of long long min")
    return Int64(abs(int(value))) if type(value) is Int64 else int_or_long(abs(value))


def _exp(value: Any) -> Any:
    if type(value) is Decimal128:
        number = value.to_decimal()
        if not is_nan(number) and abs(number) < _ONE_PLUS:
            return Decimal128("1")
        return wrap(number.exp(CONTEXT))
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _ln(value: Any) -> Any:
    return _logarithm("$ln", 28766, value, math.log, lambda number: number.ln(CONTEXT))


def _log10(value: Any) -> Any:
    return _logarithm("$log10", 28761, value, math.log10, lambda number: number.log10(CONTEXT))


def _logarithm(
    name: str, code: int, value: Any, double: Callable[[Any], float], exact: Callable[[Decimal], Decimal]
) -> Any:
    number = value.to_decimal() if type(value) is Decimal128 else value
    if not (is_nan(number) or number > 0):
        shown = str(value) if type(value) is Decimal128 else f"{float(value):g}"
        raise CommandError(code, f"{name}'s argument must be a positive number, but is {shown}")
    return wrap(exact(number)) if type(value) is Decimal128 and not is_nan(number) else double(float(number))


def _sqrt(value: Any) -> Any:
    number = value.to_decimal() if type(value) is Decimal128 else value
    if not is_nan(number) and number < 0:
        raise CommandError(28714, "$sqrt's argument must be greater than or equal to 0")
    return wrap(number.sqrt(CONTEXT)) if type(value) is Decimal128 else math.sqrt(number)


def _log(value: Any, base: Any) -> Any:
    if is_nullish(value) or is_nullish(base):
        return None
    if type(value) not in NUMBERS:
        raise CommandError(28756, f"$log's argument must be numeric, not {type_name(value)}")
    if type(base) not in NUMBERS:
        raise CommandError(28757, f"$log's base must be numeric, not {type_name(base)}")
    if type(value) is Decimal128 or type(base) is Decimal128:
        number, root = decimal_of(value), decimal_of(base)
        _check_logarithm(number, root)
        return wrap(CONTEXT.divide(CONTEXT.ln(number), CONTEXT.ln(root)))
    _check_logarithm(float(value), float(base))
    return math.log(value) / math.log(base)


def _check_logarithm(number: float | Decimal, base: float | Decimal) -> None:
    if not (is_nan(number) or number > 0):
        raise CommandError(28758, f"$log's argument must be a positive number, but is {number:g}")
    if not (is_nan(base) or (base > 0 and base != 1)):
        raise CommandError(28759, f"$log's base must be a positive number not equal to 1, but is {base:g}")


def _pow(base: Any, exponent: Any) -> Any:
    if is_nullish(base) or is_nullish(exponent):
        return None
    if type(base) not in NUMBERS:
        raise CommandError(28762, f"$pow's base must be numeric, not {type_name(base)}")
    if type(exponent) not in NUMBERS:
        raise CommandError(28763, f"$pow's exponent must be numeric, not {type_name(exponent)}")
    if double_of(base) == 0 and double_of(exponent) < 0:
        raise CommandError(28764, "$pow cannot take a base of 0 and a negative exponent")
    if type(base) is Decimal128 or type(exponent) is Decimal128:
        return wrap(_decimal_power(decimal_of(base), decimal_of(exponent)))
    if type(base) in INTEGERS and type(exponent) in INTEGERS:
        return _integer_power(base, exponent)
    return _double_power(float(base), float(exponent))


def _decimal_power(base: Decimal, exponent: Decimal) -> Decimal:
    if exponent.is_zero():
        return Decimal(1)
    return CONTEXT.power(base, exponent)


def _integer_power(base: Any, exponent: Any) -> Any:
    if base in (0, 1, -1):
        number = 1 if exponent == 0 or base == 1 else 0 if base == 0 else (-1 if int(exponent) % 2 else 1)
        return integer_result(number, base, exponent)
    if 0 <= exponent <= 63 and fits_long(number := int(base) ** int(exponent)):
        return integer_result(number, base, exponent)
    return _double_power(float(base), float(exponent))


def _double_power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        return math.nan


def sigmoid(value: Any) -> Any:
    """Return `1 / (1 + e^-value)`."""
    if type(value) is Decimal128:
        return wrap(CONTEXT.divide(Decimal(1), CONTEXT.add(Decimal(1), (-value.to_decimal()).exp(CONTEXT))))
    return 1.0 / (1.0 + _exp(-float(value)))


# Bits.


def _bitwise(name: str, function: Callable[[int, int], int], start: int) -> OperatorParser:
    def combined(values: list[Any]) -> Any:
        bits = reduce(function, map(int, values), start)
        return Int64(bits) if Int64 in map(type, values) else bits

    message = f"{name} only supports int and long operands."
    return combining(name, INTEGERS, 14, message, combined, commutative=True, names_type=False)


def _bit_not(value: Any) -> Any:
    if is_nullish(value):
        return None
    if type(value) not in INTEGERS:
        code = 14 if type(value) in NUMBERS else 28765
        raise CommandError(code, f"$bitNot only supports int and long, not: {type_name(value)}.")
    return Int64(~int(value)) if type(value) is Int64 else ~value


# Rounding.


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


def _to_integral_operator(name: str, rounding: str) -> OperatorParser:
    return single(name, numeric(name, _to_integral(rounding)))


def _to_digits_operator(name: str, rounding: str) -> OperatorParser:
    return positional(Operator(name, of_values(_to_digits(name, rounding))), 1, 2)


# Trigonometry: doubles by the math library, decimals by series with guard digits.


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
    "$abs": single("$abs", numeric("$abs", _abs)),
    "$acos": _trigonometric("$acos", math.acos, lambda x: _PI / 2 - _arcsine(x), -1, 1),
    "$acosh": _trigonometric("$acosh", math.acosh, _area_cosine, 1),
    "$add": variadic(Operator("$add", _make_add, associative=True, commutative=True)),
    "$asin": _trigonometric("$asin", math.asin, _arcsine, -1, 1),
    "$asinh": _trigonometric("$asinh", math.asinh, _area_sine),
    "$atan": _trigonometric("$atan", math.atan, _arctangent),
    "$atan2": positional(Operator("$atan2", binary(_atan2)), 2),
    "$atanh": _trigonometric("$atanh", math.atanh, _area_tangent, -1, 1),
    "$bitAnd": _bitwise("$bitAnd", operator.and_, -1),
    "$bitNot": single("$bitNot", _bit_not),
    "$bitOr": _bitwise("$bitOr", operator.or_, 0),
    "$bitXor": _bitwise("$bitXor", operator.xor, 0),
    "$ceil": _to_integral_operator("$ceil", decimal.ROUND_CEILING),
    "$cos": _trigonometric("$cos", math.cos, _cosine, open_ended=True),
    "$cosh": _trigonometric("$cosh", math.cosh, lambda x: abs(x) if x.is_infinite() else (x.exp() + (-x).exp()) / 2),
    "$degreesToRadians": _trigonometric(
        "$degreesToRadians", lambda degrees: degrees * (math.pi / 180.0), lambda degrees: degrees * _DEGREE
    ),
    "$divide": positional(Operator("$divide", binary(divide)), 2),
    "$exp": single("$exp", numeric("$exp", _exp)),
    "$floor": _to_integral_operator("$floor", decimal.ROUND_FLOOR),
    "$ln": single("$ln", numeric("$ln", _ln)),
    "$log": positional(Operator("$log", binary(_log)), 2),
    "$log10": single("$log10", numeric("$log10", _log10)),
    "$mod": positional(Operator("$mod", binary(_mod)), 2),
    "$multiply": combining(
        "$multiply",
        NUMBERS,
        16555,
        "$multiply only supports numeric types, not ",
        lambda values: reduce(times, values, 1),
        commutative=True,
    ),
    "$pow": positional(Operator("$pow", binary(_pow)), 2),
    "$radiansToDegrees": _trigonometric(
        "$radiansToDegrees", lambda radians: radians * (180.0 / math.pi), lambda radians: radians * _RADIAN
    ),
    "$round": _to_digits_operator("$round", decimal.ROUND_HALF_EVEN),
    "$sigmoid": single("$sigmoid", numeric("$sigmoid", sigmoid)),
    "$sin": _trigonometric("$sin", math.sin, _sine, open_ended=True),
    "$sinh": _trigonometric("$sinh", math.sinh, _hyperbolic_sine),
    "$sqrt": single("$sqrt", numeric("$sqrt", _sqrt)),
    "$subtract": positional(Operator("$subtract", binary(subtract)), 2),
    "$tan": _trigonometric("$tan", math.tan, lambda x: _sine(x) / _cosine(x), open_ended=True),
    "$tanh": _trigonometric("$tanh", math.tanh, _hyperbolic_tangent),
    "$trunc": _to_digits_operator("$trunc", decimal.ROUND_DOWN),
}
