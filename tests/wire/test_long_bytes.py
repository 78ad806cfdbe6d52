"""Copies in pieces are the same bytes."""

from __future__ import annotations

import random

import pytest

from headrace.dispatch import reply
from headrace.long_bytes import AT_ONCE_BYTES, cut, joined
from tests.stretches import tick_count

NOISE = random.Random(3).randbytes(3 * AT_ONCE_BYTES)


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [5, 0, 7], [AT_ONCE_BYTES], [AT_ONCE_BYTES, 1], [1, AT_ONCE_BYTES + 1, 0, 3, 2 * AT_ONCE_BYTES],
     [1000] * 700, [200_000] * 3],
)  # fmt: skip
def test_pieces_are_joined(sizes: list[int]) -> None:
    pieces = [NOISE[index : index + size] for index, size in enumerate(sizes)]
    expected = b"".join(pieces)
    assert joined(pieces) == joined(map(memoryview, pieces)) == expected
    assert hash(joined(pieces)) == hash(expected)


def test_a_range_is_cut_out() -> None:
    for start, end in ((0, 0), (5, 9), (7, 7 + AT_ONCE_BYTES + 1), (0, len(NOISE))):
        assert cut(NOISE, start, end) == NOISE[start:end]


def test_a_long_batch_is_put_into_a_reply_in_pieces() -> None:
    batch, ticks = tick_count(reply.array, [NOISE] * 20)
    assert ticks >= 60
    elements, ticks = tick_count(reply.cursor_elements, b"firstBatch", batch, 0, b"t.c", None)
    assert ticks >= 120
    _, ticks = tick_count(reply.document, elements, reply.closing(None))
    assert ticks >= 60
