"""Parses values of a pipeline to expressions: literals, paths, objects, arrays and operators.

Rule: an object with one field that begins with "$" is an operator. Any other object is built field by field.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.expression import (
    Call,
    CompiledExpression,
    Constant,
    Env,
    Evaluate,
    Expression,
    Operator,
    ParseContext,
    optimized,
)
from headrace.query.expressions.field_paths import check_field_name, parse_path
from headrace.query.expressions.value_text import checked_text
from headrace.values.bson import MISSING

_PLAIN: Final = ParseContext()


def parse_expression(value: Any, context: ParseContext | None = None) -> CompiledExpression:
    """The expression of a value. Raises the `CommandError` of an invalid one, and of its constant subexpressions."""
    return CompiledExpression(optimized(parse_operand(value, context or _PLAIN)))


def parse_operand(value: Any, context: ParseContext) -> Expression:
    """The expression of an operand, not optimized."""
    if type(value) is str and value.startswith("$"):
        return parse_path(value, context)
    if type(value) is dict:
        return parse_object(value, context)
    if type(value) is list:
        return Call(_ARRAY, [parse_operand(item, context) for item in value])
    return Constant(checked_text(value) if type(value) is str else value)


def parse_object(document: dict[str, Any], context: ParseContext) -> Expression:
    """The expression of an object: an operator, or computed fields. Raises 15983 for an operator among fields."""
    first = next(iter(document), "")
    if first.startswith("$"):
        if len(document) != 1:
            names = ", ".join(f"{name}: ..." for name in document)
            raise CommandError(
                15983, f"an object representing an expression must have exactly one field: {{ {names} }}"
            )
        return parse_operator(first, document[first], context)
    for name in document:
        check_field_name(name)
    operands = [parse_operand(item, context) for item in document.values()]
    return Call(_object(tuple(document)), operands)


def parse_operator(name: str, argument: Any, context: ParseContext) -> Expression:
    """The expression `{name: argument}`. Raises 168 for an unknown operator, its own code for an unsupported one."""
    from headrace.query.expressions.operator_table import OPERATORS, UNSUPPORTED  # the families import this file

    parse = OPERATORS.get(name)
    if parse is not None:
        return parse(argument, context)
    if name in UNSUPPORTED:
        code, message = UNSUPPORTED[name]
        raise CommandError(code, message)
    raise CommandError(168, f"Unrecognized expression '{name}'")


def _make_array(*items: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> list[Any]:
        return [None if (value := item(env)) is MISSING else value for item in items]

    return evaluate


_ARRAY: Final = Operator("array", _make_array)


def _object(names: tuple[str, ...]) -> Operator:
    def make(*items: Evaluate) -> Evaluate:
        pairs = tuple(zip(names, items))

        def evaluate(env: Env) -> dict[str, Any]:
            return {name: value for name, item in pairs if (value := item(env)) is not MISSING}

        return evaluate

    return Operator("object", make)
