"""Parsers of operator arguments: positional or named, with a number of operands.

Rule: a list is a list of operands. Any other value is the only operand: {$abs: x} is {$abs: [x]}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from headrace.errors import CommandError
from headrace.query.expressions.expression import Call, Env, Evaluate, Expression, Operator, ParseContext, parse_operand
from headrace.query.expressions.numbers import NUMBERS, int32_of, is_nullish
from headrace.query.expressions.value_text import as_text
from headrace.values.bson import type_name

OperatorParser: TypeAlias = Callable[[Any, ParseContext], Expression]
Make: TypeAlias = Callable[..., Evaluate]


def positional(operator: Operator, low: int, high: int | None = None, *, collated: bool = False) -> OperatorParser:
    """A parser of `low` to `high` operands (exactly `low` by default). `collated` passes `collation` to `make`."""
    top = low if high is None else high

    def parse(argument: Any, context: ParseContext) -> Expression:
        operands = parse_operands(argument, context)
        if not low <= len(operands) <= top:
            raise _wrong_count(operator.name, low, top, len(operands))
        return Call(with_collation(operator, context) if collated else operator, operands)

    return parse


def variadic(operator: Operator, *, collated: bool = False) -> OperatorParser:
    """A parser of any number of operands. `collated` passes `collation` to `make`."""

    def parse(argument: Any, context: ParseContext) -> Expression:
        return Call(with_collation(operator, context) if collated else operator, parse_operands(argument, context))

    return parse


def parse_operands(argument: Any, context: ParseContext) -> list[Expression]:
    """The operands of a positional operator."""
    if type(argument) is list:
        return [parse_operand(item, context) for item in argument]
    return [parse_operand(argument, context)]


def with_collation(operator: Operator, context: ParseContext) -> Operator:
    """The operator with the command's collation bound to its `make`."""
    return replace(operator, make=partial(operator.make, collation=context.collation))


def _wrong_count(name: str, low: int, high: int, count: int) -> CommandError:
    if low == high:
        return CommandError(16020, f"Expression {name} takes exactly {low} arguments. {count} were passed in.")
    return CommandError(
        28667, f"Expression {name} takes at least {low} arguments, and at most {high}, but {count} were passed in."
    )


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """A parser of named arguments, in the order in which the operator's `make` takes them.

    `required` maps a name to the code raised if it is missing. `not_object` and `unknown` are codes for other errors.
    """

    operator: Operator
    names: tuple[str, ...]
    required: Mapping[str, int]
    not_object: int
    unknown: int

    def parse(self, argument: Any, context: ParseContext) -> Expression:
        """The call of the operator with these arguments. Raises as `read`, and the errors of the operands."""
        arguments = self.read(argument)
        return Call(
            self.operator,
            [parse_operand(arguments[name], context) if name in arguments else None for name in self.names],
        )

    def read(self, argument: Any) -> dict[str, Any]:
        """The arguments by name, checked. Raises `not_object`, `unknown` or a code of `required`."""
        return read_named(self.operator.name, argument, self.names, self.required, self.not_object, self.unknown)


_ONLY_OBJECTS: Final = frozenset({"$dateFromParts", "$dateToParts", "$dateToString"})
_DATES: Final = (
    "$dateAdd", "$dateDiff", "$dateFromParts", "$dateFromString", "$dateSubtract", "$dateToParts", "$dateToString",
    "$dateTrunc",
)  # fmt: skip
_UNKNOWN_ARGUMENTS: Final = {
    **dict.fromkeys(("$cond", "$filter", "$let", "$map"), "Unrecognized parameter to {}"),
    **dict.fromkeys(_DATES, "Unrecognized argument to {}"),
}
_EXPECTED_ARGUMENTS: Final = ". Expected arguments are startDate, unit, amount, and optionally timezone."


