"""Which way through which index an operation takes.

    1  A hint names the index.
    2  Ways are those through usable indexes whose first field the filter bounds, or that give the order asked for. An
       index is usable if it is not hidden and holds whatever can match: a sparse one needs a condition that a missing
       value does not meet, a partial one conditions from which its filter follows. One with another collation than
       the operation serves conditions without strings.
    3  Of several ways each is tried: its keys are counted, up to `TRIAL_COUNT`. The one with the fewest wins; among
       those with more, one that is bounded and sorted, then (with a limit) one that is sorted, then one with more
       values for its first fields, more bounds, and the older one.
    4  Without any way, an `$or` whose branches all have one takes these, one after the other.
    5  Else the collection is read.

A trial costs less than to remember its outcome would save, so that nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.execution.planner.bounds import PathCondition, conditions_of, equality_condition
from headrace.execution.planner.collated_bounds import conditions_for, has_order_of
from headrace.execution.planner.index_access import IndexAccess, index_access
from headrace.execution.planner.index_kinds import is_ordered, variants
from headrace.query.collation import Collation
from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, MatchType, Or
from headrace.query.sort import SortKey
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_entries import key_maker
from headrace.store.view import View
from headrace.values.order import equal

TRIAL_COUNT: Final = 100
"""Keys that are counted of each way."""
_ASCENDING: Final = frozenset({MatchType.GT, MatchType.GTE})
_DESCENDING: Final = frozenset({MatchType.LT, MatchType.LTE})


@dataclass(frozen=True, slots=True)
class OrAccess:
    """A way through an index for each branch of an `$or`, one after the other."""

    branches: tuple[IndexAccess, ...]


Access = IndexAccess | OrAccess


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and the other ways there were."""

    access: Access | None
    rejected: tuple[IndexAccess, ...] = ()

    @property
    def indexes(self) -> list[Index]:
        """Those that are used."""
        if self.access is None:
            return []
        branches = self.access.branches if isinstance(self.access, OrAccess) else (self.access,)
        return [branch.index for branch in branches]


NO_INDEX: Final = Choice(None)


@dataclass(frozen=True, slots=True)
class Order:
    """The order that is asked for, and of how many documents."""

    sort: SortKey | None = None
    limit: int | None = None


ANY_ORDER: Final = Order()


def choose(
    view: View, collection: Collection, node: MatchExpression | None, collation: Collation | None,
    order: Order = ANY_ORDER, hint: Index | None = None,
) -> Choice:  # fmt: skip
    """The way to what `node` matches; None as filter: everything. Raises 291 for a hint at an index that cannot do."""
    conditions = [] if node is None else conditions_of(node)
    is_complete = _is_complete(node, conditions)
    if hint is not None:
        if not hint.has_entries:
            return NO_INDEX
        ways = _through(hint, conditions, collation, order.sort, is_complete, hinted=True)
        if not ways:
            raise CommandError(291, "error processing query: planner returned error :: caused by :: No query solutions")
        return Choice(min(ways, key=lambda way: _rank(view, way, order)) if len(ways) > 1 else ways[0])
    ways = _ways(collection, conditions, collation, order.sort, is_complete)
    if ways:
        best = ways[0] if len(ways) == 1 else min(ways, key=lambda way: _rank(view, way, order))
        return Choice(best, tuple(way for way in ways if way is not best))
    return Choice(_branches(view, collection, node, collation))


def _ways(
    collection: Collection, conditions: list[PathCondition], collation: Collation | None, sort: SortKey | None,
    is_complete: bool,
) -> list[IndexAccess]:  # fmt: skip
    ways = []
    for index in collection.indexes:
        if not index.has_entries or index.spec.get("hidden"):
            continue
        ways += _through(index, conditions, collation, sort, is_complete)
    return ways


def _through(
    index: Index, conditions: list[PathCondition], collation: Collation | None, sort: SortKey | None,
    is_complete: bool, *, hinted: bool = False,
) -> list[IndexAccess]:  # fmt: skip
    """The ways through one index: several of a wildcard index, else one at most."""
    of_index = conditions_for(index, conditions, collation)
    if not _holds(index, of_index, hinted=hinted):
        return []
    sort = sort if has_order_of(index, collation) else None
    ways = []
    for variant, bounding in variants(index, of_index):
        way = index_access(variant, bounding, sort, is_complete=is_complete, hinted=hinted)
        if way is not None and (hinted or _is_safe(way, of_index)):
            ways.append(way)
    return ways


def _is_complete(node: MatchExpression | None, conditions: list[PathCondition]) -> bool:
    """Whether the conditions are all of the filter."""
    if node is None:
        return True
    nodes = node.children if isinstance(node, And) else (node,)
    return len(nodes) == len(conditions) and all(isinstance(item, LeafMatchExpression) for item in nodes)


