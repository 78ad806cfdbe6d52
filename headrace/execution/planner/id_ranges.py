"""The ranges of `_id` keys that express a whole filter. They can be counted and read without the documents.

An `_id` key is exactly the keystring of its value, so the next possible key is the same with a 00 appended. No `_id` is
an array, and every document has an `_id`.
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
