"""The bounds of `_id` within which a clustered collection is read.

Source: MongoDB's CLUSTERED_IXSCAN: equality, ranges and `$in` bound it, alone or in an `$and`; other conditions do not.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from bson import Regex

from headrace.execution.planner.bounds import LOWEST_NUMBER, conditions_of, end_shown
from headrace.execution.planner.id_ranges import IdRange, range_of
from headrace.execution.planner.index_access import IndexAccess, ranges_of
from headrace.execution.planner.intervals import End, Intervals, intersection
from headrace.query.match.match_expression import LeafMatchExpression, MatchExpression, MatchType
from headrace.store.catalog import Collection
from headrace.store.view import id_bounds

_BOUNDING: Final = frozenset({
    MatchType.EQ, MatchType.GT, MatchType.GTE, MatchType.IN, MatchType.LT, MatchType.LTE,
})  # fmt: skip


def clustered_intervals(node: MatchExpression | None) -> Intervals | None:
    """The values of `_id` that a filter without a collation allows; None: any."""
    known = [
        condition.intervals
        for condition in ([] if node is None else conditions_of(node))
        if condition.path == "_id"
        and condition.element is None
        and condition.intervals is not None
        and _bounds(condition.node)
    ]
    return reduce(intersection, known) if known else None


def _bounds(node: MatchExpression) -> bool:
    if not isinstance(node, LeafMatchExpression) or node.kind not in _BOUNDING:
        return False
    return node.kind is not MatchType.IN or not any(type(item) is Regex for item in node.argument)


def span_of(intervals: Intervals) -> IdRange:
    """The keys of `_id` from the first interval to the last, as `View.id_keys` takes them."""
    if not intervals:
        return b"", b""
    return id_bounds(range_of(intervals[0])[0], range_of(intervals[-1])[1])


def records_shown(intervals: Intervals) -> dict[str, Any]:
    """`minRecord` and `maxRecord` of an explanation."""
    return {"minRecord": _least(intervals[0].low), "maxRecord": end_shown(intervals[-1].high)[0]}


def _least(end: End) -> Any:
    """The value of a low end. All numbers begin with NaN, although no comparison but an equality matches it."""
    return float("nan") if end is LOWEST_NUMBER else end_shown(end)[0]


def walk_by_index(collection: Collection, *, backward: bool = False) -> IndexAccess:
    """The natural order of a clustered collection with a collation: that of its index on `_id`."""
    index = collection.indexes[0]
    ranges = tuple(ranges_of(index, (None,)))
    return IndexAccess(index, (None,), ranges, backward, False, is_exact=False, point_count=0)
