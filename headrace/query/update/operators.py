"""The operators of updates, each parsed to a leaf of the tree.

Rule of $inc, $mul and $bit: the result has the wider type of the two (int < long < double < decimal). An int that
overflows becomes a long; a long that overflows is an error. A double is converted to a decimal with 15 digits. A result
equal in value and type to the old value is a no-op, so -0.0 does not replace 0.0.

Rule of $push: it inserts values into an array, then sorts the array, then slices it. If values were only appended to an
array that was not empty, the diff has only the new values. With $sort, with a $slice that removed elements, or with
values inserted before others, the diff has the complete array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bson import Decimal128, Int64, Regex
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.diff import identical
from headrace.query.expressions.numbers import (
    CONTEXT,
    INT32_MAX,
    INT32_MIN,
    NUMBERS,
    decimal_of,
    fits_long,
    int64_of,
    int_or_long,
    no_long,
    wrap,
)
from headrace.query.update.update_tree import (
    NO_OP,
    Appended,
    ApplyParams,
    FieldRef,
    UpdateLeafNode,
    depth,
    element_text,
    id_text,
)
from headrace.values.bson import MISSING, to_string, type_name
from headrace.values.order import compare, equal, hash_key, sort_key
from headrace.values.paths import array_index


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


# Arithmetic.


class ArithmeticNode(UpdateLeafNode):
    """$inc and $mul by `by`. `compute` works on Python numbers; `decimal` names the method of a decimal context."""

    __slots__ = ("by", "compute", "decimal", "name")

    def __init__(self, name: str, by: Any, compute: Callable[[Any, Any], Any], decimal: str) -> None:
        super().__init__()
        self.name = name
        self.by = by
        self.compute = compute
        self.decimal = decimal

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if old is MISSING:
            return self.by if self.name == "$inc" else self.result(0, params)
        kind = type(old)
        if kind is int and type(self.by) is int:
            value = self.compute(old, self.by)
            if not INT32_MIN <= value <= INT32_MAX:
                return Int64(value)
            return NO_OP if value == old else value
        if kind not in NUMBERS:
            raise CommandError(
                14,
                f"Cannot apply {self.name} to a value of non-numeric type. {{{id_text(params.document)}}} "
                f"has the field '{path[-1]}' of non-numeric type {type_name(old)}",
            )
        value = self.result(old, params)
        return NO_OP if type(value) is kind and _same_number(value, old) else value

    def result(self, old: Any, params: ApplyParams) -> Any:
        """The new value of a field that holds the number `old`. Raises 2 if a long overflows."""
        kinds = {type(old), type(self.by)}
        if Decimal128 in kinds:
            return wrap(getattr(CONTEXT, self.decimal)(decimal_of(old), decimal_of(self.by)))
        if float in kinds:
            return self.compute(float(old), float(self.by))
        value = self.compute(int(old), int(self.by))
        if fits_long(value):
            return int_or_long(value) if kinds == {int} else Int64(value)
        raise CommandError(
            2,
            f"Failed to apply {self.name} operations to current value ({_typed(old)}) "
            f"for document {{{id_text(params.document)}}}",
        )


def _same_number(left: Any, right: Any) -> bool:
    if type(left) is Decimal128:
        return bool(left.to_decimal() == right.to_decimal())
    return bool(left == right)


def _typed(number: Any) -> str:
    return f"({'NumberLong' if type(number) is Int64 else 'NumberInt'}){to_string(number)}"


class BitNode(UpdateLeafNode):
    """$bit: applies the operations in order; a missing field counts as int 0."""

    __slots__ = ("operations",)

    def __init__(self, operations: tuple[tuple[Callable[[Any, Any], Any], Any], ...]) -> None:
        super().__init__()
        self.operations = operations

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        kind = int if old is MISSING else type(old)
        if kind is not int and kind is not Int64:
            raise CommandError(
                2,
                f"Cannot apply $bit to a value of non-integral type.{id_text(params.document)} "
                f"has the field {path[-1]} of non-integer type {type_name(old)}",
            )
        number = 0 if old is MISSING else int(old)
        for compute, operand in self.operations:
            number = compute(number, int(operand))
            if type(operand) is Int64:
                kind = Int64
        if old is not MISSING and kind is type(old) and number == old:
            return NO_OP
        return kind(number)


_BITWISE: Final = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def parse_bit(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$bit: {field: {and | or | xor: integer}}}. Raises 2 for any other argument."""
    if type(argument) is not dict:
        raise CommandError(
            2,
            f"The $bit modifier is not compatible with a {type_name(argument)}. "
            "You must pass in an embedded document: {$bit: {field: {and/or/xor: #}}",
        )
    operations = []
    for name, operand in argument.items():
        if name not in _BITWISE:
            raise CommandError(
                2,
                f"The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which is an unknown operator: "
                f"{{{element_text(field, argument)}}}",
            )
        if type(operand) is not int and type(operand) is not Int64:
            raise CommandError(
                2,
                f"The $bit modifier field must be an Integer(32/64 bit); a '{type_name(operand)}' "
                f"is not supported here: {{{element_text(name, operand)}}}",
            )
        operations.append((_BITWISE[name], operand))
    if not operations:
        raise CommandError(
            2,
            "You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}",
        )
    return BitNode(tuple(operations))


