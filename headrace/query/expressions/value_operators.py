"""Operators on values of any type: literals, variables, types, sizes, random numbers; operators on objects."""

from __future__ import annotations

from typing import Any, Final

import bson
from bson import Binary, Int64, Timestamp

from headrace.errors import CommandError
from headrace.query.document_metadata import check_unavailable
from headrace.query.expressions.expression import (
    ABSENT,
    Call,
    Constant,
    Env,
    Evaluate,
    Expression,
    FieldPathExpression,
    Operator,
    ParseContext,
    check_variable_name,
    parse_operand,
)
from headrace.query.expressions.numbers import NUMBERS, is_nullish
from headrace.query.expressions.operator_parser import (
    NamedArguments,
    OperatorParser,
    binary,
    of_type,
    read_named,
    single,
)
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


# Objects.


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
    "$arrayToObject": single(
        "$arrayToObject", of_type(list, 40386, "$arrayToObject requires an array input, found: ", _from_array)
    ),
    "$binarySize": single("$binarySize", _binary_size),
    "$bsonSize": single("$bsonSize", of_type(dict, 31393, "$bsonSize requires a document input, found: ", _bson_size)),
    "$const": _parse_literal,
    "$getField": _parse_get_field,
    "$isNumber": single("$isNumber", lambda value: type(value) in NUMBERS),
    "$let": _parse_let,
    "$literal": _parse_literal,
    "$meta": _parse_meta,
    "$objectToArray": single(
        "$objectToArray",
        of_type(
            dict,
            40390,
            "$objectToArray requires a document input, found: ",
            lambda value: [{"k": name, "v": item} for name, item in value.items()],
        ),
    ),
    "$rand": _parse_rand,
    "$setField": _parse_set_field,
    "$toHashedIndexKey": single("$toHashedIndexKey", lambda value: Int64(hash_of(None if value is MISSING else value))),
    "$tsIncrement": _timestamp_part("$tsIncrement", 5687302, "inc"),
    "$tsSecond": _timestamp_part("$tsSecond", 5687301, "time"),
    "$type": single("$type", type_name),
    "$unsetField": _parse_unset_field,
}
