"""Operators on values of any type: literals, variables, types, sizes, random numbers."""

from __future__ import annotations

from typing import Any, Final

import bson
from bson import Binary, Int64, Timestamp

from headrace.errors import CommandError
from headrace.query.document_metadata import check_unavailable
from headrace.query.expressions.expression import Call, Constant, Env, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.expression_parser import parse_operand
from headrace.query.expressions.field_paths import check_variable_name
from headrace.query.expressions.numbers import NUMBERS, is_nullish
from headrace.query.expressions.operator_parser import OperatorParser, of_type, positional, read_named, single, unary
from headrace.values.bson import MISSING, encode, type_name
from headrace.values.index_hash import hash_of


def _parse_literal(argument: Any, context: ParseContext) -> Expression:
    return Constant(argument)


def _parse_let(argument: Any, context: ParseContext) -> Expression:
    codes = {"vars": 16876, "in": 16877}
    read_named("$let", argument, codes, codes, 16874, 16875)
    variables = argument["vars"]
    if type(variables) is list:
        variables = {str(index): value for index, value in enumerate(variables)}
    if type(variables) is not dict:
        raise CommandError(10065, f"invalid parameter: expected an object (vars), found {type_name(variables)}")
    operands = [parse_operand(value, context) for value in variables.values()]
    for name in variables:
        check_variable_name(name, for_writing=True)
    inner = parse_operand(argument["in"], context.binding(*variables))
    return Call(_let(tuple(variables)), [*operands, inner]) if variables else inner


def _let(names: tuple[str, ...]) -> Operator:
    def make(*closures: Evaluate) -> Evaluate:
        *values, inner = closures

        def evaluate(env: Env) -> Any:
            variables = dict(env.variables)
            for name, value in zip(names, values):
                variables[name] = value(env)
            return inner(Env(env.root, variables))

        return evaluate

    return Operator("$let", make, folds=False)


def _parse_meta(argument: Any, context: ParseContext) -> Expression:
    if type(argument) is not str:
        raise CommandError(17307, "$meta only supports string arguments")
    if argument in context.metadata:
        return Call(Operator("$meta", context.metadata[argument], folds=False), [])
    check_unavailable(argument)
    return Constant(MISSING)


def _parse_rand(argument: Any, context: ParseContext) -> Expression:
    if type(argument) not in (dict, list):
        raise CommandError(10065, "invalid parameter: expected an object ($rand)")
    if argument:
        raise CommandError(3040501, "$rand does not currently accept arguments")
    random_source = context.random_source
    return Call(Operator("$rand", lambda: lambda env: random_source(), folds=False), [])


def _bson_size(value: dict[str, Any]) -> int:
    try:
        return len(encode(value))
    except bson.errors.InvalidDocument as error:
        raise CommandError(17419, str(error)) from error


def _binary_size(value: Any) -> Any:
    if is_nullish(value):
        return None
    if type(value) is str:
        return len(value.encode())
    if type(value) in (bytes, Binary):
        return len(value)
    raise CommandError(51276, f"$binarySize requires a string or BinData argument, found: {type_name(value)}")


def _timestamp_part(name: str, code: int, part: str) -> OperatorParser:
    message = f" Argument to {name} must be a timestamp, but is "
    apply = of_type(Timestamp, code, message, lambda value: Int64(getattr(value, part)))
    return single(name, apply)


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$binarySize": single("$binarySize", _binary_size),
    "$bsonSize": positional(
        Operator("$bsonSize", unary(of_type(dict, 31393, "$bsonSize requires a document input, found: ", _bson_size))),
        1,
    ),
    "$const": _parse_literal,
    "$isNumber": single("$isNumber", lambda value: type(value) in NUMBERS),
    "$let": _parse_let,
    "$literal": _parse_literal,
    "$meta": _parse_meta,
    "$rand": _parse_rand,
    "$toHashedIndexKey": single("$toHashedIndexKey", lambda value: Int64(hash_of(None if value is MISSING else value))),
    "$tsIncrement": _timestamp_part("$tsIncrement", 5687302, "inc"),
    "$tsSecond": _timestamp_part("$tsSecond", 5687301, "time"),
    "$type": single("$type", type_name),
}
