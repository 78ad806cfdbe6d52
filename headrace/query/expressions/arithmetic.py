"""Arithmetic operators: sums, products, quotients, powers, logarithms."""

from __future__ import annotations

import math
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
    coerced_to_long,
    decimal_of,
    double_of,
    fits_long,
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
    positional,
    single,
    variadic,
)
from headrace.query.expressions.summing import Total
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


def _product(values: list[Any]) -> Any:
    return reduce(times, values, 1)


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
        raise CommandError(code, f"{name}'s argument must be a positive number, but is {value}")
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


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$abs": single("$abs", numeric("$abs", _abs)),
    "$add": variadic(Operator("$add", _make_add, associative=True, commutative=True)),
    "$divide": positional(Operator("$divide", binary(divide)), 2),
    "$exp": single("$exp", numeric("$exp", _exp)),
    "$ln": single("$ln", numeric("$ln", _ln)),
    "$log": positional(Operator("$log", binary(_log)), 2),
    "$log10": single("$log10", numeric("$log10", _log10)),
    "$mod": positional(Operator("$mod", binary(_mod)), 2),
    "$multiply": combining(
        "$multiply", NUMBERS, 16555, "$multiply only supports numeric types, not ", _product, commutative=True
    ),
    "$pow": positional(Operator("$pow", binary(_pow)), 2),
    "$sigmoid": single("$sigmoid", numeric("$sigmoid", sigmoid)),
    "$sqrt": single("$sqrt", numeric("$sqrt", _sqrt)),
    "$subtract": positional(Operator("$subtract", binary(subtract)), 2),
}
