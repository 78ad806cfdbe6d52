"""Dotted paths in documents and arrays, by MongoDB's rules for filters and for expressions.

Filters (`any_value`, `located_values`): an array on the path is entered. The rest of the path applies to each of its
objects, and a numeric component is also an index. An array at the end of the path yields its elements and then itself,
unless a numeric component led to it: then only itself. Scalars in an array on the path yield nothing. A scalar
elsewhere on the path yields MISSING.

Expressions (`get_path`): `$a.b` on an array yields the array of the values of its objects. No component is an
index. Arrays directly in arrays are ignored.

Sorting has its own rule, in `query/sort.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from headrace import limits
from headrace.values.bson import MISSING

ValueTest = Callable[[Any], bool]
_SPLIT_COUNT_MAX: Final = limits.PATH_COMPONENT_COUNT_MAX + 1


def split_path(dotted: str) -> tuple[str, ...]:
    """The components of a dotted path, including empty ones.

    A longer path is cut to `PATH_COMPONENT_COUNT_MAX` + 1 components. No document is that deep, so the path leads
    nowhere either way.
    """
    return tuple(dotted.split(".", _SPLIT_COUNT_MAX)[:_SPLIT_COUNT_MAX])


def is_index(component: str) -> bool:
    """Whether a component can be an array index: decimal digits without a leading zero."""
    return component.isdecimal() and component.isascii() and (component == "0" or component[0] != "0")


def array_index(component: str) -> int | None:
    """The array index of a component, or None."""
    return int(component) if is_index(component) else None


# ------------------------------------------------------------------ filters


def any_value(path: tuple[str, ...], test: ValueTest, *, enter_last: bool = True) -> Callable[[dict[str, Any]], bool]:
    """Return a function that tells whether `test` holds for any value of the path in a document.

    `test` is called with MISSING if there is no value. If `enter_last` is False, an array at the end of the path is
    tested as a whole only.
    """
    in_object = _any_top_level(path[-1], test) if enter_last else _top_level(path[-1], test)
    at_index: ValueTest = test
    for start in range(
        len(path) - 1, 0, -1
    ):  # from the end, since each array's walk shares the walks of the paths after it
        if start == len(path) - 1 and array_index(path[start]) is None:
            in_array = _any_of(partial(_values_of_objects, path[-1], enter_last=enter_last), test)
        else:
            in_array = _any_in_array(path[start], in_object, at_index)
        at_index = _inside(in_object, in_array)
        in_object = _any_below(path[start - 1], test, in_object, in_array)
    return in_object


def _any_below(
    name: str, test: ValueTest, in_object: Callable[[dict[str, Any]], bool], in_array: Callable[[list[Any]], bool]
) -> Callable[[dict[str, Any]], bool]:
    def walk(document: dict[str, Any]) -> bool:
        value = document.get(name, MISSING)
        kind = type(value)
        if kind is dict:
            return in_object(value)
        if kind is list:
            return in_array(value)
        return test(MISSING)

    return walk


def _top_level(name: str, test: ValueTest) -> Callable[[dict[str, Any]], bool]:
    return lambda document: test(document.get(name, MISSING))


def _any_top_level(name: str, test: ValueTest) -> Callable[[dict[str, Any]], bool]:
    def walk(document: dict[str, Any]) -> bool:
        value = document.get(name, MISSING)
        if type(value) is list:
            return any(map(test, value)) or test(value)
        return test(value)

    return walk


def _any_of(values_of: Callable[[list[Any]], Iterator[Any]], test: ValueTest) -> Callable[[list[Any]], bool]:
    return lambda array: any(map(test, values_of(array)))


def _values_of_objects(name: str, array: list[Any], *, enter_last: bool) -> Iterator[Any]:
    """The values of a field that is the end of the path, in the objects of an array: one frame for all of them."""
    for item in array:
        if type(item) is dict:
            value = item.get(name, MISSING)
            if enter_last and type(value) is list:
                yield from value
            yield value


def _any_in_array(
    component: str, in_object: Callable[[dict[str, Any]], bool], at_index: ValueTest
) -> Callable[[list[Any]], bool]:
    """Return a function that walks an array with the rest of the path, which begins with `component`.

    `in_object` walks an object with the same rest. `at_index` tests the element whose index is `component`.
    """
    index = array_index(component)
    if index is None:

        def walk(array: list[Any]) -> bool:
            return any(type(item) is dict and in_object(item) for item in array)

        return walk

    def walk_indexed(array: list[Any]) -> bool:
        if any(type(item) is dict and in_object(item) for item in array):
            return True
        return index < len(array) and at_index(array[index])

    return walk_indexed


def _inside(in_object: Callable[[dict[str, Any]], bool], in_array: Callable[[list[Any]], bool]) -> ValueTest:
    """Return a walk that continues from an array element found by its index. A scalar there yields nothing."""

    def walk(item: Any) -> bool:
        kind = type(item)
        return (kind is dict and in_object(item)) or (kind is list and in_array(item))

    return walk


def located_values(
    container: Any, path: tuple[str, ...], *, enter_last: bool = True
) -> Iterator[tuple[Any, str | None]]:
    """The values that `any_value` tests, in MongoDB's order, each with the index in the outermost array.

    If the value matches, the positional operator `$` stands for this index. The index is None if no array was entered.
    """
    if type(container) is list:
        yield from _located_in_array(container, path, enter_last)
        return
    value = container.get(path[0], MISSING)
    rest = path[1:]
    if not rest:
        if type(value) is list and enter_last:
            yield from ((item, str(index)) for index, item in enumerate(value))
        yield value, None
    elif type(value) in (dict, list):
        yield from located_values(value, rest, enter_last=enter_last)
    else:
        yield MISSING, None


def _located_in_array(array: list[Any], path: tuple[str, ...], enter_last: bool) -> Iterator[tuple[Any, str | None]]:
    wanted = array_index(path[0])
    for index, item in enumerate(array):
        label = str(index)
        if type(item) is dict:
            yield from ((value, label) for value, _ in located_values(item, path, enter_last=enter_last))
        if index != wanted:
            continue
        if len(path) == 1:
            yield item, label
        elif type(item) in (dict, list):
            yield from ((value, label) for value, _ in located_values(item, path[1:], enter_last=enter_last))


# ----------------------------------------------------------------- distinct


def spread_values(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The values that `distinct` returns for a path. Arrays on the way and at the end are spread one level."""
    if not path:
        yield from value if type(value) is list else (value,)
    elif type(value) is dict:
        if path[0] in value:
            yield from spread_values(value[path[0]], path[1:])
    elif type(value) is list:
        if path[0].isdigit() and int(path[0]) < len(value):
            yield from spread_values(value[int(path[0])], path[1:])
        for item in value:
            if type(item) is dict:
                yield from spread_values(item, path)


# -------------------------------------------------------------- expressions


def get_path(value: Any, path: Sequence[str], start: int = 0) -> Any:
    """Return `$a.b` of a value, by the names of `path` from number `start` on: a value, an array of values, or
    MISSING."""
    for index in range(start, len(path)):
        if type(value) is dict:
            value = value.get(path[index], MISSING)
        elif type(value) is list:
            values = [get_path(item, path, index) for item in value if type(item) is dict]
            return [item for item in values if item is not MISSING]
        else:
            return MISSING
    return value
