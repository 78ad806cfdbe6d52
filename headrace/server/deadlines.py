"""Many deadlines on one timer, in steps of a few milliseconds.

Nearly every wait ends before its deadline, so adding and removing one must be cheap. Each is an operation on a set, and
the loop has a single timer for all. A deadline fires up to a step late, never early.
"""

from __future__ import annotations

import heapq
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Hashable
from typing import Final

STEP_MS: Final = 5


class Deadlines:
    """Waiting items, by the step of their deadline."""

    def __init__(self, loop: AbstractEventLoop, is_up: Callable[[Hashable], None]) -> None:
        """`is_up` is called with each item at its deadline. The item is removed before the call."""
        self._loop = loop
        self._is_up = is_up
        self._steps: dict[int, set[Hashable]] = {}
        self._order: list[int] = []  # a heap of all future steps, also of empty ones
        self._timer: TimerHandle | None = None
        self._timer_step = 0

    def add(self, item: Hashable, until_ms: float) -> int:
        """Add an item; return the step of its deadline. `until_ms` is on the loop's clock."""
        step = int(until_ms) // STEP_MS + 1
        items = self._steps.get(step)
        if items is None:
            items = self._steps[step] = set()
            heapq.heappush(self._order, step)
            if self._timer is None or step < self._timer_step:
                self._set_timer(step)
        items.add(item)
        return step

    def remove(self, item: Hashable, step: int) -> None:
        """Remove an item before its deadline."""
        items = self._steps.get(step)
        if items is not None:
            items.discard(item)
            if not items:
                items.clear()  # frees its table, which would keep its largest size until the step is over

    def _set_timer(self, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_step = step
        self._timer = self._loop.call_at(step * STEP_MS / 1000.0, self._come)

    def _come(self) -> None:
        """Fire the first step, and further steps if the loop was late."""
        self._timer = None
        now = max(int(self._loop.time() * 1000.0) // STEP_MS, self._timer_step)
        while self._order and self._order[0] <= now:
            items = self._steps[self._order[0]]
            while items:
                self._is_up(items.pop())
            del self._steps[heapq.heappop(self._order)]
        while self._order and not self._steps[self._order[0]]:
            del self._steps[heapq.heappop(self._order)]
        if self._order and self._timer is None:
            self._set_timer(self._order[0])
