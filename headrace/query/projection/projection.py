"""Projections: the fields of a document that find or `$project` returns, and computed fields.

    projection = parse_projection({"a.b": 1, "total": {"$add": ["$x", 1]}}, kind="find")
    projection({"_id": 1, "a": {"b": 2, "c": 3}, "x": 4})  -> {"_id": 1, "a": {"b": 2}, "total": 5}

Rule: included and retained fields are in the document's order, computed ones follow in the order of the specification.
The given document is not changed; the result may share values with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from bson import Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.match import Predicate
from headrace.query.projection.executor import excluder, includer
from headrace.query.projection.specification import (
    ProjectionScope,
    ProjectionSpec,
    ProjectionType,
    Transform,
    read_specification,
)
from headrace.time_limit import limited, limited_call

if TYPE_CHECKING:
    from headrace.query.document_metadata import Readers


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
        raise CommandError(51246, "positional operator '.$' "
                                  "couldn't find a matching element in the array")  # fmt: skip
    if int(index) >= len(value):
        raise CommandError(51247, "positional operator '.$' "
                                  "element mismatch")  # fmt: skip
    return {**level, path[0]: [value[int(index)]]}


class Projection:
    """A parsed projection: call it with a document. Hot loops use `apply`."""

    __slots__ = ("apply", "mode")

    def __init__(self, mode: ProjectionType, apply: Transform) -> None:
        self.mode = mode
        self.apply = limited(apply)

    def __call__(self, document: dict[str, Any]) -> dict[str, Any]:
        return self.apply(document)


@limited_call
def parse_projection(
    spec: dict[str, Any],
    *,
    kind: Literal["find", "aggregate"],
    predicate: Predicate | None = None,
    collation: Collation | None = None,
    variables: Mapping[str, Any] | None = None,
    bound: Mapping[str, Any] | None = None,
    metadata: Readers | None = None,
) -> Projection:
    """The projection of a specification.

    `kind` decides whether `$slice`, `$elemMatch` and `a.$` have their meaning in find. `predicate` is the filter of a
    find, for `a.$`. An empty specification returns the documents unchanged (raises 51272 for `aggregate`). Expressions
    may refer to `variables`, which have constant values, and to `bound`, whose values are read again for each document.
    `metadata` has the arguments of `$meta` for which documents have a value. Raises 31249 and 31250 for path
    collisions, 31253 and 31254 for mixed inclusion and exclusion, and the errors of expressions.
    """
    bound = {} if bound is None else bound
    constants = variables or {}
    if bound:
        from headrace.query.expressions import less_bound

        constants = less_bound(constants, bound)
    scope = ProjectionScope(collation, constants, frozenset(bound), metadata or {})
    specification = read_specification(spec, is_find=kind == "find", scope=scope)
    return Projection(specification.mode, _steps(specification, predicate, collation, bound))


def _steps(
    specification: ProjectionSpec,
    predicate: Predicate | None,
    collation: Collation | None,
    variables: Mapping[str, Any],
) -> Transform:
    if specification.mode is ProjectionType.INCLUSION:
        first = includer(specification.tree, variables)
    else:
        first = excluder(specification.tree, variables)
    slices = [slicer(path, skip, limit) for path, skip, limit in specification.slices]
    position = specification.positional
    if position is None and not slices:
        return first
    pick = positional_picker(position, predicate) if position is not None else None

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        result = first(document)
        if pick is not None:
            result = pick(document, result)
        for cut in slices:
            result = cut(result)
        return result

    return apply


def included_fields(projection: dict[str, Any]) -> tuple[str, ...] | None:
    """The fields that a projection includes by name; None if it does anything else."""
    if len(projection) > limits.INDEX_FIELD_COUNT_MAX + 1:  # no index has that many fields
        return None
    fields = [name for name in projection if name != "_id"]
    if any(name.startswith("$") or "." in name for name in fields):
        return None
    if not all(type(value) in (bool, float, int, Int64) for value in projection.values()):
        return None
    if not all(projection[name] for name in fields) or not (fields or projection.get("_id")):
        return None
    return (*fields, "_id") if projection.get("_id", True) else tuple(fields)
