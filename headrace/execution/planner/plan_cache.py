"""The plan cache of a collection: the access that won the trial, by query shape.

An entry is inactive at first. When a query of its shape is planned again and its trial needs no more works, the entry
becomes active, and later queries take its access without a trial. If the trial needs more, the entry's works are
doubled. A query that needs ten times the works of its entry deactivates the entry. A change of the collection's indexes
empties the cache. The cache is not stored.

Source: MongoDB's documentation of the plan cache and its entry states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace import limits
from headrace.execution.planner.query import Order, Query, Shape, hash_of
from headrace.execution.planner.several_accesses import Access
from headrace.execution.planner.trial import Trial
from headrace.store.catalog import Collection

_GROWTH: Final = 2
_EXCESS: Final = 10

IndexNames = tuple[tuple[Any, ...], ...]
"""Number and fields of each index."""


@dataclass(slots=True)
class CachedPlan:
    """An entry of the plan cache."""

    shape: Shape
    spec: dict[str, Any]
    sort: dict[str, Any]
    indexes: IndexNames
    """The indexes that identify the plan in the cache."""
    works: int
    trials: tuple[Trial, ...]
    created_ms: int
    is_active: bool = False

    def is_of(self, way: Access) -> bool:
        """Whether an access is the one that won."""
        return self.indexes == indexes_of(way)

    @property
    def works_max(self) -> int:
        """The number of works above which the entry is deactivated."""
        return self.works * _EXCESS

    @property
    def query_hash(self) -> str:
        """The hash that all queries of the shape share."""
        return hash_of(self.shape)

    @property
    def key(self) -> str:
        """The hash of the shape and the indexes of all trials."""
        return hash_of(self.shape, sorted({index for trial in self.trials for index in indexes_of(trial.access)}))


def indexes_of(way: Access) -> IndexNames:
    """Return the indexes of an access, each once. A wildcard index counts as another index for each path."""
    return tuple(dict.fromkeys((branch.index.number, *branch.index.spec["key"]) for branch in way.branches))


class PlanCache:
    """The entries of a plan cache, least recently used first."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[Shape, CachedPlan] = OrderedDict()

    def get(self, shape: Shape) -> CachedPlan | None:
        """Return the entry of a shape, or None."""
        entry = self._entries.get(shape)
        if entry is not None:
            self._entries.move_to_end(shape)
        return entry

    def learn(self, shape: Shape, query: Query, order: Order, trials: Sequence[Trial], now_ms: int) -> None:
        """Remember the result of a trial. The winner is first in `trials`."""
        won = trials[0]
        entry = self._entries.get(shape)
        is_active = False
        if entry is not None:
            if won.works > entry.works:
                entry.works *= _GROWTH
                return
            is_active = True
        sort = {} if order.sort is None else {path: -1 if down else 1 for path, down in order.sort.paths}
        self._entries[shape] = CachedPlan(
            shape, query.spec, sort, indexes_of(won.access), won.works, tuple(trials), now_ms, is_active
        )
        while len(self._entries) > limits.PLAN_CACHE_COUNT_MAX:
            self._entries.popitem(last=False)

    def forget(self, shape: Shape) -> None:
        """Drop the entry of a shape."""
        self._entries.pop(shape, None)

    @property
    def entries(self) -> list[CachedPlan]:
        """All entries."""
        return list(self._entries.values())


def plan_cache_of(collection: Collection) -> PlanCache:
    """Return the plan cache of a collection."""
    cache: PlanCache | None = collection.plan_cache
    if cache is None:
        cache = collection.plan_cache = PlanCache()
    return cache


def clear_plan_cache(collection: Collection) -> None:
    """Forget all plans."""
    collection.plan_cache = None
