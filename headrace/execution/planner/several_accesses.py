"""Several index accesses that together find the matches: one for each branch of an `$or`, or for each value of an
`$in`. They are read one after the other, or merged in their common order.

    {a: {$in: [1, 2]}} sorted by b, index {a, b}   →   the keys of a = 1 and those of a = 2, each in order of b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final

from headrace.execution.planner.bounds import PathCondition
from headrace.execution.planner.index_access import IndexAccess, are_points, direction_of, ranges_of, skip_of
from headrace.query.sort import SortKey

if TYPE_CHECKING:
    from headrace.text.search import TextSearch

SCAN_COUNT_MAX: Final = 200
"""The maximum of accesses into which one is divided for an order: MongoDB's `internalQueryMaxScansToExplode`."""


@dataclass(frozen=True, slots=True)
class OrAccess:
    """An access for each branch."""

    branches: tuple[IndexAccess, ...]
    sort: SortKey | None = None
    """The order of all branches, in which they are merged; None: they are read one after the other."""
    text: TextSearch | None = None
    """The text search, if each branch is one of its terms."""
    is_exact_search: bool = False
    """Whether each document that has a key matches the search, and its score is the sum of the keys' scores."""

    @property
    def is_sorted(self) -> bool:
        """Whether documents come in the requested order."""
        return self.sort is not None

    @property
    def may_repeat(self) -> bool:
        """Whether a document may come more than once."""
        return True

    @property
    def is_exact(self) -> bool:
        """Never: a document may be in several branches."""
        return False


Access = IndexAccess | OrAccess


def exploded(way: IndexAccess, sort: SortKey, conditions: Sequence[PathCondition]) -> OrAccess | None:
    """Divide an access with several values for its first fields into one for each, if each then gives the order.

    Otherwise return None. `conditions`: the conditions of the access.
    """
    count, combined = 1, 0
    for intervals in way.bounds:
        if intervals is None or not are_points(intervals) or count * len(intervals) > SCAN_COUNT_MAX:
            break
        count *= len(intervals)
        combined += 1
    if count == 1 or way.index.traits:
        return None
    branches = []
    for values in product(*[intervals or [] for intervals in way.bounds[:combined]]):
        bounds = (*([value] for value in values), *way.bounds[combined:])
        direction = direction_of(way.index, bounds, sort)
        if direction is None:
            return None
        ranges = ranges_of(way.index, bounds)
        backward = direction < 0
        branches.append(
            replace(
                way, bounds=bounds, ranges=tuple(reversed(ranges) if backward else ranges), backward=backward,
                is_sorted=True, skip=skip_of(way.index, bounds, conditions),
            )
        )  # fmt: skip
    return OrAccess(tuple(branches), sort)
