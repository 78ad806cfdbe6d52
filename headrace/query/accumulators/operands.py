"""Validates the operands of accumulators: `n`, `sortBy`, percentiles and their method."""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, coerced_to_long, double_of, int64_of, integral
from headrace.query.expressions.operator_parser import read_named
from headrace.query.expressions.value_text import as_text
from headrace.query.options import ANY, check_options
from headrace.values.bson import MISSING
from headrace.values.bson.to_string import to_string


def check_group_n(value: Any) -> int:
    """The operand `n` of an accumulator as an int. Raises 7548606 for any other value."""
    number = int64_of(value)
    if number is None or number <= 0:
        value = None if value is MISSING else value
        raise CommandError(7548606, f"parameter 'n' must be coercible to a positive 64-bit integer: {as_text(value)}")
    return number


def check_n(value: Any) -> int:
    """The operand `n` as an int.

    Raises 5787902 for other types, 31109 and 5787903 for numbers that are not integral, 5787908 for numbers that are
    not positive.
    """
    if type(value) not in NUMBERS:
        raise CommandError(5787902, f"Value for 'n' must be of integral type, but found {as_text(value)}")
    number = coerced_to_long(value)
    if integral(value) is None:
        raise CommandError(5787903, f"Value for 'n' must be of integral type, but found {as_text(value)}")
    if number <= 0:
        raise CommandError(5787908, f"'n' must be greater than 0, found {number}")
    return number


def read_n_arguments(name: str, argument: Any) -> dict[str, Any]:
    """The operands `{n, input}` of $firstN, $lastN, $minN, $maxN. Raises 5787801, 5787900, 5787901, 5787906 and
    5787907."""
    required = {"n": 5787906, "input": 5787907}
    _check_specification(name, argument, 5787900 if name in ("$maxN", "$minN") else 5787801)
    for option in argument:
        if option not in required:
            raise CommandError(5787901, f"Unknown argument for 'n' operator: {option}")
    for option, code in required.items():
        if option not in argument:
            raise CommandError(code, f"Missing value for '{option}'")
    return dict(argument)


def _check_specification(name: str, argument: Any, code: int) -> None:
    if type(argument) is not dict:
        raise CommandError(code, f"specification must be an object; found {name}: {to_string(argument)}")


def read_rank_arguments(name: str, argument: Any) -> dict[str, Any]:
    """The operands `{sortBy, output}` of $top and $bottom, and also `n` of $topN and $bottomN.

    Raises 5788001 to 5788604.
    """
    required = {"n": 5788003} if name.endswith("N") else {}
    required |= {"output": 5788004, "sortBy": 5788005}
    _check_specification(name, argument, 5788001)
    read_named(name, argument, required, required, 5788001, 5788002)
    if type(argument["sortBy"]) is not dict:
        raise CommandError(5788604, f"expected 'sortBy' to already be an object in the arguments to {name}")
    return dict(argument)


def read_percentile_arguments(name: str, argument: Any, not_object: int) -> dict[str, Any]:
    """The operands `{input, p, method}` of $percentile; $median has no `p`. Raises `not_object`, 40414, 40415 and
    14."""
    names = ("input", "p", "method") if name == "$percentile" else ("input", "method")
    types = dict.fromkeys(names, ANY) | {"method": "string"}
    _check_specification(name, argument, not_object)
    check_options(name, argument, types, names)
    return dict(argument)


def check_method(method: str) -> None:
    """Raise 2 for another `method` of $percentile than the approximate one."""
    if method != "approximate":
        raise CommandError(2, "Currently only 'approximate' can be used as a percentile 'method'.")


def check_fractions(value: Any) -> tuple[float, ...]:
    """The operand `p` of $percentile: a list of numbers from 0 to 1. Raises 7750300 to 7750303."""
    if type(value) is not list or not value:
        raise _no_fraction(7750301, value)
    fractions = []
    for item in value:
        if type(item) not in NUMBERS:
            raise _no_fraction(7750302, item)
        if not 0 <= double_of(item) <= 1:
            raise _no_fraction(7750303, item)
        fractions.append(double_of(item))
    return tuple(fractions)


def _no_fraction(code: int, found: Any) -> CommandError:
    message = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: "
    return CommandError(code, message + as_text(found))
