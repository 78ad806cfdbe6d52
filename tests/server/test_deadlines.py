"""Deadlines: met in order and never early, with one timer of the loop's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any

from headrace.server.notifier import STEP_MS, Deadlines


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The loop that deadlines need; time stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def waiting(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def go_to(self, ms: float) -> None:
        while due := [timer for timer in self.waiting() if timer.when <= ms / 1000.0]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when)
            first.callback()
        self.now = ms / 1000.0


def deadlines(loop: Any, is_up: Callable[[Hashable], None]) -> Deadlines:
    return Deadlines(loop, is_up)


def test_deadlines_fire_in_order_never_early_and_not_a_step_late() -> None:
    loop, met = Loop(), []
    waits = deadlines(loop, lambda item: met.append((item, loop.now * 1000.0)))
    for until_ms in (3000.0, 20.0, 1000.5, 21.0, 1000.0):
        waits.add(until_ms, until_ms)
    loop.go_to(5000)
    assert sorted(item for item, _ in met) == [20.0, 21.0, 1000.0, 1000.5, 3000.0]
    assert [when for _, when in met] == sorted(when for _, when in met)
    assert all(item <= when <= item + STEP_MS for item, when in met)


def test_a_step_whose_deadlines_were_all_removed_holds_no_memory_for_them() -> None:
    waits = deadlines(Loop(), print)
    steps = {waits.add(number, 30_000.0 + number % 500) for number in range(100_000)}
    held = sum(map(sys.getsizeof, waits._steps.values()))
    for number in range(100_000):
        waits.remove(number, int(30_000 + number % 500) // STEP_MS + 1)
    assert sum(map(sys.getsizeof, waits._steps.values())) < held / 20
    assert len(steps) == len(waits._steps) == 100


def test_there_is_one_timer_and_none_when_all_deadlines_were_removed() -> None:
    loop, met = Loop(), []
    waits = deadlines(loop, met.append)
    steps = {number: waits.add(number, 1000.0 + number) for number in range(100)}
    assert len(loop.waiting()) == 1
    for number, step in steps.items():
        waits.remove(number, step)
    loop.go_to(5000)
    assert met == [] and loop.waiting() == []


def test_a_deadline_removed_while_its_step_fires_does_not_fire() -> None:
    loop, met = Loop(), []

    def is_up(item: Hashable) -> None:
        met.append(item)
        for other in {"a", "b"} - {item}:
            waits.remove(other, step)

    waits = deadlines(loop, is_up)
    step = waits.add("a", 100.0)
    assert waits.add("b", 100.0) == step
    loop.go_to(1000)
    assert len(met) == 1


def test_a_deadline_added_while_another_fires_waits_its_full_time() -> None:
    loop, met = Loop(), []

    def is_up(item: Hashable) -> None:
        met.append((item, loop.now))
        if item == "first":
            waits.add("second", loop.now * 1000.0 + 50)

    waits = deadlines(loop, is_up)
    waits.add("first", 100.0)
    loop.go_to(120)
    assert [item for item, _ in met] == ["first"]
    loop.go_to(300)
    assert [item for item, _ in met] == ["first", "second"]
