"""Operators that set or remove a field: $currentDate, $max, $min, $set, $setOnInsert, $unset."""

from __future__ import annotations

from typing import Any

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.diff import identical
from headrace.query.update.leaf_node import NO_OP, ApplyParams, FieldRef, UpdateLeafNode, depth
from headrace.values.bson import MISSING, type_name
from headrace.values.order import compare


class SetNode(UpdateLeafNode):
    """$set: sets the value. It is a no-op if the field already has identical BSON."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
        self.depth = depth(value)

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        return NO_OP if identical(old, self.value) else self.value


class SetOnInsertNode(SetNode):
    """$setOnInsert: like $set, but only when an upsert inserts the document."""

    __slots__ = ()
    insert_only = True


class UnsetNode(UpdateLeafNode):
    """$unset: removes the field. An array element becomes null (see `Walk`)."""

    __slots__ = ()
    creates = False
    lenient = True

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        return MISSING


class CompareNode(UpdateLeafNode):
    """$min and $max: sets the value if it is less (`sign` -1) or greater (1) than the old one."""

    __slots__ = ("collation", "sign", "value")

    def __init__(self, value: Any, sign: int, collation: Any) -> None:
        self.value = value
        self.sign = sign
        self.collation = collation
        self.depth = depth(value)

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if old is MISSING:
            return self.value
        return self.value if compare(self.value, old, self.collation) == self.sign else NO_OP


class CurrentDateNode(UpdateLeafNode):
    """$currentDate: sets the time of the update as a date or a timestamp. It is never a no-op."""

    __slots__ = ("as_timestamp",)

    def __init__(self, as_timestamp: bool) -> None:
        super().__init__()
        self.as_timestamp = as_timestamp

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        return params.context.timestamp if self.as_timestamp else DatetimeMS(params.context.now_ms)


def parse_current_date(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$currentDate: {field: bool | {$type: "date" | "timestamp"}}}; a bool means a date. Raises 2."""
    if type(argument) is bool:
        return CurrentDateNode(False)
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
    return CurrentDateNode(kind == "timestamp")