def parse_inc(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$inc: {field: number}}. Raises 14 for an argument that is not a number."""
    if type(argument) not in NUMBERS:
        raise CommandError(14, f"Cannot increment with non-numeric argument: {{{element_text(field, argument)}}}")
    return ArithmeticNode("$inc", argument, operator.add, "add")


def parse_mul(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$mul: {field: number}}. Raises 14 for an argument that is not a number."""
    if type(argument) not in NUMBERS:
        raise CommandError(14, f"Cannot multiply with non-numeric argument: {{{element_text(field, argument)}}}")
    return ArithmeticNode("$mul", argument, operator.mul, "multiply")


# Arrays.


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


Sorter = Callable[[list[Any]], None]

_PUSH_CLAUSES: Final = frozenset({"$each", "$position", "$slice", "$sort"})


class PushNode(UpdateLeafNode):
    """Inserts `values` at `position` (None: at the end), then sorts with `sort` (in place), then cuts to `slice`."""

    __slots__ = ("position", "slice", "sort", "values")

    def __init__(self, values: list[Any], position: int | None, sort: Sorter | None, cut: int | None) -> None:
        self.values = values
        self.position = position
        self.sort = sort
        self.slice = cut
        self.depth = 1 + max(map(depth, values), default=0)

    def change(self, old: Any, params: ApplyParams, path: FieldRef) -> Any:
        if old is MISSING:
            return self._changed([])[0]
        if type(old) is not list:
            raise CommandError(
                2,
                f"The field '{'.'.join(map(str, path))}' must be an array but is of type {type_name(old)} "
                f"in document {{{id_text(params.document)}}}",
            )
        array, kind = self._changed(old)
        if kind is NO_OP:
            return NO_OP
        return Appended(array, len(self.values)) if kind is Appended else array

    def _changed(self, old: list[Any]) -> tuple[list[Any], Any]:
        """(new array, kind of change): NO_OP, Appended, or None for any other change."""
        kind: Any = NO_OP
        array = list(old)
        if self.values:
            if self.position is None or self.position > len(array):
                array += self.values
                kind = Appended if old else None
            else:
                array[self.position : self.position] = self.values
                kind = None
        if self.sort is not None:
            self.sort(array)
            kind = None
        if self.slice is not None and abs(self.slice) < len(array):
            array = array[: self.slice] if self.slice >= 0 else array[self.slice :]
            kind = None
        return array, kind


