"""Compiles a projection tree to a function of a document: included, excluded and computed fields.

Rule: first the named fields are taken from the document, level by level and through nested arrays. Then the computed
fields are set. If a path meets a value that is neither object nor array, an inclusion omits the value, an exclusion
retains it, and an object replaces it if a field below it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.query.projection.specification import (
    ComputedField,
    ElemMatchField,
    ExcludedField,
    IncludedField,
    ProjectionTree,
    SlicedField,
    Transform,
)
from headrace.values.bson import MISSING

ComputeField = Callable[[dict[str, Any]], Any]
FieldTree = dict[str, Any]
"""The functions that compute fields, by name. A tree in place of a function computes fields below."""


def includer(tree: ProjectionTree, variables: Mapping[str, Any]) -> Transform:
    """The projection that returns only the fields of `tree`, and the fields that it computes."""
    return _filled(_taker(tree), tree, variables)


def excluder(tree: ProjectionTree, variables: Mapping[str, Any]) -> Transform:
    """The projection that returns all fields except the fields that `tree` excludes, and adds the computed fields."""
    return _filled(_leaver(tree), tree, variables)


def _filled(take: Transform, tree: ProjectionTree, variables: Mapping[str, Any]) -> Transform:
    computed = _computed(tree, variables)
    if not computed:
        return take
    return lambda document: with_fields(take(document), document, computed)


def _taker(tree: ProjectionTree) -> Transform:
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
    from headrace.query.expansion import CONTAINERS, check
    from headrace.query.expressions import Env  # plain projections do not need this

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
