"""The choice of an access, which is a way to read through an index.

1  A hint names the index. An index filter for the query shape limits the indexes.
2  The candidates are accesses through usable indexes whose first field the filter bounds, or that give the requested
   order. An index is usable if it is not hidden, has the collation of the operation, and has all possible matches. So
   a sparse index needs a condition that excludes missing values, and a partial one needs conditions that imply its
   filter.
3  If there are several candidates, an active entry of the plan cache decides. Otherwise they are tried
   (`trial.py`), and the one with the most results for its work wins. Among equals, the winner has more point
   values for its first fields, then more bounds, then the older index.
4  Without a candidate, an `$or` whose branches all have an access uses these. They are merged if each gives the
   requested order, otherwise read one after the other.
5  Otherwise an index may be used whose first field has few values and whose second field has bounds.
6  Otherwise the collection is scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.cursors.index_scan import RANGE_COUNT
from headrace.errors import CommandError
from headrace.execution.planner.bounds import POINTS, PathCondition, conditions_of, equality_condition
from headrace.execution.planner.collated_bounds import conditions_for, has_order_of
from headrace.execution.planner.eligibility import follows, holds, is_safe, usable
from headrace.execution.planner.id_ranges import id_intervals
from headrace.execution.planner.index_access import (
    Access,
    IndexAccess,
    OrAccess,
    Range,
    are_points,
    exploded,
    index_access,
    range_access,
    ranges_of,
)
from headrace.execution.planner.index_kinds import is_ordered, variants
from headrace.execution.planner.key_bounds import end_of_value
from headrace.execution.planner.query import ANY_ORDER, Order, Query, Shape, shape_of
from headrace.execution.planner.trial import CachedPlan, Trial, plan_cache_of, run_trials
from headrace.query.collation import Collation
from headrace.query.match.index_conditions import has_search, is_within_or
from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, Not, Or
from headrace.query.sort import SortKey
from headrace.running_command import running_command
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_entries import key_maker
from headrace.store.indexes.index_keys import CUT_BYTES, INVERTED, descends
from headrace.store.view import View
from headrace.values.keystring.encoding import encode_value
from headrace.values.order import equal


@dataclass(frozen=True, slots=True)
class IndexFilter:
    """The indexes that the planner may choose from for queries of a shape, until the server stops. It overrides a hint.

    It has the parts of the shape as sent, and names or key patterns of indexes. Source: MongoDB's documentation of
    `planCacheSetFilter`."""

    spec: dict[str, Any]
    sort: dict[str, Any]
    projection: dict[str, Any]
    collation: dict[str, Any]
    indexes: list[Any]


def filters_of(view: View, collection: Collection) -> dict[Shape, IndexFilter]:
    """Return the index filters of a collection, by query shape."""
    filters: dict[Shape, IndexFilter] = view.store.index_filters.setdefault(collection.uuid, {})
    return filters


def allowed_indexes(view: View, collection: Collection, query: Query, order: Order) -> list[Index] | None:
    """Return the indexes that the planner may choose from; None: all. Query settings override index filters."""
    if view.state.cluster_parameters and (command := running_command()) is not None and command.allowed_indexes:
        allowed = command.allowed_indexes.get(collection.namespace)
        if allowed is not None:
            return _named(collection, allowed)
    if not view.store.index_filters:
        return None
    chosen = filters_of(view, collection).get(shape_of(query.node, order.sort, query.collation))
    return None if chosen is None else _named(collection, chosen.indexes)


def _named(collection: Collection, items: list[Any]) -> list[Index]:
    """Return the indexes whose name or key pattern is among the items."""
    return [
        index
        for index in collection.indexes
        if any(
            item == index.name
            or (type(item) is dict and equal(index.spec["key"], item))
            for item in items
        )
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen access, the rejected ones, and the trial that decided."""

    access: Access | None
    rejected: tuple[Access, ...] = ()
    trials: tuple[Trial, ...] = ()
    """Trials of the chosen access, then of the others; empty if the plan cache decided or only one access existed."""
    entry: CachedPlan | None = None
    """The entry of the plan cache, if it decided."""
    is_filtered: bool = False
    """Whether an index filter limited the indexes."""

    @property
    def indexes(self) -> list[Index]:
        """The indexes that are used."""
        return [] if self.access is None else list({branch.index: None for branch in self.access.branches})


NO_INDEX: Final = Choice(None)


