"""Operators that bind a variable to each element of an array: $filter, $map, $reduce.

Rule: the operators are not folded at parse time, even for constant arrays. Only their operands are folded.
"""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.expression import Call, Env, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.expression_parser import parse_operand
from headrace.query.expressions.field_paths import check_variable_name
from headrace.query.expressions.numbers import int32_of, is_nullish, truthy
from headrace.query.expressions.operator_parser import OperatorParser, read_named, scoped
from headrace.query.expressions.value_text import as_text
from headrace.query.operation_memory import size_of
from headrace.values.bson import MISSING, type_name

_SIZED: Final = frozenset({bytes, dict, list, str})
"""Types whose values may take much memory."""


def _variable(argument: dict[str, Any]) -> str:
    name = argument.get("as", "this")
    name = name if type(name) is str else ""
    check_variable_name(name, for_writing=True)
    return name


def _parse_map(argument: Any, context: ParseContext) -> Expression:
    read_named("$map", argument, ("input", "as", "in"), {"input": 16880, "in": 16882}, 16878, 16879)
    source = parse_operand(argument["input"], context)
    variable = _variable(argument)
    return Call(_map(variable), [source, parse_operand(argument["in"], context.binding(variable))])


def _map(variable: str) -> Operator:
    def make(source: Evaluate, each: Evaluate) -> Evaluate:
        def evaluate(env: Env) -> Any:
            array = source(env)
            if is_nullish(array):
                return None
            if type(array) is not list:
                raise CommandError(16883, f"input to $map must be an array not {type_name(array)}")
            inner, variables = scoped(env, (variable,))
            mapped, size = [], 0
            for item in array:
                variables[variable] = item
                value = each(inner)
                mapped.append(None if value is MISSING else value)
                if type(value) in _SIZED:
                    size += size_of(value)
                    if size > limits.EXPRESSION_BYTES_MAX:
                        raise CommandError(146, "$map would use too much memory and cannot spill")
            return mapped

        return evaluate

    return Operator("$map", make, folds=False)


def _parse_filter(argument: Any, context: ParseContext) -> Expression:
    read_named("$filter", argument, ("input", "as", "cond", "limit"), {"input": 28648, "cond": 28650}, 28646, 28647)
    source = parse_operand(argument["input"], context)
    variable = _variable(argument)
    condition = parse_operand(argument["cond"], context.binding(variable))
    limit = parse_operand(argument["limit"], context) if "limit" in argument else None
    return Call(_filter(variable), [source, condition, limit])


def _filter(variable: str) -> Operator:
    def make(source: Evaluate, condition: Evaluate, limit: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            array = source(env)
            if is_nullish(array):
                return None
            if type(array) is not list:
                raise CommandError(28651, f"input to $filter must be an array not {type_name(array)}")
            wanted = None if limit is None else _limit(limit(env))
            inner, variables = scoped(env, (variable,))
            selected: list[Any] = []
            for item in array:
                variables[variable] = item
                if truthy(condition(inner)):
                    selected.append(item)
                    if len(selected) == wanted:
                        break
            return selected

        return evaluate

    return Operator("$filter", make, folds=False)


def _limit(value: Any) -> int | None:
    """The number of elements to keep; None for all."""
    if is_nullish(value):
        return None
    number = int32_of(value)
    if number is None:
        raise CommandError(327391, f"$filter: limit must be represented as a 32-bit integral value: {as_text(value)}")
    if number <= 0:
        raise CommandError(327392, f"$filter: limit must be greater than 0: {number}")
    return number


def _parse_reduce(argument: Any, context: ParseContext) -> Expression:
    codes = {"input": 40077, "initialValue": 40078, "in": 40079}
    read_named("$reduce", argument, codes, codes, 40075, 40076)
    inside = context.binding("this", "value")
    return Call(
        _REDUCE, [parse_operand(argument[name], inside if name == "in" else context) for name in codes]
    )  # fmt: skip


def _make_reduce(source: Evaluate, initial: Evaluate, step: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> Any:
        array = source(env)
        if is_nullish(array):
            return None
        if type(array) is not list:
            raise CommandError(40080, f"$reduce requires that 'input' be an array, found: {as_text(array)}")
        value = initial(env)
        inner, variables = scoped(env, ("this", "value"))
        for item in array:
            variables["this"] = item
            variables["value"] = value
            value = step(inner)
        return value

    return evaluate


_REDUCE: Final = Operator("$reduce", _make_reduce, folds=False)

OPERATORS: Final[dict[str, OperatorParser]] = {
    "$filter": _parse_filter,
    "$map": _parse_map,
    "$reduce": _parse_reduce,
}
