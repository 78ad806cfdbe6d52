"""Operators that put a value in a field or take it away: $currentDate, $max, $min, $set, $setOnInsert, $unset."""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.diff import identical
from headrace.query.update.leaf_node import KEEP, Leaf, Moment, Path, depth
from headrace.values.bson import MISSING, type_name
from headrace.values.order import compare


class Set(Leaf):
    """The value itself; nothing changes if the field holds the same bytes already."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
        self.depth = depth(value)

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        return KEEP if identical(old, self.value) else self.value


class SetOnInsert(Set):
    """The value, if an upsert is making the document."""

    __slots__ = ()
    insert_only = True


class Unset(Leaf):
    """Removes the field; an element of an array becomes null, which the walk sees to."""

    __slots__ = ()
    creates = False
    lenient = True

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        return MISSING


class Extreme(Leaf):
    """$min and $max: the value if it is less (`sign` -1) or greater (1) than what is there."""

    __slots__ = ("collation", "sign", "value")

    def __init__(self, value: Any, sign: int, collation: Any) -> None:
        self.value = value
        self.sign = sign
        self.collation = collation
        self.depth = depth(value)

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        if old is MISSING:
            return self.value
        return self.value if compare(self.value, old, self.collation) == self.sign else KEEP


class CurrentDate(Leaf):
    """The time of the update as a date or a timestamp; always a change."""

    __slots__ = ("as_timestamp",)

    def __init__(self, as_timestamp: bool) -> None:
        super().__init__()
        self.as_timestamp = as_timestamp

    def change(self, old: Any, moment: Moment, path: Path) -> Any:
        return moment.timestamp if self.as_timestamp else moment.now()


def parse_current_date(field: str, argument: Any, collation: Any) -> Leaf:
    """A bool of either value means a date; otherwise {$type: "date" | "timestamp"}."""
    if type(argument) is bool:
        return CurrentDate(False)
    if type(argument) is not dict:
        raise CommandError(
            2,
            f"{type_name(argument)} is not valid type for $currentDate. "
            "Please use a boolean ('true') or a $type expression ({$type: 'timestamp/date'}).",
        )
    kind = None
    for name, value in argument.items():
        if name != "$type":
            raise CommandError(2, f"Unrecognized $currentDate option: {name}")
        kind = value
    if kind not in ("date", "timestamp"):
        raise CommandError(
            2,
            "The '$type' string field is required to be 'date' or 'timestamp': "
            "{$currentDate: {field : {$type: 'date'}}}",
        )
    return CurrentDate(kind == "timestamp")


def parse_max(field: str, argument: Any, collation: Any) -> Leaf:
    return Extreme(argument, 1, collation)


def parse_min(field: str, argument: Any, collation: Any) -> Leaf:
    return Extreme(argument, -1, collation)


def parse_set(field: str, argument: Any, collation: Any) -> Leaf:
    return Set(argument)


def parse_set_on_insert(field: str, argument: Any, collation: Any) -> Leaf:
    return SetOnInsert(argument)


def parse_unset(field: str, argument: Any, collation: Any) -> Leaf:
    return Unset()
