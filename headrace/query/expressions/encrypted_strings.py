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
from headrace.values.bson import type_name

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
        if type(argument) is not dict:
            raise CommandError(14, f"BSON field '{name}' is the wrong type '{type_name(argument)}', expected type "
                                   "'object'")  # fmt: skip
        for key, value in argument.items():
            if key not in ("input", field):
                raise CommandError(40415, f"BSON field '{name}.{key}' is an unknown field.")
            if type(value) is not str and (key == "input" or type(value) is not Binary):
                raise CommandError(14, f"BSON field '{name}.{key}' is the wrong type '{type_name(value)}', expected "
                                       "type 'string'")  # fmt: skip
        for key in ("input", field):
            if key not in argument:
                raise CommandError(40414, f"BSON field '{name}.{key}' is missing but a required field")
        if type(argument[field]) is Binary:
            refused, message = UNSUPPORTED[name]
            raise CommandError(refused, message.format(name))
        return Call(Operator(name, make, folds=False), [parse_operand(argument["input"], context)])

    return parse


OPERATORS: Final[dict[str, Callable[[Any, ParseContext], Expression]]] = {name: _parser(name) for name in _NAMES}
