"""`$encStrStartsWith` and its kin, which search encrypted strings.

    {$encStrStartsWith: {input: "$name", prefix: "Ad"}}

A driver replaces the text by an encrypted payload before it sends the command. A text that arrives as it is cannot be
looked for: the result is null for a missing input, otherwise an error, as in MongoDB. A payload is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Binary

from headrace.errors import CommandError
from headrace.query.expressions.expression import Call, Env, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.expression_parser import parse_operand
from headrace.query.expressions.numbers import is_nullish
from headrace.query.expressions.operator_parser import OperatorParser
from headrace.query.options import check_options

_NAMES: Final = {
    "$encStrContains": ("substring", 10208801),
    "$encStrEndsWith": ("suffix", 10120901),
    "$encStrNormalizedEq": ("string", 10255700),
    "$encStrStartsWith": ("prefix", 10111808),
}
"""The field of the text, and the error of one that is not encrypted, by operator."""
UNSUPPORTED: Final = dict.fromkeys(
    _NAMES, (115, "{} searches encrypted fields, and Headrace does not read their encrypted payloads")
)


def _parser(name: str) -> OperatorParser:
    field, code = _NAMES[name]

    def make(value: Evaluate) -> Evaluate:
        def evaluate(env: Env) -> Any:
            if is_nullish(value(env)):
                return None
            raise CommandError(code, f"Expression{name[1].upper()}{name[2:]} can't be evaluated without binary payload")

        return evaluate

    def parse(argument: Any, context: ParseContext) -> Expression:
        payload = type(argument) is dict and type(argument.get(field)) is Binary
        types = {"input": "string", field: "binData" if payload else "string"}
        check_options(name, argument, types, types, not_object=14)
        if payload:
            refused, message = UNSUPPORTED[name]
            raise CommandError(refused, message.format(name))
        return Call(Operator(name, make, folds=False), [parse_operand(argument["input"], context)])

    return parse


OPERATORS: Final[dict[str, Callable[[Any, ParseContext], Expression]]] = {name: _parser(name) for name in _NAMES}
