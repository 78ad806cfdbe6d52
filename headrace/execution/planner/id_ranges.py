"""The ranges of keys of `_id` that say all that a filter does: they are counted, and read, without documents.

A key of `_id` is the keystring of its value and nothing more, so that the next possible key is the same and 00.
No `_id` is an array, and no document is without one.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from headrace.execution.planner.bounds import conditions_of
from headrace.execution.planner.intervals import Interval, after_prefix, intersection
from headrace.query.collation import Collation
from headrace.query.match.match_expression import And, LeafMatchExpression, MatchExpression, Not
from headrace.store.catalog import Collection

IdRange = tuple[bytes, bytes]
"""[low, high) of keys, without the collection's number."""
ALL: Final[list[IdRange]] = [(b"", b"\xff")]


def id_ranges(
    collection: Collection, node: MatchExpression | None, collation: Collation | None
) -> list[IdRange] | None:
    """The ranges, ascending and disjoint; None where they do not say all of the filter, or keys are cut."""
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
    """The keys of the values in an interval."""
    low, high = interval.low, interval.high
    if low.is_prefix:
        first = low.key if low.included else after_prefix(low.key)
    else:
        first = low.key if low.included else low.key + b"\0"
    if high.is_prefix:
        return first, after_prefix(high.key) if high.included else high.key
    return first, high.key + b"\0" if high.included else high.key
