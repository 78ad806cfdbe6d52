"""Bitwise operators: $bitAnd, $bitNot, $bitOr, $bitXor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.numbers import INTEGERS, NUMBERS, is_nullish
from headrace.query.expressions.operator_parser import OperatorParser, combining, single
from headrace.values.bson import type_name


def _many(name: str, function: Callable[[int, int], int], start: int) -> OperatorParser:
    def combined(values: list[Any]) -> Any:
        bits = reduce(function, map(int, values), start)
        return Int64(bits) if Int64 in map(type, values) else bits

    message = f"{name} only supports int and long operands."
    return combining(name, INTEGERS, 14, message, combined, commutative=True, names_type=False)


def _not(value: Any) -> Any:
    if is_nullish(value):
        return None
    if type(value) not in INTEGERS:
        code = 14 if type(value) in NUMBERS else 28765
        raise CommandError(code, f"$bitNot only supports int and long, not: {type_name(value)}.")
    return Int64(~int(value)) if type(value) is Int64 else ~value


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$bitAnd": _many("$bitAnd", operator.and_, -1),
    "$bitNot": single("$bitNot", _not),
    "$bitOr": _many("$bitOr", operator.or_, 0),
    "$bitXor": _many("$bitXor", operator.xor, 0),
}
