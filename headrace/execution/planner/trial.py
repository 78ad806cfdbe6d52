"""A trial of several accesses, and the plan cache, which keeps the winners.

The accesses work in turn until one has enough results or reaches its end.

A *work* examines one key. The score of an access is 1, plus its results per work, plus 1 if it has reached its end,
plus a little if it needs no sort. An access that needs a sort has no results before its end.

Source: MongoDB's documentation of query plans and `planCacheStats`. MongoDB's trials go on for 10,000 works. Here they
end sooner, because the server serves no client meanwhile: also after some milliseconds, if documents are slow to read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace import limits
from headrace.clock import thread_time
from headrace.cursors.index_scan import check_index
from headrace.errors import CommandError
from headrace.execution.planner.index_access import Access, IndexAccess
from headrace.execution.planner.query import Order, Query, Shape, hash_of
from headrace.store.catalog import Collection
from headrace.store.view import LEFT_OUT, View
from headrace.values.bson import decode

RESULT_COUNT: Final = 101
"""Results that end a trial."""
WORK_COUNT: Final = 1000
"""Works of all accesses together; each has at least `RESULT_COUNT`."""
TRIAL_SECONDS: Final = 0.01
"""The CPU time of the thread after which a trial ends."""
_TIE_BREAKER: Final = 0.0001


@dataclass(frozen=True, slots=True)
class Trial:
    """The works and results of one access in a trial."""

    access: Access
    works: int
    result_count: int
    key_count: int
    document_count: int
    is_eof: bool
    is_sorted: bool
    """Whether no sort is needed."""

    @property
    def score(self) -> float:
        """The score of the access; more is better."""
        return 1 + self.result_count / max(self.works, 1) + _TIE_BREAKER * self.is_sorted + self.is_eof


def run_trials(
    view: View, collection: Collection, query: Query, ways: list[Access], order: Order
) -> list[Trial]:  # fmt: skip
    """Run a trial and return the results in the order of `ways`. Raise 175 if an index no longer exists in the view."""
    for index in {branch.index.number: branch.index for way in ways for branch in way.branches}.values():
        check_index(view, collection, index)
    wanted = min(RESULT_COUNT, order.limit or RESULT_COUNT)
    candidates = [_Candidate(view, collection, query, way, order) for way in ways]
    ends = thread_time() + TRIAL_SECONDS
    try:
        for _ in range(max(RESULT_COUNT, WORK_COUNT // len(ways))):
            for candidate in candidates:
                if thread_time() < ends:
                    candidate.work()
            if thread_time() >= ends or any(c.is_eof or c.result_count >= wanted for c in candidates):
                break
    except CommandError as error:
        if error.code != 50:
            raise
    finally:
        for candidate in candidates:
            candidate.close()
    return [candidate.trial() for candidate in candidates]


class _Candidate:
    """An access at work in a trial."""

    def __init__(self, view: View, collection: Collection, query: Query, way: Access, order: Order) -> None:
        self._view = view
        self._collection = collection
        self._test = None if way.is_exact else query.test
        self._way = way
        self._needs_sort = order.is_asked and not way.is_sorted
        self._limit = order.limit
        self._seen: set[bytes] | None = set() if way.may_repeat else None
        self._steps = self._run()
        self.works = self.result_count = self.key_count = self.document_count = 0
        self.is_eof = False

    def work(self) -> None:
        """Examine one key."""
        self.works += 1
        if next(self._steps, None) is None:
            self.is_eof = True

    def close(self) -> None:
        """Close the LMDB cursors."""
        self._steps.close()

    def trial(self) -> Trial:
        """Return the works and results so far."""
        return Trial(
            self._way, self.works, self.result_count, self.key_count, self.document_count, self.is_eof,
            not self._needs_sort,
        )  # fmt: skip

    def _run(self) -> Generator[bool, None, None]:
        waiting = 0
        for branch in self._way.branches:
            for record in self._records(branch):
                self.key_count += 1
                if self._matches(branch, record):
                    if self._needs_sort:
                        waiting += 1
                    else:
                        self.result_count += 1
                yield True
        for _ in range(min(waiting, self._limit or waiting)):
            self.result_count += 1
            yield True

    def _records(self, branch: IndexAccess) -> Iterator[bytes]:
        view, index, backward = self._view, branch.index, branch.backward
        for low, high in branch.ranges:
            if branch.skip is None:
                walk = View.index_keys(view, index, low, high, backward=backward)
            else:
                walk = View.index_keys_within(view, index, low, high, branch.skip, backward=backward)
            for _, record in walk:
                yield record

    def _matches(self, branch: IndexAccess, record: bytes) -> bool:
        if record is LEFT_OUT:
            return False
        if self._seen is not None:
            if record in self._seen:
                return False
            self._seen.add(record)
        self.document_count += 1
        if self._test is None:
            return True
        return self._test(decode(View.fetch(self._view, self._collection, branch.index, record)))


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
    """The plan cache of a collection: the access that won the trial, by query shape, least recently used first.

    An entry is inactive at first. When a query of its shape is planned again and its trial needs no more works, the
    entry becomes active, and later queries take its access without a trial. If the trial needs more, the entry's works
    are doubled. A query that needs ten times the works of its entry deactivates the entry. A change of the collection's
    indexes empties the cache. The cache is not stored. Source: MongoDB's documentation of the plan cache.
    """

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
