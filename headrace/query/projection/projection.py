"""Projections: the fields of a document that find or `$project` returns, and computed fields.

    projection = parse_projection({"a.b": 1, "total": {"$add": ["$x", 1]}}, kind="find")
    projection({"_id": 1, "a": {"b": 2, "c": 3}, "x": 4})  -> {"_id": 1, "a": {"b": 2}, "total": 5}

Rule: first the named fields are taken from the document, level by level and through nested arrays, in the document's
order. Then the computed fields are set, in the order of the specification. If a path meets a value that is neither
object nor array, an inclusion omits the value, an exclusion retains it, and an object replaces it if a field below it
is computed. The given document is not changed; the result may share values with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from bson import Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.match import Predicate
from headrace.query.projection.specification import (
    ComputedField,
    ElemMatchField,
    ExcludedField,
    IncludedField,
    ProjectionScope,
    ProjectionSpec,
    ProjectionTree,
    ProjectionType,
    SlicedField,
    Transform,
    read_specification,
)
from headrace.time_limit import limited, limited_call
from headrace.values.bson import MISSING

if TYPE_CHECKING:
    from headrace.query.document_metadata import Readers

ComputeField = Callable[[dict[str, Any]], Any]
FieldTree = dict[str, Any]
"""The functions that compute fields, by name. A tree in place of a function computes fields below."""


def _filled(take: Transform, tree: ProjectionTree, variables: Mapping[str, Any]) -> Transform:
    """Return a projection that adds the computed fields to what `take` returns."""
    computed = _computed(tree, variables)
    if not computed:
        return take
    return lambda document: with_fields(take(document), document, computed)


def _taker(tree: ProjectionTree) -> Transform:
    """Return a function that returns only the fields of `tree`."""
    included: set[str] = set()
    below: dict[str, Callable[[Any], Any]] = {}
    for name, item in tree.fields.items():
        if isinstance(item, (IncludedField, SlicedField)):
            included.add(name)
        elif isinstance(item, ProjectionTree):
            below[name] = _value_taker(item)
    if not below:
        return lambda document: {name: value for name, value in document.items() if name in included}

    def take(document: dict[str, Any]) -> dict[str, Any]:
        result = {}
        for name, value in document.items():
            if name in included:
                result[name] = value
            elif name in below:
                inner = below[name](value)
                if inner is not MISSING:
                    result[name] = inner
        return result

    return take


def _value_taker(tree: ProjectionTree) -> Callable[[Any], Any]:
    """Return the projection of one value: MISSING for a scalar; in arrays only if a value replaces it."""
    take = _taker(tree)
    fills_gaps = tree.computes

    def take_value(value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return take(value)
        if kind is list:
            items = map(take_value, value)
            return list(items) if fills_gaps else [item for item in items if item is not MISSING]
        return MISSING

    return take_value


def _computed(tree: ProjectionTree, variables: Mapping[str, Any]) -> FieldTree:
    """The functions of everything computed in this level and below."""
    computed: FieldTree = {}
    for name, item in tree.fields.items():
        if isinstance(item, ProjectionTree) and item.computes:
            computed[name] = _computed(item, variables)
        elif isinstance(item, ComputedField):
            computed[name] = _evaluator(item, variables)
        elif isinstance(item, ElemMatchField):
            computed[name] = _element_finder(name, item)
    return computed


def with_fields(value: Any, root: Any, tree: FieldTree) -> Any:
    """The value with the fields of the tree added. Their functions get `root`."""
    if type(value) is list:
        return [with_fields(item, root, tree) for item in value]
    added = value.copy() if type(value) is dict else {}
    for name, branch in tree.items():
        if type(branch) is dict:
            added[name] = with_fields(added.get(name), root, branch)
            continue
        result = branch(root)
        if result is MISSING:
            added.pop(name, None)
        else:
            added[name] = result
    return added


def _evaluator(item: ComputedField, variables: Mapping[str, Any]) -> ComputeField:
    from headrace.query.expressions import Env  # plain projections do not need this
    from headrace.query.operation_memory import CONTAINERS, check

    evaluate = item.expression.evaluate

    def checked(document: dict[str, Any]) -> Any:
        value = evaluate(Env(document, variables))
        return check(value) if type(value) in CONTAINERS else value

    return checked


def _element_finder(name: str, item: ElemMatchField) -> ComputeField:
    predicate = item.element

    def find(document: dict[str, Any]) -> Any:
        value = document.get(name)
        if type(value) is not list:
            return MISSING
        index = predicate.matched_index(document)
        return MISSING if index is None else [value[int(index)]]

    return find


def _leaver(tree: ProjectionTree) -> Transform:
    """Return a function that returns all fields except the fields that `tree` excludes."""
    left_out = (ComputedField, ElemMatchField, ExcludedField)
    dropped = frozenset(name for name, item in tree.fields.items() if isinstance(item, left_out))
    below = {name: _value_leaver(item) for name, item in tree.fields.items() if isinstance(item, ProjectionTree)}
    if not below and not dropped:
        return lambda document: document

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        result = {name: value for name, value in document.items() if name not in dropped}
        for name, exclude in below.items():
            if name in result:
                result[name] = exclude(result[name])
        return result

    return apply


def _value_leaver(tree: ProjectionTree) -> Callable[[Any], Any]:
    exclude = _leaver(tree)

    def exclude_value(value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return exclude(value)
        return [exclude_value(item) for item in value] if kind is list else value

    return exclude_value


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
    tree = specification.tree
    taken = _taker(tree) if specification.mode is ProjectionType.INCLUSION else _leaver(tree)
    first = _filled(taken, tree, variables)
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
