"""$push: inserts values into an array, then sorts the array, then slices it.

Rule: if values were only appended to an array that was not empty, the diff has only the new values. With $sort, with a
$slice that removed elements, or with values inserted before others, the diff has the complete array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.expressions.numbers import int64_of
from headrace.query.update.leaf_node import NO_OP, Appended, ApplyParams, FieldRef, UpdateLeafNode, depth
from headrace.query.update.message_text import id_text
from headrace.values.bson import MISSING, type_name
from headrace.values.order import sort_key
from headrace.values.paths import array_index

Sorter = Callable[[list[Any]], None]

_CLAUSES: Final = frozenset({"$each", "$position", "$slice", "$sort"})


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
        if name not in _CLAUSES:
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
