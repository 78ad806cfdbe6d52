"""The operators of find projections only: `$slice` and the positional `a.$`. Both are applied last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import CommandError
from headrace.query.match import Predicate
from headrace.query.projection.specification import Transform


def slicer(path: tuple[str, ...], skip: int | None, limit: int) -> Transform:
    """A step that cuts the arrays at `path`: the first `limit`, last `-limit`, or `limit` elements from `skip` on."""

    def cut(array: list[Any]) -> list[Any]:
        if skip is None:
            return array[:limit] if limit >= 0 else array[limit:]
        start = skip if skip >= 0 else max(0, len(array) + skip)
        return array[start : start + limit]

    return _at_arrays(path, cut)


def _at_arrays(path: tuple[str, ...], change: Callable[[list[Any]], list[Any]]) -> Transform:
    """A copy of the document with `change` applied to every array at `path`, also through arrays."""
    name, rest = path[0], path[1:]
    inner = _at_arrays(rest, change) if rest else None

    def in_value(value: Any) -> Any:
        kind = type(value)
        if inner is None:
            return change(value) if kind is list else value
        if kind is dict:
            return inner(value)
        return [in_value(item) for item in value] if kind is list else value

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        if name not in document:
            return document
        return {**document, name: in_value(document[name])}

    return apply


def positional_picker(
    path: tuple[str, ...], predicate: Predicate | None
) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """A step that reduces the first array on `path` to the element that the filter matched.

    The step takes the original document and the projected one. It raises 51246 if the filter matched no array element,
    51247 if this array lacks the matched element.
    """

    def pick(document: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        index = predicate.matched_index(document) if predicate is not None else None
        return _picked(result, path, index)

    return pick


def _picked(level: dict[str, Any], path: tuple[str, ...], index: str | None) -> dict[str, Any]:
    value = level.get(path[0])
    if type(value) is dict and len(path) > 1:
        return {**level, path[0]: _picked(value, path[1:], index)}
    if type(value) is not list:
        return level
    if index is None:
        raise CommandError(51246, "Executor error during find command :: caused by :: positional operator '.$' "
                                  "couldn't find a matching element in the array")  # fmt: skip
    if int(index) >= len(value):
        raise CommandError(51247, "Executor error during find command :: caused by :: positional operator '.$' "
                                  "element mismatch")  # fmt: skip
    return {**level, path[0]: [value[int(index)]]}
