"""Operators on arrays: $addToSet, $pop, $pull, $pullAll. $push is in `push.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Regex

from headrace.errors import CommandError
from headrace.query.expressions.numbers import int64_of, no_long
from headrace.query.update.leaf_node import NO_OP, Appended, ApplyParams, FieldRef, UpdateLeafNode, depth
from headrace.values.bson import MISSING, type_name
from headrace.values.bson.to_string import to_string
from headrace.values.order import equal, hash_key

CONDITIONS: Final = frozenset({
    "$all", "$bitsAllClear", "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet", "$elemMatch", "$eq", "$exists",
    "$geoIntersects", "$geoNear", "$geoWithin", "$gt", "$gte", "$in", "$lt", "$lte", "$maxDistance",
    "$minDistance", "$mod", "$ne", "$near", "$nearSphere", "$nin", "$options", "$regex", "$size", "$type", "$within",
})  # fmt: skip
"""If the argument of $pull begins with one of these operators, it is a condition on the element, not on its fields."""


_FEW_COUNT: Final = 4
"""Up to this many values are compared with each element. For more, hash keys are compared."""


class AddToSetNode(UpdateLeafNode):
    """$addToSet: appends the values that equal no element.

    As in MongoDB 8, the diff has only the added values, unless the array was empty (before MongoDB 8, the complete
    array: reference §3.4).
    """

    __slots__ = ("collation", "values")

    def __init__(self, values: list[Any], collation: Any) -> None:
        distinct: dict[Any, Any] = {}
        for value in values:
            distinct.setdefault(hash_key(value, collation), value)
        self.values = list(distinct.values())
        self.collation = collation
        self.depth = 1 + max(map(depth, values), default=0)

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if old is MISSING:
            return list(self.values)
        if type(old) is not list:
            raise CommandError(
                2,
                f"Cannot apply $addToSet to non-array field. Field named '{path[-1]}' "
                f"has non-array type {type_name(old)}",
            )
        if len(self.values) < _FEW_COUNT:
            wanted = self.values
            added = [value for value in wanted if not any(equal(value, has, self.collation) for has in old)]
        else:
            keys = frozenset(hash_key(has, self.collation) for has in old)
            added = [value for value in self.values if hash_key(value, self.collation) not in keys]
        if not added:
            return NO_OP
        return Appended([*old, *added], len(added)) if old else added


class PopNode(UpdateLeafNode):
    """$pop: removes the first element (`first`) or the last."""

    __slots__ = ("first",)
    creates = False

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if type(old) is not list:
            raise CommandError(
                14,
                f"Path '{'.'.join(map(str, path))}' contains an element of non-array type '{type_name(old)}'",
            )
        if not old:
            return NO_OP
        return old[1:] if self.first else old[:-1]


class PullNode(UpdateLeafNode):
    """$pull and $pullAll: removes the elements for which `takes` is true."""

    __slots__ = ("takes",)
    creates = False

    def __init__(self, takes: Callable[[Any], bool]) -> None:
        super().__init__()
        self.takes = takes

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if type(old) is not list:
            raise CommandError(2, "Cannot apply $pull to a non-array value")
        remaining = [value for value in old if not self.takes(value)]
        return NO_OP if len(remaining) == len(old) else remaining


def parse_add_to_set(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$addToSet: {field: value | {$each: [value, ...]}}}. Raises 2 or 14 for an invalid $each."""
    if type(argument) is not dict or next(iter(argument), None) != "$each":
        return AddToSetNode([argument], collation)
    values = argument["$each"]
    if type(values) is not list:
        raise CommandError(
            14,
            f"The argument to $each in $addToSet must be an array but it was of type {type_name(values)}",
        )
    if len(argument) > 1:
        raise CommandError(2, f"Found unexpected fields after $each in $addToSet: {to_string(argument)}")
    return AddToSetNode(values, collation)


def parse_pop(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$pop: {field: 1 | -1}}. Raises 9 for any other argument."""
    number = int64_of(argument)
    if number is None:
        raise CommandError(9, no_long(field, argument))
    if number not in (1, -1):
        raise CommandError(9, f"$pop expects 1 or -1, found: {number}")
    return PopNode(number == -1)


def parse_pull(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$pull: {field: argument}}. Raises what a filter raises.

    An object that does not begin with one of `CONDITIONS` filters elements that are objects; a condition or a regular
    expression tests each element; any other value removes its equals.
    """
    from headrace.query.match import parse_filter

    if type(argument) is dict:
        if next(iter(argument), None) not in CONDITIONS:
            of_object = parse_filter(argument, collation=collation, plain=True)
            return PullNode(lambda value: type(value) is dict and of_object(value))
    elif type(argument) is not Regex:
        return PullNode(lambda value: equal(value, argument, collation))
    of_value = parse_filter({"value": argument}, collation=collation, plain=True)
    return PullNode(lambda value: of_value({"value": value}))


def parse_pull_all(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$pullAll: {field: [value, ...]}}. Raises 2 for an argument that is not an array."""
    if type(argument) is not list:
        raise CommandError(2, f"$pullAll requires an array argument but was given a {type_name(argument)}")
    keys = frozenset(hash_key(value, collation) for value in argument)
    return PullNode(lambda value: hash_key(value, collation) in keys)
