"""The ranges of `_id` keys that express a whole filter. They can be counted and read without the documents.

An `_id` key is exactly the keystring of its value, so the next possible key is the same with a 00 appended. No `_id` is
an array, and every document has an `_id`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from bson import Regex

from headrace.execution.planner.bounds import (
    LOWEST_NUMBER,
    End,
    Interval,
    Intervals,
    after_prefix,
    conditions_of,
    end_shown,
    intersection,
)
from headrace.execution.planner.collated_bounds import conditions_for
from headrace.execution.planner.index_access import IndexAccess, ranges_of
from headrace.query.collation import Collation
from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, MatchType, Not
from headrace.store.catalog import Collection
from headrace.store.view import id_bounds

IdRange = tuple[bytes, bytes]
"""[low, high) of keys, without the collection's number."""
ALL: Final[list[IdRange]] = [(b"", b"\xff")]


def id_ranges(
    collection: Collection, node: MatchExpression | None, collation: Collation | None
) -> list[IdRange] | None:
    """Return the ranges, ascending and disjoint; None if they do not express the whole filter or keys are truncated."""
    if collation is not None or collection.long_ids or "collation" in collection.options:
        return None
    if node is None:
        return ALL
    nodes = node.children if isinstance(node, And) else (node,)
    if not all(isinstance(item, LeafMatchExpression | Not) for item in nodes):
        return None
    conditions = conditions_of(node)
    known: Any = [condition.intervals for condition in conditions]
    if len(conditions) != len(nodes) or None in known:
        return None
    if not all(condition.path == "_id" and condition.is_exact for condition in conditions):
        return None
    return [range_of(interval) for interval in reduce(intersection, known)]


def range_of(interval: Interval) -> IdRange:
    """Return the range of keys of the values in an interval."""
    low, high = interval.low, interval.high
    if low.is_prefix:
        first = low.key if low.included else after_prefix(low.key)
    else:
        first = low.key if low.included else low.key + b"\0"
    if high.is_prefix:
        return first, after_prefix(high.key) if high.included else high.key
    return first, high.key + b"\0" if high.included else high.key


# Clustered collections. Source: MongoDB's CLUSTERED_IXSCAN.


_BOUNDING: Final = frozenset({
    MatchType.EQ, MatchType.GT, MatchType.GTE, MatchType.IN, MatchType.LT, MatchType.LTE,
})  # fmt: skip


def id_intervals(
    collection: Collection, node: MatchExpression, collation: Collation | None
) -> Intervals | None:  # fmt: skip
    """Return the values of `_id` that a filter allows; None: any, or the index on `_id` has keys of its own."""
    if collection.indexes[0].has_entries:
        return None
    known = [
        condition.intervals
        for condition in conditions_for(collection.indexes[0], conditions_of(node), collation)
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
    """Return the bounds of the `_id` keys from the first interval to the last, for `View.id_keys`."""
    if not intervals:
        return b"", b""
    return id_bounds(range_of(intervals[0])[0], range_of(intervals[-1])[1])


def records_shown(intervals: Intervals) -> dict[str, Any]:
    """Return `minRecord` and `maxRecord` for explain."""
    return {"minRecord": _least(intervals[0].low), "maxRecord": end_shown(intervals[-1].high)[0]}


def _least(end: End) -> Any:
    """Return the value of a low end. For all numbers, MongoDB shows NaN, although only an equality matches NaN."""
    return float("nan") if end is LOWEST_NUMBER else end_shown(end)[0]


def walk_by_index(collection: Collection, *, backward: bool = False) -> IndexAccess:
    """Return the access in natural order of a clustered collection with a collation: by its `_id` index."""
    index = collection.indexes[0]
    ranges = tuple(ranges_of(index, (None,)))
    return IndexAccess(index, (None,), ranges, backward, False, is_exact=False, point_count=0)
