"""Keys in order, sorted in pieces as they come."""

from __future__ import annotations

import random

import pytest

from headrace.store import overlay_cursor
from headrace.store.overlay_cursor import KeyOrder


@pytest.mark.parametrize("seed", range(20))
def test_keys_that_come_in_any_order_are_walked_as_a_sorted_set(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_cursor, "PIECE_COUNT", 8)
    random_, order, expected = random.Random(seed), KeyOrder(), set[bytes]()
    for _ in range(1000):
        key = random_.randrange(6000).to_bytes(2, "big")
        order.add(key)
        expected.add(key)
        if random_.random() < 0.05:
            start = random_.choice([None, random_.randrange(6000).to_bytes(2, "big")])
            assert list(order.walk(start, backward=False)) == sorted(
                key for key in expected if start is None or key >= start
            )
            assert list(order.walk(start, backward=True)) == sorted(
                (key for key in expected if start is None or key <= start), reverse=True
            )
