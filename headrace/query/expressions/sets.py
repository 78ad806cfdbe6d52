"""Set operators: arrays as sets of values, compared as MongoDB does (1 and 1.0 are one element).

Rule: unions and intersections are sorted. Differences are in the order of the first array. Of equal elements the first
is retained.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.expression import Call, Constant, Env, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.numbers import is_nullish, truthy
from headrace.query.expressions.operator_parser import (
    OperatorParser,
    combining,
    of_type,
    parse_operands,
    positional,
    single,
    with_collation,
)
from headrace.values.bson import type_name
from headrace.values.order import hash_key, sort_key

Keyed = dict[Hashable, Any]
"""Values by their hash keys."""


def _keyed(array: list[Any], collation: Any) -> Keyed:
    keyed: Keyed = {}
    for item in array:
        keyed.setdefault(hash_key(item, collation), item)
    return keyed


def _sorted(items: list[Any], collation: Any) -> list[Any]:
    return sorted(items, key=lambda item: sort_key(item, collation))


def _union(arrays: list[list[Any]], *, collation: Any) -> list[Any]:
    return _sorted(list(_keyed(list(chain.from_iterable(arrays)), collation).values()), collation)


def _intersection(arrays: list[list[Any]], *, collation: Any) -> list[Any]:
    common, *others = (_keyed(array, collation) for array in arrays or [[]])
    for other in others:
        if len(common) > len(other):
            common, other = other, common
        common = {key: item for key, item in common.items() if key in other}
    return _sorted(list(common.values()), collation)


def _array(code: int, name: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise CommandError(code, f"All operands of {name} must be arrays. One argument is of type: {type_name(value)}")
    return value


def _make_difference(left: Evaluate, right: Evaluate, *, collation: Any) -> Evaluate:
    def evaluate(env: Env) -> Any:
        minuend, subtrahend = left(env), right(env)
        if is_nullish(minuend) or is_nullish(subtrahend):
            return None
        _check_both("$setDifference", 17048, minuend, 17049, subtrahend)
        keys, seen, items = _keyed(subtrahend, collation), set[Hashable](), []
        for item in minuend:
            key = hash_key(item, collation)
            if key not in keys and key not in seen:
                seen.add(key)
                items.append(item)
        return items

    return evaluate


def _check_both(name: str, first_code: int, first: Any, second_code: int, second: Any) -> None:
    for which, code, value in (("First", first_code, first), ("Second", second_code, second)):
        if type(value) is not list:
            message = f"both operands of {name} must be arrays. {which} argument is of type: {type_name(value)}"
            raise CommandError(code, message)


def _make_equals(*operands: Evaluate, collation: Any) -> Evaluate:

    def evaluate(env: Env) -> bool:
        first: Keyed | None = None
        for operand in operands:
            keys = _keyed(_array(17044, "$setEquals", operand(env)), collation)
            if first is None:
                first = keys
            elif len(first) != len(keys) or not _contains_all(first, keys):
                return False
        return True

    return evaluate


_EQUALS: Final = Operator("$setEquals", _make_equals)


def _parse_equals(argument: Any, context: ParseContext) -> Expression:
    operands = parse_operands(argument, context)
    if len(operands) < 2:
        raise CommandError(17045, f"$setEquals needs at least two arguments had: {len(operands)}")
    return Call(with_collation(_EQUALS, context), operands)


def _make_subset(left: Evaluate, right: Evaluate, *, collation: Any, first_code: int = 17046) -> Evaluate:
    def evaluate(env: Env) -> bool:
        subset, superset = left(env), right(env)
        _check_both("$setIsSubset", first_code, subset, 17042, superset)
        return _contains_all(_keyed(superset, collation), _keyed(subset, collation))

    return evaluate


def _contains_all(keyed: Keyed, keys: Keyed) -> bool:
    return keys.keys() <= keyed.keys()


def _simplify_subset(call: Call) -> Expression:
    """Renumber the errors if the second operand is constant. The server computes its set once, and so uses other
    codes."""
    superset = call.operands[1]
    if type(superset) is not Constant:
        return call
    if type(superset.value) is not list:
        _check_both("$setIsSubset", 17311, [], 17311, superset.value)
    make = call.operator.make

    def remake(left: Evaluate, right: Evaluate) -> Evaluate:
        return make(left, right, first_code=17310)

    return Call(Operator("$setIsSubset", remake), call.operands)


def _elements(name: str, code: int, decisive: bool) -> OperatorParser:
    def decide(value: list[Any]) -> bool:
        return decisive if any(truthy(item) is decisive for item in value) else not decisive

    apply = of_type(list, code, f"{name}'s argument must be an array, but is ", decide, nullable=False)
    return single(name, apply)


def _merging(name: str, code: int, function: Callable[..., list[Any]]) -> OperatorParser:
    message = f"All operands of {name} must be arrays. One argument is of type: "
    return combining(name, [list], code, message, function, commutative=True, collated=True)


_SUBSET: Final = Operator("$setIsSubset", _make_subset, simplify=_simplify_subset)

OPERATORS: Final[dict[str, OperatorParser]] = {
    "$allElementsTrue": _elements("$allElementsTrue", 17040, False),
    "$anyElementTrue": _elements("$anyElementTrue", 17041, True),
    "$setDifference": positional(Operator("$setDifference", _make_difference), 2, collated=True),
    "$setEquals": _parse_equals,
    "$setIntersection": _merging("$setIntersection", 17047, _intersection),
    "$setIsSubset": positional(_SUBSET, 2, collated=True),
    "$setUnion": _merging("$setUnion", 17043, _union),
}
