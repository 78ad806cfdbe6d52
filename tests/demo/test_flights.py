"""The flights of the demonstration: what an airline would write, in order."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.demo.flights import writes

pytestmark = pytest.mark.process


def test_a_days_writes_are_in_the_order_of_time_and_of_each_flights_life() -> None:
    planned = writes(1)
    assert [write.at for write in planned] == sorted(write.at for write in planned)
    kinds: dict[str, list[str]] = {}
    for write in planned:
        kinds.setdefault(write.key, []).append(write.kind)
    lives = Counter(tuple(life) for life in kinds.values())
    assert lives == {("insert", "update", "update"): 837, ("insert", "update"): 1, ("insert", "delete"): 4}


def test_a_later_day_adds_to_the_earlier_ones() -> None:
    assert len(writes(2)) > 2 * 900
