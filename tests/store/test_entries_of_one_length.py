"""Entries of a batch whose documents have one length are the entries of its documents one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64, ObjectId

from headrace.store import entries
from headrace.store.identity import identified_many
from headrace.values.bson import decode, encode

FIRST = 1_760_000_000 << 32 | 7
WALL_MS = 1_760_000_000_123
HEAD = entries.crud_head("i", "shop.orders", b"u" * 16)
IDENTITIES: list[Callable[[int], Any]] = [
    lambda number: ObjectId(), int, Int64, str, lambda number: Int64(1) if number % 2 else 1,
]  # fmt: skip


def one_by_one(documents: list[bytes], keys: list[bytes], retried: tuple[int, int] | None) -> list[bytes]:
    made = []
    for number, (document, key) in enumerate(zip(documents, keys)):
        its = None if retried is None else (retried[0] + number, FIRST + number - 1 if number else retried[1])
        made += entries.insert_entries(HEAD, [document], [key], FIRST + number, WALL_MS, its)
    return made


@pytest.mark.parametrize("retried", [None, (0, 0), (5, 0), (5, FIRST - 9)])
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("lengths", [(3, 3), (3, 4), (3, 3, 3, 0), (0, 3, 3, 3)])
@pytest.mark.parametrize("count", [15, 16, 17, 100])
def test_entries_are_those_of_single_documents(
    retried: tuple[int, int] | None, identity: Callable[[int], Any], lengths: tuple[int, ...], count: int
) -> None:
    documents = [
        encode({"_id": identity(number), "n": number, "t": "x" * lengths[number % len(lengths)]})
        for number in range(count)
    ]
    _, _, keys = identified_many(documents, b"")
    made = entries.insert_entries(HEAD, documents, keys, FIRST, WALL_MS, retried)
    assert made == one_by_one(documents, keys, retried)
    last = decode(made[-1])
    assert last["o"]["n"] == count - 1 and last["o2"] == {"_id": last["o"]["_id"]}
    if retried is not None:
        assert last["stmtId"] == retried[0] + count - 1 and last["prevOpTime"]["t"] == 1
