"""Comparisons, boolean operators and choices."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.expression import (
    Call,
    Constant,
    Env,
    Evaluate,
    Expression,
    Operator,
    ParseContext,
    parse_operand,
)
from headrace.query.expressions.numbers import is_nullish, truthy
from headrace.query.expressions.operator_parser import (
    Make,
    NamedArguments,
    OperatorParser,
    parse_operands,
    positional,
    unary,
    variadic,
)
from headrace.values.bson import type_name
from headrace.values.order import compare, equal


def _make_compare(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
    return lambda env: compare(left(env), right(env), collation)


def _make_equal(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
    return lambda env: equal(left(env), right(env), collation)


def _make_unequal(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
    return lambda env: not equal(left(env), right(env), collation)


def _ordered(*signs: int) -> Make:
    def make(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
        return lambda env: compare(left(env), right(env), collation) in signs

    return make


def _comparison(name: str, make: Make) -> OperatorParser:
    return positional(Operator(name, make), 2, collated=True)


def _make_and(*operands: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> bool:
        return all(truthy(operand(env)) for operand in operands)

    return evaluate


def _make_or(*operands: Evaluate) -> Evaluate:
    def evaluate(env: Env) -> bool:
        return any(truthy(operand(env)) for operand in operands)

    return evaluate


_AS_BOOL: Final = Operator("coerceToBool", unary(truthy))
_BOOLEAN: Final = frozenset(("$and", "$not", "$or", "coerceToBool"))


def _simplify_junction(call: Call) -> Expression:
    """Drop the constant operand, which folding moved last. If it decides the result, return it instead of the call."""
    last = call.operands[-1]
    if type(last) is not Constant:
        return call
    decisive = call.operator.name == "$or"
    if truthy(last.value) is decisive:
        return Constant(decisive)
    rest = call.operands[:-1]
    if len(rest) > 1:
        return Call(call.operator, rest)
    only = rest[0]
    return only if isinstance(only, Call) and only.operator.name in _BOOLEAN else Call(_AS_BOOL, rest)


def _make_not(operand: Evaluate) -> Evaluate:
    return lambda env: not truthy(operand(env))


def _make_cond(condition: Evaluate, then: Evaluate, otherwise: Evaluate) -> Evaluate:
    return lambda env: then(env) if truthy(condition(env)) else otherwise(env)


_COND: Final = Operator("$cond", _make_cond)
_COND_NAMED: Final = NamedArguments(
    _COND, ("if", "then", "else"), {"if": 17080, "then": 17081, "else": 17082}, not_object=16020, unknown=17083
)
_COND_POSITIONAL: Final = positional(_COND, 3)


def _parse_cond(argument: Any, context: ParseContext) -> Expression:
    if type(argument) is dict:
        return _COND_NAMED.parse(argument, context)
    return _COND_POSITIONAL(argument, context)


def _make_if_null(*operands: Evaluate) -> Evaluate:
    *tried, last = operands

    def evaluate(env: Env) -> Any:
        for operand in tried:
            value = operand(env)
            if not is_nullish(value):
                return value
        return last(env)

    return evaluate


_IF_NULL: Final = Operator("$ifNull", _make_if_null)


def _parse_if_null(argument: Any, context: ParseContext) -> Expression:
    operands = parse_operands(argument, context)
    if len(operands) < 2:
        raise CommandError(1257300, f"$ifNull needs at least two arguments, had: {len(operands)}")
    return Call(_IF_NULL, operands)


def _make_switch(default: Evaluate | None, *branches: Evaluate) -> Evaluate:
    pairs = tuple(zip(branches[::2], branches[1::2]))

    def evaluate(env: Env) -> Any:
        for case, then in pairs:
            if truthy(case(env)):
                return then(env)
        if default is None:
            message = "$switch could not find a matching branch for an input, and no default was specified."
            raise CommandError(40066, message)
        return default(env)

    return evaluate


def _parse_switch(argument: Any, context: ParseContext) -> Expression:
    if type(argument) is not dict:
        raise CommandError(40060, f"$switch requires an object as an argument, found: {type_name(argument)}")
    default: Expression | None = None
    branches: list[Expression | None] = []
    for name, value in argument.items():
        if name == "branches":
            branches = _parse_branches(value, context)
        elif name == "default":
            default = parse_operand(value, context)
        else:
            raise CommandError(40067, f"$switch found an unknown argument: {name}")
    if not branches:
        raise CommandError(40068, "$switch requires at least one branch.")
    return Call(_SWITCH, [default, *branches])


def _parse_branches(value: Any, context: ParseContext) -> list[Expression | None]:
    if type(value) is not list:
        raise CommandError(40061, f"$switch expected an array for 'branches', found: {type_name(value)}")
    nodes: list[Expression | None] = []
    for branch in value:
        if type(branch) is not dict:
            raise CommandError(40062, f"$switch expected each branch to be an object, found: {type_name(branch)}")
        parsed = {}
        for name, part in branch.items():
            if name not in ("case", "then"):
                raise CommandError(40063, f"$switch found an unknown argument to a branch: {name}")
            parsed[name] = parse_operand(part, context)
        if "case" not in parsed:
            raise CommandError(40064, "$switch requires each branch have a 'case' expression")
        if "then" not in parsed:
            raise CommandError(40065, "$switch requires each branch have a 'then' expression.")
        nodes += [parsed["case"], parsed["then"]]
    return nodes


def _simplify_switch(call: Call) -> Expression:
    """Raise 40069 if no branch can be taken and there is no default."""
    default, *branches = call.operands
    if default is None and all(type(case) is Constant and not truthy(case.value) for case in branches[::2]):
        raise CommandError(
            40069,
            "One cannot execute a switch statement where all the cases evaluate to false without a default",
        )
    return call


_SWITCH: Final = Operator("$switch", _make_switch, folds=False, simplify=_simplify_switch)


def _junction(name: str, make: Make) -> OperatorParser:
    return variadic(Operator(name, make, associative=True, commutative=True, simplify=_simplify_junction))


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$and": _junction("$and", _make_and),
    "$cmp": _comparison("$cmp", _make_compare),
    "$cond": _parse_cond,
    "$eq": _comparison("$eq", _make_equal),
    "$gt": _comparison("$gt", _ordered(1)),
    "$gte": _comparison("$gte", _ordered(0, 1)),
    "$ifNull": _parse_if_null,
    "$lt": _comparison("$lt", _ordered(-1)),
    "$lte": _comparison("$lte", _ordered(-1, 0)),
    "$ne": _comparison("$ne", _make_unequal),
    "$not": positional(Operator("$not", _make_not), 1),
    "$or": _junction("$or", _make_or),
    "$switch": _parse_switch,
}
