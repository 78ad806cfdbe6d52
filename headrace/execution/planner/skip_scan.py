"""An access through an index whose first field the filter does not bound: seek within each value of the first field.

    {b: 3}  on  {a, b}     after (1, …) the scan continues at (1, 3), then at (2, 3), (3, 3), …

Rule: there is no other access, the second field has point values, and the first field has so few values that seeking
them costs a twentieth of a collection scan. MongoDB scans the collection in this case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.execution.planner.bounds import PathCondition
from headrace.execution.planner.collated_bounds import conditions_for, has_order_of
from headrace.execution.planner.eligibility import holds
from headrace.execution.planner.index_access import IndexAccess, are_points, index_access
from headrace.execution.planner.index_kinds import is_ordered
from headrace.execution.planner.key_bounds import end_of_value
from headrace.query.collation import Collation
from headrace.query.sort import SortKey
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import INVERTED, descends
from headrace.store.view import View

_VALUE_COUNT_MAX: Final = 100
_DOCUMENT_COUNT: Final = 20
"""The least number of documents for each value of the first field."""


def skip_access(
    view: View, collection: Collection, indexes: Sequence[Index], conditions: list[PathCondition],
    collation: Collation | None, sort: SortKey | None, is_complete: bool,
) -> IndexAccess | None:  # fmt: skip
    """Return the access with the most bounds among indexes whose first field has few values; or None."""
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
