"""Conditions translated to the keys of an index with a collation.

An index and an operation each have a collation. If both are the same, each end of an interval at a string, object or
array moves to its key in the index. The values that a condition excludes may then change their order, so that the
intervals between them overlap or become empty. Together the intervals still contain every match, but they are no longer
exact. If the collations differ, only conditions without strings are used.

Source: MongoDB's documentation, "Collation and Index Use".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.execution.planner.bounds import End, Interval, Intervals, PathCondition, union
from headrace.query.collation import Collation
from headrace.query.match.match_expression import AlwaysBoolean
from headrace.store.catalog import Index
from headrace.store.indexes.field_keys import collated_key
from headrace.store.indexes.index_entries import collation_of_index

COLLATED: Final = frozenset({dict, list, str})
"""The types of values that a collation compares, or that hold strings."""
_STRINGS: Final = b"<"


def conditions_for(
    index: Index, conditions: Sequence[PathCondition], collation: Collation | None
) -> Sequence[PathCondition]:
    """Return the conditions of an operation with this collation, translated to the index's keys."""
    of_index = collation_of_index(index)
    if of_index is None and collation is None:
        return conditions
    if of_index == collation and collation is not None:
        return [_collated(condition, collation) for condition in conditions]
    return [_without_strings(condition) for condition in conditions]


def has_order_of(index: Index, collation: Collation | None) -> bool:
    """Whether the index orders strings as an operation with this collation does."""
    return collation_of_index(index) == collation


def _is_collated(end: End) -> bool:
    """Whether the key of an end depends on the collation. The ends of a whole type and an empty array do not."""
    if type(end.value) is list and not end.value:
        return False
    return (not end.is_prefix and type(end.value) in COLLATED) or (end.key[:1] == _STRINGS and len(end.key) > 1)


def _without_strings(condition: PathCondition) -> PathCondition:
    """Return the condition if no string takes part in it; otherwise keep only its `needs_value`."""
    intervals = condition.intervals
    if intervals is not None and not any(_is_text(end) for item in intervals for end in (item.low, item.high)):
        return condition
    return condition._replace(intervals=None, is_exact=False, node=AlwaysBoolean(True))


def _is_text(end: End) -> bool:
    return end.key[:1] in (b"<", b"F", b"P")


def _collated(condition: PathCondition, collation: Collation) -> PathCondition:
    intervals = condition.intervals
    if intervals is None or not any(_is_collated(item.low) or _is_collated(item.high) for item in intervals):
        return condition
    made: Intervals = []
    is_exact = condition.is_exact
    for interval in intervals:
        if interval.low.is_prefix and _is_collated(interval.low):  # the literal prefix of a pattern
            strings = End(_STRINGS, "", is_prefix=True)
            made.append(Interval(strings, strings))
            is_exact = False
            continue
        moved = Interval(_moved(interval.low, collation), _moved(interval.high, collation))
        is_exact = is_exact and (interval.is_point or not (_is_collated(interval.low) and _is_collated(interval.high)))
        first, last = moved.positions()
        if first < last:
            made.append(moved)
    return condition._replace(intervals=union(made), is_exact=is_exact)


def _moved(end: End, collation: Collation) -> End:
    if not _is_collated(end):
        return end
    return End(collated_key(collation.key, end.value), _shown(end.value, collation), end.included)


def _shown(value: Any, collation: Collation) -> Any:
    """Return a value as explain shows it."""
    return CollationKey.of(collation, value) if type(value) is str else value


class CollationKey(bytes):
    """The collation's sort key of a text, which explain shows as MongoDB does."""

    text: str

    @classmethod
    def of(cls, collation: Collation, text: str) -> CollationKey:
        """Return the key of a text."""
        made = cls(collation.key(text))
        made.text = text
        return made