def read_named(
    name: str, argument: Any, names: Iterable[str], required: Mapping[str, int], not_object: int, unknown: int
) -> dict[str, Any]:  # fmt: skip
    """The named arguments of an operator, checked: see `NamedArguments`."""
    if type(argument) is not dict:
        found = "its argument" if name in _ONLY_OBJECTS else f"an argument, found: {type_name(argument)}"
        raise CommandError(not_object, f"{name} only supports an object as {found}")
    for key in argument:
        if key not in names:
            complaint = _UNKNOWN_ARGUMENTS.get(name, "{} found an unknown argument")
            more = _EXPECTED_ARGUMENTS if name in ("$dateAdd", "$dateSubtract") else ""
            raise CommandError(unknown, f"{complaint.format(name)}: {key}{more}")
    for key, code in required.items():
        if key not in argument:
            raise CommandError(code, f"Missing '{key}' parameter to {name}")
    return argument


def unary(function: Callable[[Any], Any]) -> Make:
    """Return the `make` of a function of one value."""

    def make(operand: Evaluate) -> Evaluate:
        return lambda env: function(operand(env))

    return make


def binary(function: Callable[[Any, Any], Any]) -> Make:
    """Return the `make` of a function of two values. Both are evaluated."""

    def make(left: Evaluate, right: Evaluate) -> Evaluate:
        return lambda env: function(left(env), right(env))

    return make


def single(name: str, function: Callable[[Any], Any]) -> OperatorParser:
    """A parser of an operator that is a function of one value."""
    return positional(Operator(name, unary(function)), 1)


def of_values(function: Callable[..., Any]) -> Make:
    """Return the `make` of a function of any number of values. All are evaluated."""

    def make(*operands: Evaluate) -> Evaluate:

        def evaluate(env: Env) -> Any:
            return function(*[operand(env) for operand in operands])

        return evaluate

    return make


def of_type(
    kind: type, code: int, message: str, function: Callable[[Any], Any], *, nullable: bool = True
) -> Callable[[Any], Any]:  # fmt: skip
    """Return a function of one value of a type, None for null if `nullable`. Raises `code` for other types; the message
    ends with the type."""

    def checked(value: Any) -> Any:
        if type(value) is kind:
            return function(value)
        if nullable and is_nullish(value):
            return None
        raise CommandError(code, message + type_name(value))

    return checked


def combining(
    name: str, kinds: Iterable[type], code: int, message: str, function: Callable[..., Any], *,
    commutative: bool = False, collated: bool = False, names_type: bool = True,
) -> OperatorParser:  # fmt: skip
    """A parser of an associative operator: a function of the list of all values, null if one is null. Raises `code` for
    values of other types; the message ends with the type if `names_type`."""
    allowed = frozenset(kinds)

    def make(*operands: Evaluate, **options: Any) -> Evaluate:
        def evaluate(env: Env) -> Any:
            values = []
            for operand in operands:
                value = operand(env)
                if type(value) not in allowed:
                    if is_nullish(value):
                        return None
                    raise CommandError(code, message + type_name(value) if names_type else message)
                values.append(value)
            return function(values, **options)

        return evaluate

    return variadic(Operator(name, make, associative=True, commutative=commutative), collated=collated)


def checked_int32(value: Any, code: int, message: str, beyond: str) -> int:
    """A number as a 32-bit int. Raises `code` for other types, the message ending with the type; `code` + 1 for numbers
    that do not fit, the message `beyond` ending with the number."""
    if type(value) not in NUMBERS:
        raise CommandError(code, message + type_name(value))
    number = int32_of(value)
    if number is None:
        raise CommandError(code + 1, beyond + as_text(value))
    return number


def scoped(env: Env, names: tuple[str, ...]) -> tuple[Env, dict[str, Any]]:
    """An environment nested in `env`, and its variables for the caller to set. `names` are None at first."""
    variables = dict(env.variables)
    for name in names:
        variables[name] = None
    return Env(env.root, variables), variables
