"""The keys under which an index holds a document: one for each element of the array that its paths reach.

    {a: [{b: 1, c: 2}, {b: 3, c: 4}]}  under  {a.b, a.c}   →  (1, 2), (3, 4)

All paths that meet an array must meet the same one (error 171). What is not there counts as null, but an array
with nothing in it as undefined, so that `{a: []}` and `{a: null}` do not collide. An element that is itself an
array is not opened again.

Source: MongoDB's documentation of multikey indexes, and what its server answers for these cases.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.errors import CommandError
from headrace.values.bson import MISSING


class _Undefined:
    """The value of an empty array in an index: BSON's undefined, which Python has no value for."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Final = _Undefined()

Row = tuple[Any, ...]


class _Reached(NamedTuple):
    """Where a path leads: to a value, or to an array with a rest of the path still to go."""

    value: Any
    rest: tuple[str, ...]


def index_rows(document: dict[str, Any], pattern: dict[str, Any]) -> list[Row]:
    """The values of the index's fields, MISSING where there is none; several rows where the paths meet an array.

    Raises 171 where two paths meet different arrays, 16746 where `a.0` may mean an element or a field.
    """
    return _rows([_Reached(document, tuple(path.split("."))) for path in pattern])


def _rows(columns: list[_Reached]) -> list[Row]:
    walked = [_walk(*column) for column in columns]
    arrays = [index for index, reached in enumerate(walked) if type(reached.value) is list]
    if not arrays:
        return [tuple(reached.value for reached in walked)]
    array = walked[arrays[0]].value
    if any(walked[index].value is not array for index in arrays):
        raise CommandError(171, "cannot index parallel arrays")
    if not array:
        empty = [UNDEFINED if not walked[index].rest else MISSING for index in arrays]
        return [_replaced(walked, arrays, empty)]
    rows: list[Row] = []
    for element in array:
        inside = [_inside(element, walked[index].rest) for index in arrays]
        rows += _rows_of_element(walked, arrays, inside)
    return rows


def _rows_of_element(walked: list[_Reached], arrays: list[int], inside: list[_Reached]) -> list[Row]:
    """The rows that one element of the array makes; what ends at the element is not opened again."""
    ended = {index: reached.value for index, reached in zip(arrays, inside) if not reached.rest}
    columns = list(walked)
    for index, reached in zip(arrays, inside):
        columns[index] = reached
    if not any(reached.rest for reached in inside):
        return [_replaced(walked, arrays, list(ended.values()))]
    open_columns = [_Reached(None, ()) if index in ended else column for index, column in enumerate(columns)]
    return [tuple(ended.get(index, value) for index, value in enumerate(row)) for row in _rows(open_columns)]


def _replaced(walked: list[_Reached], columns: list[int], values: list[Any]) -> Row:
    row = [reached.value for reached in walked]
    for index, value in zip(columns, values):
        row[index] = value
    return tuple(row)


def _inside(element: Any, rest: tuple[str, ...]) -> _Reached:
    """Where the rest of a path begins in an element; what is no document has no fields."""
    if not rest:
        return _Reached(element, ())
    return _Reached(element, rest) if type(element) is dict else _Reached(MISSING, ())


def _walk(value: Any, path: tuple[str, ...]) -> _Reached:
    """Follow a path to its end, or to the first array that has to be spread."""
    at = 0
    while at < len(path):
        if type(value) is dict:
            value = value.get(path[at], MISSING)
        elif type(value) is list:
            if not _is_position(value, path[at]):
                return _Reached(value, path[at:])
            value = value[int(path[at])] if int(path[at]) < len(value) else MISSING
        else:
            return _Reached(MISSING, ())
        at += 1
    return _Reached(value, ())


def _is_position(array: list[Any], name: str) -> bool:
    """Whether a number in a path means an element of this array, and not a field of its documents."""
    if not name.isdigit():
        return False
    as_field = any(type(item) is dict and name in item for item in array)
    if as_field and int(name) < len(array):
        raise CommandError(16746, f"Ambiguous field name reached in array (do not use numeric field names): {name}")
    return not as_field