def choose(
    current: Callable[[], View], collection: Collection, query: Query, order: Order = ANY_ORDER,
    hint: Index | None = None,
) -> Choice:  # fmt: skip
    """Choose the access for a query. `current` returns the view after each pause. Raise 291 if the hinted index cannot
    answer the query."""
    node, collation = query.node, query.collation
    conditions = [] if node is None else conditions_of(node)
    is_complete = _is_complete(node, conditions)
    if query.between is not None and hint is not None:
        return Choice(range_access(hint, query.between, collation, order.sort))
    if query.has_text:
        return _text_choice(collection, query, conditions)
    allowed = allowed_indexes(current(), collection, query, order)
    if hint is not None and allowed is None:
        if not hint.has_entries:
            return NO_INDEX
        ways = _through(hint, conditions, collation, order.sort, is_complete, hinted=True)
        if not ways:
            raise CommandError(291, "error processing query: planner returned error :: caused by :: No query solutions")
        return Choice(ways[0]) if len(ways) == 1 else _tried(current, collection, query, ways, order)
    indexes = usable(collection.indexes if allowed is None else allowed)
    ways = _ways(indexes, conditions, collation, order.sort, is_complete)
    if ways:
        choice = Choice(ways[0]) if len(ways) == 1 else _tried(current, collection, query, ways, order)
    else:
        choice = Choice(
            _branches(indexes, query, order)
            or skip_access(current(), collection, indexes, conditions, collation, order.sort, is_complete)
        )
    return choice if allowed is None else replace(choice, is_filtered=True)


def _text_choice(collection: Collection, query: Query, conditions: list[PathCondition]) -> Choice:
    """Return the access through the text index. Raise 291 without one, 2 for a negated search."""
    from headrace.execution.planner.text_bounds import no_way, text_access, text_search_of

    assert query.node is not None
    within_or, search = is_within_or(query.node), text_search_of(query.node)
    access: Access | None
    if search is None:
        access = _branches(collection.indexes, query, ANY_ORDER)
    else:
        access = text_access(collection.indexes, conditions, search, query.collation)
    if access is not None:
        return Choice(access)
    if search is None and _is_bounded_by_id(collection, query):
        return NO_INDEX
    raise no_way(within_or=within_or)


def _is_bounded_by_id(collection: Collection, query: Query) -> bool:
    """Whether each branch of an `$or` around a search has an access or bounds on `_id`, whose index has no entries."""
    assert query.node is not None
    for child in query.node.children if isinstance(query.node, And) else (query.node,):
        if isinstance(child, Or) and all(
            id_intervals(collection, branch, query.collation) is not None
            or _each_branch(collection.indexes, Or((branch,)), query.collation, None)
            for branch in child.children
        ):
            return True
    return False


def _tried(
    current: Callable[[], View], collection: Collection, query: Query, ways: list[Access], order: Order
) -> Choice:
    """Return the access in the plan cache, or the best one in a trial, which the plan cache then remembers."""
    cache = plan_cache_of(collection)
    shape = shape_of(query.node, order.sort, query.collation)
    entry = cache.get(shape) if query.uses_cache else None
    if entry is not None and entry.is_active:
        for way in ways:
            if entry.is_of(way):
                return Choice(way, tuple(other for other in ways if other is not way), entry=entry)
    trials = sorted(run_trials(current(), collection, query, ways, order), key=_rank)
    choice = Choice(trials[0].access, tuple(trial.access for trial in trials[1:]), tuple(trials))
    if query.uses_cache:
        cache.learn(shape, query, order, trials, current().store.clock.now_ms())
    return choice


def _rank(trial: Trial) -> tuple[float, int, int, int]:
    """Return the sort key of a trial; less is better."""
    way = trial.access.branches[0]
    return -trial.score, -way.point_count, -way.bounded_count, way.index.number


def _ways(
    indexes: Sequence[Index], conditions: list[PathCondition], collation: Collation | None, sort: SortKey | None,
    is_complete: bool,
) -> list[Access]:  # fmt: skip
    ways: list[Access] = []
    for index in indexes:
        if not index.has_entries or index.spec.get("hidden"):
            continue
        ways += _through(index, conditions, collation, sort, is_complete)
    return ways