def parse_push(field: str, argument: Any, collation: Any) -> UpdateLeafNode:
    """The leaf of {$push: {field: value | {$each: [...], $position, $sort, $slice}}}. Raises 2 for an invalid clause.

    An object without `$each` is the value to push.
    """
    if type(argument) is not dict or "$each" not in argument:
        return PushNode([argument], None, None, None)
    for name in argument:
        if name not in _PUSH_CLAUSES:
            raise CommandError(2, f"Unrecognized clause in $push: {name}")
    values = argument["$each"]
    if type(values) is not list:
        raise CommandError(
            2, f"The argument to $each in $push must be an array but it was of type: {type_name(values)}"
        )
    cut = _clause(argument, "$slice")
    sort = _parse_sort(argument["$sort"], collation) if "$sort" in argument else None
    return PushNode(values, _clause(argument, "$position"), sort, cut)


def _clause(argument: dict[str, Any], name: str) -> int | None:
    if name not in argument:
        return None
    number = int64_of(argument[name])
    if number is None:
        found = ", not of type: " if name == "$position" else " but was given type: "
        raise CommandError(2, f"The value for {name} must be an integer value{found}{type_name(argument[name])}")
    return number


def _parse_sort(pattern: Any, collation: Any) -> Sorter:
    if type(pattern) is not dict:
        if int64_of(pattern) not in (1, -1):
            raise CommandError(
                2,
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )
        return _by_value(int64_of(pattern) == -1, collation)
    if not pattern:
        raise CommandError(2, "The $sort pattern is empty when it should be a set of fields.")
    fields = []
    for path, direction in pattern.items():
        if int64_of(direction) not in (1, -1):
            raise CommandError(2, "The $sort element value must be either 1 or -1")
        if not path:
            raise CommandError(2, "The $sort field cannot be empty")
        if "" in path.split("."):
            raise CommandError(2, f"The $sort field is a dotted field but has an empty part: {path}")
        fields.append((tuple(path.split(".")), int64_of(direction) == -1))
    return _by_fields(fields, collation)


def _by_value(descending: bool, collation: Any) -> Sorter:
    def sort(array: list[Any]) -> None:
        array[:] = sorted(array, key=lambda value: sort_key(value, collation), reverse=descending)

    return sort


def _by_fields(fields: list[tuple[tuple[str, ...], bool]], collation: Any) -> Sorter:
    """Return a sorter by several fields. It sorts by the last field first, because the sorts are stable."""

    def sort(array: list[Any]) -> None:
        for path, descending in reversed(fields):
            array[:] = sorted(array, key=partial(_key_at, path, collation), reverse=descending)

    return sort


def _key_at(path: tuple[str, ...], collation: Any, value: Any) -> Any:
    return sort_key(_field(value, path), collation)


def _field(value: Any, components: tuple[str, ...]) -> Any:
    """The value at a path, which enters arrays only by index; None if there is none."""
    for component in components:
        if type(value) is dict:
            value = value.get(component)
        elif type(value) is list:
            index = array_index(component)
            value = value[index] if index is not None and index < len(value) else None
        else:
            return None
    return value


MODIFIERS: Final[dict[str, Callable[[str, Any, Any], UpdateLeafNode]]] = {
    "$addToSet": parse_add_to_set,
    "$bit": parse_bit,
    "$currentDate": parse_current_date,
    "$inc": parse_inc,
    "$max": lambda field, argument, collation: CompareNode(argument, 1, collation),
    "$min": lambda field, argument, collation: CompareNode(argument, -1, collation),
    "$mul": parse_mul,
    "$pop": parse_pop,
    "$pull": parse_pull,
    "$pullAll": parse_pull_all,
    "$push": parse_push,
    "$set": lambda field, argument, collation: SetNode(argument),
    "$setOnInsert": lambda field, argument, collation: SetOnInsertNode(argument),
    "$unset": lambda field, argument, collation: UnsetNode(),
}
"""The parsers of operators. $rename has two paths and its own parser."""
