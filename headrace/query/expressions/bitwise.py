"""Bitwise operators: $bitAnd, $bitNot, $bitOr, $bitXor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.expression import Env, Evaluate, Operator
from headrace.query.expressions.numbers import INTEGERS, is_nullish
from headrace.query.expressions.operator_parser import OperatorParser, positional, unary, variadic
from headrace.values.bson import type_name


def _many(name: str, function: Callable[[int, int], int], start: int) -> OperatorParser:
    def make(*operands: Evaluate) -> Evaluate:

        def evaluate(env: Env) -> Any:
            bits, long = start, False
            for operand in operands:
                value = operand(env)
                if is_nullish(value):
                    return None
                if type(value) not in INTEGERS:
                    raise CommandError(14, f"{name} only supports int and long operands.")
                long = long or type(value) is Int64
                bits = function(bits, int(value))
            return Int64(bits) if long else bits

        return evaluate

    return variadic(Operator(name, make, associative=True, commutative=True))


def _not(value: Any) -> Any:
    if is_nullish(value):
        return None
    if type(value) not in INTEGERS:
        raise CommandError(28765, f"$bitNot only supports int and long, not: {type_name(value)}.")
    return Int64(~int(value)) if type(value) is Int64 else ~value


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$bitAnd": _many("$bitAnd", operator.and_, -1),
    "$bitNot": positional(Operator("$bitNot", unary(_not)), 1),
    "$bitOr": _many("$bitOr", operator.or_, 0),
    "$bitXor": _many("$bitXor", operator.xor, 0),
}