def _through(
    index: Index, conditions: list[PathCondition], collation: Collation | None, sort: SortKey | None,
    is_complete: bool, *, hinted: bool = False,
) -> list[Access]:  # fmt: skip
    """Return the accesses through one index: several for a wildcard index, otherwise at most one."""
    of_index = conditions_for(index, conditions, collation)
    if not holds(index, of_index, hinted=hinted):
        return []
    sort = sort if has_order_of(index, collation) else None
    ways: list[Access] = []
    for variant, bounding in variants(index, of_index):
        way = index_access(variant, bounding, sort, is_complete=is_complete, hinted=hinted)
        if way is not None and (hinted or is_safe(way, of_index)):
            ways.append((None if sort is None or way.is_sorted else exploded(way, sort, bounding)) or way)
    return ways


def _is_complete(node: MatchExpression | None, conditions: list[PathCondition]) -> bool:
    """Whether the conditions express the whole filter: each leaf has one, each `Not` one or none."""
    if node is None:
        return True
    nodes = node.children if isinstance(node, And) else (node,)
    return len(nodes) == len(conditions) and all(isinstance(item, LeafMatchExpression | Not) for item in nodes)


def key_count(current: Callable[[], View], way: Access, count_max: int) -> int:
    """Count the keys of an access, up to `count_max`. May pause. Explain does not count these keys as examined."""
    count = range_count = 0
    for branch in way.branches:
        for low, high in branch.ranges:
            if not range_count % RANGE_COUNT:
                view = current()
            range_count += 1
            count += View.count_keys(view, branch.index, low, high, count_max - count).key_count
            if count == count_max:
                return count
    return count


def _branches(indexes: Sequence[Index], query: Query, order: Order) -> OrAccess | None:
    """Return an access for each branch of the first `$or` in the filter whose branches all have one; or None."""
    node = query.node
    children = node.children if isinstance(node, And) else (node,)
    for child in children:
        if not isinstance(child, Or):
            continue
        if order.sort is not None and order.sort.paths:
            merged = _each_branch(indexes, child, query.collation, order.sort)
            if merged is not None and all(branch.is_sorted for branch in merged):
                return OrAccess(tuple(merged), order.sort)
        made = _each_branch(indexes, child, query.collation, None)
        if made is not None:
            return OrAccess(tuple(made))
    return None


def _each_branch(
    indexes: Sequence[Index], node: Or, collation: Collation | None, sort: SortKey | None
) -> list[IndexAccess] | None:
    made: list[IndexAccess] = []
    for child in node.children:
        conditions = conditions_of(child)
        if has_search(child):
            branches = _text_branches(indexes, child, conditions, collation)
            if branches is None or sort is not None:
                return None
            made += branches
            continue
        ways = [
            way
            for way in _ways(indexes, conditions, collation, sort, _is_complete(child, conditions))
            if way.branches[0].bounded_count
        ]
        if not ways:
            return None
        made += min(ways, key=_promise).branches
    return made


def _text_branches(
    indexes: Sequence[Index], node: MatchExpression, conditions: list[PathCondition], collation: Collation | None
) -> tuple[IndexAccess, ...] | None:
    """Return the accesses to the terms of a search that is a branch of an `$or`."""
    from headrace.execution.planner.text_bounds import text_access, text_search_of

    search = text_search_of(node)
    access = None if search is None else text_access(indexes, conditions, search, collation)
    return None if access is None else access.branches


def _promise(way: Access) -> tuple[bool, int, int, int]:
    """Return the sort key of an access without reading keys; less is better."""
    first = way.branches[0]
    return not first.is_sorted, -first.point_count, -first.bounded_count, first.index.number


def distinct_access(
    collection: Collection, node: MatchExpression | None, collation: Collation | None, path: str,
    sort: SortKey | None = None, hint: Index | None = None, *, with_missing: bool = False,
) -> IndexAccess | None:  # fmt: skip
    """Return the access that skips from each value of a path to the next, in the requested order; or None.

    The bounds must express the whole filter. `with_missing`: the access is for one document of each value, and
    documents without a value count. Then the index must not be sparse, have arrays, or have several values for the
    fields before the path.
    """
    conditions = [] if node is None else conditions_of(node)
    if not _is_complete(node, conditions):
        return None
    ways = []
    for index in usable(collection.indexes) if hint is None else [hint]:
        if path not in index.spec["key"] or not index.has_entries or index.spec.get("hidden"):
            continue
        if not is_ordered(index) or not has_order_of(index, collation):
            continue
        of_index = conditions_for(index, conditions, collation)
        covers: Any = key_maker(index).covers
        if (with_missing and index.spec.get("sparse")) or not (covers is None or follows(covers.node, of_index)):
            continue
        way = index_access(index, of_index, sort, is_complete=True, hinted=True)
        if way is None or (sort is not None and not way.is_sorted) or way.backward:
            continue
        if _gives_documents(way, path) if with_missing else _gives_values(way, path, hint):
            ways.append(way)
    return min(ways, key=lambda way: (-way.point_count, len(way.bounds)), default=None)