def _rank(view: View, way: IndexAccess, order: Order) -> tuple[int, int, int, int, int]:
    """Less is better."""
    count = key_count(view, way)
    bounded = way.bounded_count > 0
    if order.sort is None or not order.sort.paths:
        kind = 0
    elif way.is_sorted:
        kind = 0 if bounded else 1 if order.limit is not None else 3
    else:
        kind = 2
    return count, kind, -way.point_count, -way.bounded_count, way.index.number


def key_count(view: View, way: IndexAccess) -> int:
    """How many keys a way has, at most `TRIAL_COUNT`; explain does not count them among those examined."""
    count = 0
    for low, high in way.ranges:
        count += View.count_keys(view, way.index, low, high, TRIAL_COUNT - count)[0]
        if count == TRIAL_COUNT:
            break
    return count


def _branches(
    view: View, collection: Collection, node: MatchExpression | None, collation: Collation | None
) -> OrAccess | None:
    """A way for each branch of the filter's `$or`."""
    children = node.children if isinstance(node, And) else (node,)
    for child in children:
        if not isinstance(child, Or):
            continue
        chosen = [choose(view, collection, branch, collation).access for branch in child.children]
        if all(isinstance(access, IndexAccess) for access in chosen):
            return OrAccess(tuple(access for access in chosen if isinstance(access, IndexAccess)))
    return None


def _holds(index: Index, conditions: Sequence[PathCondition], *, hinted: bool = False) -> bool:
    """Whether all that can match is in a sparse or partial index. A hint takes a sparse one as it is."""
    if index.spec.get("sparse") and not hinted:
        paths = index.spec["key"]
        if not any(condition.needs_value and condition.path in paths for condition in conditions):
            return False
    covers: Any = key_maker(index).covers
    return covers is None or _follows(covers.node, conditions)


def _is_safe(way: IndexAccess, conditions: Sequence[PathCondition]) -> bool:
    """Whether a sparse index has each key that counts: it has none for elements of an array without its fields."""
    if not way.index.spec.get("sparse") or not way.may_repeat:
        return True
    path = next(iter(way.index.spec["key"]))
    bounding = [item for item in conditions if item.path == path and item.intervals is not None]
    return not way.is_sorted and bool(bounding) and all(item.needs_value for item in bounding)


def _follows(node: MatchExpression, conditions: Sequence[PathCondition]) -> bool:
    """Whether what fulfils the conditions fulfils `node`."""
    if isinstance(node, And):
        return all(_follows(child, conditions) for child in node.children)
    if isinstance(node, Or):
        return any(_follows(child, conditions) for child in node.children)
    if not isinstance(node, LeafMatchExpression):
        return False
    return any(
        condition.path == node.path and condition.needs_value and _implies(condition.node, node)
        for condition in conditions
    )


def _implies(known: MatchExpression, wanted: LeafMatchExpression) -> bool:
    """Whether a value that fulfils `known`, which has one, fulfils `wanted`."""
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


def distinct_access(
    collection: Collection, node: MatchExpression | None, collation: Collation | None, path: str,
    sort: SortKey | None = None, hint: Index | None = None, *, with_missing: bool = False,
) -> IndexAccess | None:  # fmt: skip
    """The way from each value of a path to the next, in the order asked for, where the bounds are all of the filter.

    `with_missing`: documents without a value count, so that a sparse index will not do.
    """
    conditions = [] if node is None or collation is not None else conditions_of(node)
    if collation is not None or not _is_complete(node, conditions):
        return None
    ways = []
    for index in collection.indexes if hint is None else [hint]:
        if path not in index.spec["key"] or not index.has_entries or index.spec.get("hidden") or index.traits:
            continue
        if not is_ordered(index) or not has_order_of(index, None):
            continue
        way = index_access(index, conditions, sort, is_complete=True, hinted=True)
        if way is None or not way.is_exact or (sort is not None and not way.is_sorted) or way.backward:
            continue
        covers: Any = key_maker(index).covers
        if (with_missing and index.spec.get("sparse")) or not (covers is None or _follows(covers.node, conditions)):
            continue
        if way.leads_to(path):
            ways.append(way)
    return min(ways, key=lambda way: len(way.bounds), default=None)


def index_for_equality(collection: Collection, path: str) -> Index | None:
    """An index that has every document under what it has at the path; that with the fewest fields."""
    usable = [
        index for index in collection.indexes
        if index.has_entries and next(iter(index.spec["key"])) == path and not index.spec.get("hidden")
        and not index.spec.get("sparse") and "partialFilterExpression" not in index.spec
        and is_ordered(index) and has_order_of(index, None) and not any(name.isdigit() for name in path.split("."))
    ]  # fmt: skip
    return min(usable, key=lambda index: len(index.spec["key"]), default=None)


def equality_access(index: Index, path: str, values: list[Any]) -> IndexAccess:
    """The way to the documents with one of the values at the first field of an index."""
    made = index_access(index, [equality_condition(path, values)], None, is_complete=False, hinted=True)
    assert made is not None
    return made
