"""The operators of a field: `{path: {$operator: argument}}`, each parsed to one condition.

Rule: arguments are accepted as leniently as MongoDB accepts them (`$exists: 0`). Invalid arguments raise MongoDB's
code, mostly 2 (BadValue), and 9 (FailedToParse) for numbers of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Decimal128, Int64, Regex

from headrace.errors import CommandError
from headrace.query.expressions.numbers import int64_of, no_long, truthy
from headrace.query.match.bits import parse_bits
from headrace.query.match.filter_parser import (
    FilterContext,
    equality,
    is_operator_object,
    parse_field,
    parse_filter_tree,
    regex_leaf,
)
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    ElemMatchExpression,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Not,
)
from headrace.query.match.type_test import has_type, parse_types
from headrace.query.match.value_tests import exists, has_size, is_in, leaves_remainder, ordered, truncated_int64
from headrace.values.order import regex_options

FieldOperatorParser = Callable[[str, str, Any, FilterContext], MatchExpression]
NUMBERS: Final = (int, Int64, float, Decimal128)


def parse_operators(path: str, document: dict[str, Any], context: FilterContext) -> list[MatchExpression]:
    """The conditions of `{path: {$op: ..., $op: ...}}`. `document` is not empty and its first name begins with `$`.

    Raises 2 for an unknown operator, and the errors of the operators.
    """
    conditions: list[MatchExpression] = []
    for name, argument in document.items():
        if name in NEAR:
            return [_parse_near(path, document, context)]
        if name in ("$regex", "$options"):
            if name == "$regex" or "$regex" not in document:
                conditions.append(_parse_regex(path, document))
        elif name in OPERATORS:
            conditions.append(OPERATORS[name](path, name, argument, context))
        elif name != "$comment":
            raise CommandError(2, f"unknown operator: {name}")
    return conditions


def _parse_eq(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return equality(path, argument, context)


def _parse_ne(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        raise CommandError(2, "Can't have regex as arg to $ne.")
    return Not(equality(path, argument, context))


_ORDER_KINDS: Final = {
    "$gt": MatchType.GT, "$gte": MatchType.GTE, "$lt": MatchType.LT, "$lte": MatchType.LTE,
}  # fmt: skip


def _parse_order(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        raise CommandError(2, f"Can't have RegEx as arg to predicate over field '{path}'.")
    return LeafMatchExpression(_ORDER_KINDS[name], path, ordered(name, argument, context.collation), argument=argument)


def _parse_in(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, f"{name} needs an array")
    if dict in set(map(type, argument)):
        first_names = {next(iter(item), "") for item in argument if type(item) is dict}
        if any(is_operator_object({first: None}) for first in first_names):
            raise CommandError(2, f"cannot nest $ under {name}")
    if not argument:
        return AlwaysBoolean(False)
    if len(argument) == 1:
        return parse_field(path, argument[0], context)[0]
    return LeafMatchExpression(MatchType.IN, path, is_in(argument, context.collation), argument=argument)


def _parse_nin(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return Not(_parse_in(path, name, argument, context))


def _parse_all(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, "$all needs an array")
    if not argument:
        return AlwaysBoolean(False)
    first = argument[0]
    with_elements = type(first) is dict and next(iter(first), "") == "$elemMatch"
    conditions: list[MatchExpression] = []
    for item in argument:
        named = next(iter(item), "") if type(item) is dict else ""
        if with_elements:
            if named != "$elemMatch":
                raise CommandError(2, "$all/$elemMatch has to be consistent")
            conditions.append(_parse_elem_match(path, named, item[named], context))
        elif type(item) is dict and is_operator_object(item):
            raise CommandError(2, "no $ expressions in $all")
        else:
            conditions.append(parse_field(path, item, context)[0])
    return And(tuple(conditions))


def _parse_elem_match(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not dict:
        raise CommandError(2, "$elemMatch needs an Object")
    first = next(iter(argument), "")
    by_value = is_operator_object(argument) and first not in _LOGICAL
    if not by_value:
        if "$where" in argument:
            raise CommandError(2, "$elemMatch cannot contain $where expression")
        return ElemMatchExpression(path, parse_filter_tree(argument, context.nested()), by_value=False)
    return ElemMatchExpression(path, And(tuple(parse_operators("", argument, context.nested()))), by_value=True)


_LOGICAL: Final = ("$and", "$nor", "$or", "$where", "$expr", "$jsonSchema", "$comment")


def _parse_not(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is Regex:
        return Not(regex_leaf(path, argument.pattern, regex_options(argument)))
    if type(argument) is not dict:
        raise CommandError(2, "$not needs a regex or a document")
    if not argument:
        raise CommandError(2, "$not cannot be empty")
    return Not(And(tuple(parse_operators(path, argument, context))))


def _parse_exists(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    leaf = LeafMatchExpression(MatchType.EXISTS, path, exists)
    return leaf if truthy(argument) else Not(leaf)


def _parse_size(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    size = int64_of(argument)
    if size is None:
        raise CommandError(2, "Failed to parse $size. " + no_long(name, argument))
    if size < 0:
        raise CommandError(2, f"Failed to parse $size. Expected a non-negative number in: $size: {argument}")
    return LeafMatchExpression(MatchType.SIZE, path, has_size(size), enter_last=False)


def _parse_mod(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    if type(argument) is not list:
        raise CommandError(2, "malformed mod, needs to be an array")
    if len(argument) != 2:
        raise CommandError(2, f"malformed mod, {'not enough' if len(argument) < 2 else 'too many'} elements")
    numbers = []
    for role, item in zip(("divisor", "remainder"), argument):
        if type(item) not in NUMBERS:
            raise CommandError(2, f"malformed mod, {role} not a number")
        number = truncated_int64(item)
        if number is None:
            raise CommandError(2, f"malformed mod, {role} value is invalid :: caused by :: Out of bounds or NaN")
        numbers.append(number)
    if numbers[0] == 0:
        raise CommandError(2, "divisor cannot be 0")
    return LeafMatchExpression(MatchType.MOD, path, leaves_remainder(*numbers))


def _parse_type(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    types = parse_types(argument)
    return LeafMatchExpression(MatchType.TYPE, path, has_type(types), argument=types)


_BIT_KINDS: Final = {
    "$bitsAllClear": MatchType.BITS_ALL_CLEAR, "$bitsAllSet": MatchType.BITS_ALL_SET,
    "$bitsAnyClear": MatchType.BITS_ANY_CLEAR, "$bitsAnySet": MatchType.BITS_ANY_SET,
}  # fmt: skip


def _parse_bits(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    return LeafMatchExpression(_BIT_KINDS[name], path, parse_bits(name, argument, path))


def _parse_region(path: str, name: str, argument: Any, context: FilterContext) -> MatchExpression:
    from headrace.geo.regions import parse_region  # imported only when a filter needs it

    region = parse_region(name, argument)
    return LeafMatchExpression(MatchType.GEO, path, region, argument=region)


def _parse_near(path: str, document: dict[str, Any], context: FilterContext) -> MatchExpression:
    """`$near` with the distances beside it. No other operator may be beside it."""
    if context.nears is None:
        raise CommandError(
            5626500, "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require "
            "sorting geospatial data. If you do not need sort, consider using $geoWithin instead."
        )  # fmt: skip
    from headrace.geo.near import parse_near
    from headrace.query.match.geo_near import GeoNearMatchExpression

    near = parse_near(path, document)
    context.nears.append(near)
    return GeoNearMatchExpression(near)


def _parse_regex(path: str, document: dict[str, Any]) -> MatchExpression:
    """`$regex` with its `$options`, in either order."""
    if "$regex" not in document:
        raise CommandError(2, "$options needs a $regex")
    pattern, options = document["$regex"], document.get("$options")
    if options is not None and type(options) is not str:
        raise CommandError(2, "$options has to be a string")
    if type(pattern) is Regex:
        inner = regex_options(pattern)
        if inner and options is not None:
            code = 51074 if next(iter(document)) == "$options" else 51075
            raise CommandError(code, "options set in both $regex and $options")
        return regex_leaf(path, pattern.pattern, inner or options or "")
    if type(pattern) is not str:
        raise CommandError(2, "$regex has to be a string")
    return regex_leaf(path, pattern, options or "")


OPERATORS: Final[dict[str, FieldOperatorParser]] = {
    "$all": _parse_all,
    "$bitsAllClear": _parse_bits,
    "$bitsAllSet": _parse_bits,
    "$bitsAnyClear": _parse_bits,
    "$bitsAnySet": _parse_bits,
    "$elemMatch": _parse_elem_match,
    "$eq": _parse_eq,
    "$exists": _parse_exists,
    "$geoIntersects": _parse_region,
    "$geoWithin": _parse_region,
    "$gt": _parse_order,
    "$gte": _parse_order,
    "$in": _parse_in,
    "$lt": _parse_order,
    "$lte": _parse_order,
    "$mod": _parse_mod,
    "$ne": _parse_ne,
    "$nin": _parse_nin,
    "$not": _parse_not,
    "$size": _parse_size,
    "$type": _parse_type,
    "$within": _parse_region,
}

NEAR: Final = frozenset({"$geoNear", "$near", "$nearSphere"})
