"""The plan cache of a collection: which way won the trial of queries of a shape.

An entry is inactive at first. When a query of its shape is planned again and its trial needs no more works, the entry
is active, and the next ones take its way without a trial; if it needs more, the entry allows twice as many from then
on. A query that needs ten times the works of its entry deactivates it. A change of the collection's indexes empties the
cache. It is not stored.

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
    """An entry."""

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
        """Whether a way is the one that won."""
        return self.indexes == indexes_of(way)

    @property
    def works_max(self) -> int:
        """Works above which the entry is of no use."""
        return self.works * _EXCESS

    @property
    def query_hash(self) -> str:
        """The hash that all queries of the shape share."""
        return hash_of(self.shape)

    @property
    def key(self) -> str:
        """As `query_hash`, for these indexes."""
        return hash_of(self.shape, sorted({index for trial in self.trials for index in indexes_of(trial.access)}))


def indexes_of(way: Access) -> IndexNames:
    """The indexes of a way, each once; one with wildcards is another one for each path."""
    return tuple(dict.fromkeys((branch.index.number, *branch.index.spec["key"]) for branch in way.branches))


class PlanCache:
    """The entries, the one that was used last at the end."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[Shape, CachedPlan] = OrderedDict()

    def get(self, shape: Shape) -> CachedPlan | None:
        """The entry of a shape."""
        entry = self._entries.get(shape)
        if entry is not None:
            self._entries.move_to_end(shape)
        return entry

    def learn(self, shape: Shape, query: Query, order: Order, trials: Sequence[Trial], now_ms: int) -> None:
        """Remember the outcome of a trial, the winner's first."""
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
        """All of them."""
        return list(self._entries.values())


def plan_cache_of(collection: Collection) -> PlanCache:
    """The plan cache of a collection."""
    cache: PlanCache | None = collection.plan_cache
    if cache is None:
        cache = collection.plan_cache = PlanCache()
    return cache


def clear_plan_cache(collection: Collection) -> None:
    """Forget all plans."""
    collection.plan_cache = None