def _gives_values(way: IndexAccess, path: str, hint: Index | None) -> bool:
    pattern = list(way.index.spec["key"])
    if "collation" in way.index.spec and (way.index.traits or path != pattern[-1] or not way.leads_to(path)):
        return False  # equal strings may differ in form, and the form in the first document counts
    return way.has_distinct(path) and (way.bounds[0] is not None or pattern[0] == path or hint is not None)


def _gives_documents(way: IndexAccess, path: str) -> bool:
    return way.is_exact and way.leads_to(path) and "collation" not in way.index.spec


def index_for_equality(collection: Collection, path: str) -> Index | None:
    """Return the index with the fewest fields that begins with the path and has every document; or None."""
    usable = [
        index for index in collection.indexes
        if index.has_entries and next(iter(index.spec["key"])) == path and not index.spec.get("hidden")
        and not index.spec.get("sparse") and "partialFilterExpression" not in index.spec
        and is_ordered(index) and has_order_of(index, None) and not any(name.isdigit() for name in path.split("."))
    ]  # fmt: skip
    return min(usable, key=lambda index: len(index.spec["key"]), default=None)


def equality_ranges(index: Index, path: str, values: list[Any]) -> Sequence[Range]:
    """Return the key ranges of the documents with one of the values in the first field of an index."""
    if len(values) == 1 and type(values[0]) in POINTS:
        piece = encode_value(values[0])
        if len(piece) < CUT_BYTES:
            kind = next(iter(index.spec["key"].values()))
            start = index.number.to_bytes(4, "big") + (piece.translate(INVERTED) if descends(kind) else piece)
            return ((start + b"\x01", start + b"\xff"),)
    return equality_access(index, path, values).ranges


def equality_access(index: Index, path: str, values: list[Any]) -> IndexAccess:
    """Return the access to the documents with one of the values in the first field of an index."""
    intervals = equality_condition(path, values).intervals
    bounds = (intervals, *[None] * (len(index.spec["key"]) - 1))
    return IndexAccess(index, bounds, tuple(ranges_of(index, bounds)), False, False, is_exact=False, point_count=0)


_VALUE_COUNT_MAX: Final = 100
_DOCUMENT_COUNT: Final = 20
"""The least number of documents for each value of the first field."""


def skip_access(
    view: View, collection: Collection, indexes: Sequence[Index], conditions: list[PathCondition],
    collation: Collation | None, sort: SortKey | None, is_complete: bool,
) -> IndexAccess | None:  # fmt: skip
    """Return the access with the most bounds among indexes whose first field has few values and no bounds; or None.

        {b: 3}  on  {a, b}     after (1, …) the scan continues at (1, 3), then at (2, 3), (3, 3), …

    Rule: there is no other access, the second field has point values, and the first field has so few values that
    seeking them costs a twentieth of a collection scan. MongoDB scans the collection in this case.
    """
    ways = []
    for index in indexes:
        if len(index.spec["key"]) < 2 or not index.has_entries or index.spec.get("hidden") or index.traits:
            continue
        of_index = conditions_for(index, conditions, collation)
        if not is_ordered(index) or not holds(index, of_index):
            continue
        order = sort if has_order_of(index, collation) else None
        way = index_access(index, of_index, order, is_complete=is_complete, hinted=True)
        if way is not None and way.bounds[0] is None and are_points(way.bounds[1]):
            ways.append(way)
    count = view.estimated_count(collection) if ways else None
    if count is None:
        return None
    value_count = min(count // _DOCUMENT_COUNT, _VALUE_COUNT_MAX)
    for way in sorted(ways, key=lambda way: (-way.bounded_count, way.index.number)):
        if _has_few_values(view, way.index, value_count):
            return way
    return None


def _has_few_values(view: View, index: Index, count_max: int) -> bool:
    """Whether the first field has at most `count_max` values. Explain does not count the keys read for this."""
    prefix = index.number.to_bytes(4, "big")
    low, high = prefix + b"\x01", prefix + b"\xff"
    down = descends(next(iter(index.spec["key"].values())))
    for _ in range(count_max + 1):
        first = next(View.index_keys(view, index, low, high), None)
        if first is None:
            return True
        key = first[0]
        low = key[: end_of_value(key.translate(INVERTED) if down else key, len(prefix))] + b"\xff"
    return False
