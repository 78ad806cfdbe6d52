"""A trial of several accesses: they work in turn until one has enough results or reaches its end.

A *work* examines one key. The score of an access is 1, plus its results per work, plus 1 if it has reached its end,
plus a little if it needs no sort. An access that needs a sort has no results before its end.

Source: MongoDB's documentation of query plans and `planCacheStats`. MongoDB's trials go on for 10,000 works. Here they
end sooner, because the server serves no client meanwhile: also after some milliseconds, if documents are slow to read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.clock import thread_time
from headrace.cursors.index_scan import check_index
from headrace.errors import CommandError
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.planner.query import Order, Query
from headrace.execution.planner.several_accesses import Access
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
