"""Operators that take values out of an array or keep it a set: $addToSet, $pop, $pull, $pullAll."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bson import Decimal128, Int64, Regex

from headrace.errors import CommandError
from headrace.query.update.leaf_node import KEEP, Appended, Leaf, Moment, Path, depth
from headrace.query.update.message_text import document_text, element_text
from headrace.values.bson import MISSING, type_name
from headrace.values.order import equal, hash_key

CONDITIONS: Final = frozenset({
    "$all", "$bitsAllClear", "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet", "$elemMatch", "$eq", "$exists",
    "$geoIntersects", "$geoNear", "$geoWithin", "$gt", "$gte", "$in", "$lt", "$lte", "$maxDistance",
    "$minDistance", "$mod", "$ne", "$near", "$nearSphere", "$nin", "$options", "$regex", "$size", "$type", "$within",
})  # fmt: skip
"""Operators that, standing first, make the argument of $pull a condition on the value rather than on its fields."""


class AddToSet(Leaf):
    """Adds at the end those of the values that no element equals.

    As MongoDB 8 does, the oplog keeps just what was added (before it kept the whole array: reference §3.4).
    """

    __slots__ = ("collation", "values")

    def __init__(self, values: list[Any], collation: Any) -> None:
        distinct: dict[Any, Any] = {}
        for value in values:
            distinct.setdefault(hash_key(value, collation), value)
        self.values = list(distinct.values())
        self.collation = collation
        self.depth = 1 + max(map(depth, values), default=0)

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        if old is MISSING:
            return list(self.values)
        if type(old) is not list:
            raise CommandError(
                2,
                f"Cannot apply $addToSet to non-array field. Field named '{path[-1]}' "
                f"has non-array type {type_name(old)}",
            )
        added = [value for value in self.values if not any(equal(value, has, self.collation) for has in old)]
        return Appended([*old, *added], len(added)) if added else KEEP


class Pop(Leaf):
    """Removes the first element (`first`) or the last."""

    __slots__ = ("first",)
    creates = False

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        if type(old) is not list:
            raise CommandError(
                14,
                f"Path '{'.'.join(map(str, path))}' contains an element of non-array type '{type_name(old)}'",
            )
        if not old:
            return KEEP
        return old[1:] if self.first else old[:-1]


class Pull(Leaf):
    """Removes the elements that `takes` says true of: $pull and $pullAll."""

    __slots__ = ("takes",)
    creates = False

    def __init__(self, takes: Callable[[Any], bool]) -> None:
        super().__init__()
        self.takes = takes

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        if type(old) is not list:
            raise CommandError(2, "Cannot apply $pull to a non-array value")
        kept = [value for value in old if not self.takes(value)]
        return KEEP if len(kept) == len(old) else kept


def parse_add_to_set(field: str, argument: Any, collation: Any) -> Leaf:
    if type(argument) is not dict or next(iter(argument), None) != "$each":
        return AddToSet([argument], collation)
    values = argument["$each"]
    if type(values) is not list:
        raise CommandError(
            14,
            f"The argument to $each in $addToSet must be an array but it was of type {type_name(values)}",
        )
    if len(argument) > 1:
        raise CommandError(2, f"Found unexpected fields after $each in $addToSet: {document_text(argument)}")
    return AddToSet(values, collation)


def parse_pop(field: str, argument: Any, collation: Any) -> Leaf:
    number = whole_number(argument)
    if number is None:
        wanted = "an integer" if type(argument) in (float, Decimal128) else "a number in"
        raise CommandError(9, f"Expected {wanted}: {element_text(field, argument)}")
    if number not in (1, -1):
        raise CommandError(9, f"$pop expects 1 or -1, found: {number}")
    return Pop(number == -1)


def parse_pull(field: str, argument: Any, collation: Any) -> Leaf:
    """An object without a condition first is a filter of objects; conditions and regexes test each value."""
    from headrace.query.match import parse_filter

    if type(argument) is dict:
        if next(iter(argument), None) not in CONDITIONS:
            of_object = parse_filter(argument, collation=collation)
            return Pull(lambda value: type(value) is dict and of_object(value))
    elif type(argument) is not Regex:
        return Pull(lambda value: equal(value, argument, collation))
    of_value = parse_filter({"value": argument}, collation=collation)
    return Pull(lambda value: of_value({"value": value}))


def parse_pull_all(field: str, argument: Any, collation: Any) -> Leaf:
    if type(argument) is not list:
        raise CommandError(2, f"$pullAll requires an array argument but was given a {type_name(argument)}")
    keys = frozenset(hash_key(value, collation) for value in argument)
    return Pull(lambda value: hash_key(value, collation) in keys)


def whole_number(value: Any) -> int | None:
    """The integer a number of any type is, if it is one and fits 64 bits."""
    if type(value) is int or type(value) is Int64:
        return int(value)
    if type(value) is Decimal128:
        number = value.to_decimal()
        whole = int(number) if number.is_finite() and number == number.to_integral_value() else None
    elif type(value) is float:
        whole = int(value) if value.is_integer() else None
    else:
        return None
    return whole if whole is not None and -(2**63) <= whole < 2**63 else None
