"""Keys in order that come and go, and the sorting of them in pieces."""

from __future__ import annotations

import random

import pytest

from headrace.memory_budget import Memory
from headrace.store import changed_keys
from headrace.store.changed_keys import KeyOrder
from headrace.store.history import History
from headrace.store.kv import Table
from headrace.turns import PIECE_COUNT


@pytest.mark.parametrize("seed", range(20))
def test_keys_that_come_and_go_are_walked_as_a_sorted_set(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_keys, "PIECE_COUNT", 8)
    monkeypatch.setattr(changed_keys, "_RUN_COUNT_MAX", 64)
    random_, order, expected = random.Random(seed), KeyOrder(), set[bytes]()
    for _ in range(2000):
        key = random_.randrange(600).to_bytes(2, "big")
        if random_.random() < 0.6:
            order.add(key)
            expected.add(key)
        else:
            order.discard(key)
            expected.discard(key)
        if random_.random() < 0.05:
            start = random_.choice([None, random_.randrange(600).to_bytes(2, "big")])
            assert list(dict.fromkeys(order.walk(start, backward=False))) == sorted(
                key for key in expected if start is None or key >= start
            )
            assert list(dict.fromkeys(order.walk(start, backward=True))) == sorted(
                (key for key in expected if start is None or key <= start), reverse=True
            )
            assert len(order) == len(expected)


def test_what_is_discarded_leaves_the_lists_as_others_come() -> None:
    order = KeyOrder()
    for number in range(100 * PIECE_COUNT):
        order.add(number.to_bytes(4, "big"))
        if number >= PIECE_COUNT:
            order.discard((number - PIECE_COUNT).to_bytes(4, "big"))
    assert sum(map(len, [*order._full, *order._runs, order._new])) < 40 * PIECE_COUNT
    assert len(list(order.walk(None, backward=False))) == PIECE_COUNT


def test_what_many_changes_have_left_is_forgotten_in_pieces() -> None:
    table = Table(object())
    account = Memory().account("history")
    history = History({"documents": table, "ids": table, "indexes": table}, account)
    count = 3 * PIECE_COUNT
    for number in range(count):
        history.record((table, number.to_bytes(8, "big")), 1, b"before")
    history.sequence = 1
    assert account.bytes >= 6 * count
    history.clear()
    assert not account.bytes  # nobody is cut off for what goes anyway
    assert len(history) == count - PIECE_COUNT and history.has_forgotten
    history.record((table, b"0000later"), 2, None)  # of a transaction that has begun since
    while history.forget_more():
        pass
    size = account.bytes
    history.record((table, b"0000later"), 3, b"before")
    history.undo(3)
    assert account.bytes == size > 0
    assert len(history) == 1 and history.before((table, b"0000later"), 1) == (None,)
    assert history.before((table, bytes(8)), 0) is None
