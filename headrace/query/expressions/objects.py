"""Operators on objects: conversion to and from arrays of pairs, and single fields with any name."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.expression import ABSENT, Call, Constant, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.expression_parser import parse_operand
from headrace.query.expressions.field_paths import FieldPathExpression
from headrace.query.expressions.numbers import is_nullish
from headrace.query.expressions.operator_parser import (
    NamedArguments,
    OperatorParser,
    binary,
    of_type,
    positional,
    unary,
)
from headrace.values.bson import MISSING, type_name


def _to_array(value: dict[str, Any]) -> list[Any]:
    return [{"k": name, "v": item} for name, item in value.items()]


def _from_array(value: list[Any]) -> dict[str, Any]:
    if not value:
        return {}
    first = type(value[0])
    if first not in (list, dict):
        raise CommandError(40398, f"Unrecognised input type format for $arrayToObject: {type_name(value[0])}")
    made: dict[str, Any] = {}
    pairs = [_listed_pair(item) if first is list else _named_pair(item) for item in value]
    for name, item in pairs:
        if "\0" in name:
            code = 4940400 if first is list else 4940401
            raise CommandError(code, "Key field cannot contain an embedded null byte")
        made[name] = item
    return made


def _listed_pair(item: Any) -> tuple[str, Any]:
    if type(item) is not list:
        raise CommandError(40396, f"$arrayToObject requires a consistent input format, found: {type_name(item)}")
    if len(item) != 2:
        raise CommandError(40397, f"$arrayToObject requires an array of size 2 arrays,found array of size: {len(item)}")
    if type(item[0]) is not str:
        raise CommandError(40395, f"$arrayToObject requires a key of type string. Found key type: {type_name(item[0])}")
    return item[0], item[1]


def _named_pair(item: Any) -> tuple[str, Any]:
    if type(item) is not dict:
        raise CommandError(40391, f"$arrayToObject requires a consistent input format, found: {type_name(item)}")
    if len(item) != 2:
        raise CommandError(40392, f"$arrayToObject requires an object keys of 'k' and 'v'. Found {len(item)} keys")
    if "k" not in item or "v" not in item:
        raise CommandError(40393, "$arrayToObject requires an object with keys 'k' and 'v'")
    if type(item["k"]) is not str:
        raise CommandError(40394, f"$arrayToObject requires 'k' to be a string. Found type: {type_name(item['k'])}")
    return item["k"], item["v"]


def _get_field(name: Any, source: Any) -> Any:
    if type(name) is not str:
        raise CommandError(3041704, f"$getField requires 'field' to evaluate to type String, but got {type_name(name)}")
    if source is None:
        return None
    return source.get(name, MISSING) if type(source) is dict else MISSING


_GET_FIELD: Final = Operator("$getField", binary(_get_field), folds=False)
_GET_NAMED: Final = NamedArguments(
    _GET_FIELD, ("field", "input"), {"field": 3041702, "input": 3041703}, not_object=3041701, unknown=3041701
)


def _parse_get_field(argument: Any, context: ParseContext) -> Expression:
    """Parse `{field, input}`, or only the name of a field in the current document (or an expression for the name)."""
    if type(argument) is dict and not next(iter(argument), "").startswith("$"):
        call = _GET_NAMED.parse(argument, context)
        assert isinstance(call, Call)
        name, source = call.operands
    else:
        name, source = parse_operand(argument, context), parse_operand("$$CURRENT", context)
    if type(name) is Constant and type(name.value) is not str:
        message = f"$getField requires 'field' to evaluate to type String, but got {type_name(name.value)}"
        raise CommandError(3041704, message)
    return Call(_GET_FIELD, [name, source])


def _set_field(operator: str) -> Operator:
    def make(name: Evaluate, source: Evaluate, value: Evaluate) -> Evaluate:
        def evaluate(env: Any) -> Any:
            document = source(env)
            if is_nullish(document):
                return None
            if type(document) is not dict:
                message = f"{operator} requires 'input' to evaluate to type Object, but got {type_name(document)}"
                raise CommandError(4161105, message)
            field, new = name(env), value(env)
            changed = dict(document)
            if new is MISSING:
                changed.pop(field, None)
            else:
                changed[field] = new
            return changed

        return evaluate

    return Operator(operator, make, folds=False)


_SET_NAMED: Final = NamedArguments(
    _set_field("$setField"), ("field", "input", "value"), {"field": 4161102, "input": 4161109, "value": 4161103},
    not_object=4161100, unknown=4161101,
)  # fmt: skip
_UNSET_NAMED: Final = NamedArguments(
    _set_field("$unsetField"), ("field", "input"), {"field": 4161102, "input": 4161109},
    not_object=4161100, unknown=4161101,
)  # fmt: skip


def _parse_set_field(argument: Any, context: ParseContext) -> Expression:
    call = _SET_NAMED.parse(argument, context)
    assert isinstance(call, Call)
    return Call(call.operator, [_constant_name("$setField", argument, call.operands[0]), *call.operands[1:]])


def _parse_unset_field(argument: Any, context: ParseContext) -> Expression:
    call = _UNSET_NAMED.parse(argument, context)
    assert isinstance(call, Call)
    return Call(call.operator, [_constant_name("$unsetField", argument, call.operands[0]), call.operands[1], ABSENT])


def _constant_name(operator: str, argument: dict[str, Any], name: Expression | None) -> Expression:
    constant = ABSENT if name is None else Constant({}) if argument["field"] == {} else name
    if isinstance(constant, FieldPathExpression):
        raise CommandError(4161108, f"{operator} requires 'field' to evaluate to a constant, and not a field path")
    if type(constant) is not Constant:
        raise CommandError(4161106, f"{operator} requires 'field' to evaluate to a constant")
    if type(constant.value) is not str:
        message = f"{operator} requires 'field' to evaluate to type String, but got {type_name(constant.value)}"
        raise CommandError(4161107, message)
    if "\0" in constant.value:
        raise CommandError(9534700, f"{operator} requires 'field' to have no null byte")
    return constant


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$arrayToObject": positional(
        Operator(
            "$arrayToObject",
            unary(of_type(list, 40386, "$arrayToObject requires an array input, found: ", _from_array)),
        ),
        1,
    ),
    "$getField": _parse_get_field,
    "$objectToArray": positional(
        Operator(
            "$objectToArray",
            unary(of_type(dict, 40390, "$objectToArray requires a document input, found: ", _to_array)),
        ),
        1,
    ),
    "$setField": _parse_set_field,
    "$unsetField": _parse_unset_field,
}
