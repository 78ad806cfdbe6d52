"""The check that an index has every document that a filter can match. Sparse and partial indexes lack documents.

A partial index has the documents that match its filter. So the conditions of the operation must imply this filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.execution.planner.bounds import PathCondition
from headrace.execution.planner.index_access import IndexAccess
from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, MatchType, Or
from headrace.running_command import running_command
from headrace.store.catalog import Index
from headrace.store.indexes.index_entries import key_maker
from headrace.values.order import equal

_ASCENDING: Final = frozenset({MatchType.GT, MatchType.GTE})
_DESCENDING: Final = frozenset({MatchType.LT, MatchType.LTE})


def usable(indexes: Sequence[Index]) -> Sequence[Index]:
    """Return the indexes that the running command may use: under the strict stable API, no sparse indexes."""
    command = running_command()
    if command is None or not command.is_strict:
        return indexes
    return [index for index in indexes if not index.spec.get("sparse")]


def holds(index: Index, conditions: Sequence[PathCondition], *, hinted: bool = False) -> bool:
    """Whether the index has every document that can match. A hinted sparse index counts as complete."""
    if index.spec.get("sparse") and not hinted:
        paths = index.spec["key"]
        if not any(condition.needs_value and condition.path in paths for condition in conditions):
            return False
    covers: Any = key_maker(index).covers
    return covers is None or follows(covers.node, conditions)


def is_safe(way: IndexAccess, conditions: Sequence[PathCondition]) -> bool:
    """Whether a sparse index has every key that the access needs: array elements without its fields have no key."""
    if not way.index.spec.get("sparse") or not way.may_repeat:
        return True
    path = next(iter(way.index.spec["key"]))
    bounding = [item for item in conditions if item.path == path and item.intervals is not None]
    return not way.is_sorted and bool(bounding) and all(item.needs_value for item in bounding)


def follows(node: MatchExpression, conditions: Sequence[PathCondition]) -> bool:
    """Whether the conditions imply `node`."""
    if isinstance(node, And):
        return all(follows(child, conditions) for child in node.children)
    if isinstance(node, Or):
        return any(follows(child, conditions) for child in node.children)
    if not isinstance(node, LeafMatchExpression):
        return False
    return any(
        condition.path == node.path and condition.needs_value and _implies(condition.node, node)
        for condition in conditions
    )


def _implies(known: MatchExpression, wanted: LeafMatchExpression) -> bool:
    """Whether every value that fulfils `known` also fulfils `wanted`."""
    if wanted.kind is MatchType.EXISTS:
        return True
    if not isinstance(known, LeafMatchExpression):
        return False
    if known.kind is MatchType.EQ:
        return type(known.wanted) is not list and wanted.test(known.wanted)
    if known.kind is MatchType.IN:
        return all(item is not None and type(item) is not list and wanted.test(item) for item in known.argument)
    for kinds in (_ASCENDING, _DESCENDING):
        if known.kind in kinds and wanted.kind in kinds:
            same = known.kind is wanted.kind and equal(known.argument, wanted.argument)
            return same or wanted.test(known.argument)
    return False
