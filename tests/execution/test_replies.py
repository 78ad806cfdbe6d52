"""Replies as bytes: long lists are encoded in pieces, and read back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.dispatch.reply import answer_elements
from headrace.values.bson import decode

LISTS: dict[str, list[Any]] = {
    "values": [1, "a", None, [1], {"b": 2}], "cursorsNotFound": [1], "writeErrors": [{"index": 0, "errmsg": "x"}]
}  # fmt: skip


@pytest.mark.parametrize("count", [0, 63, 64, 65, 5000])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_any_length_is_read_back(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"n": 1, name: (LISTS[name] * count)[:count], "empty": []}
    ticks: list[int] = []
    monkeypatch.setattr("headrace.turns.tick", lambda: ticks.append(1))
    elements = answer_elements(answer)
    assert decode((len(elements) + 5).to_bytes(4, "little") + elements + b"\0") == answer
    assert list(answer) == list(decode((len(elements) + 5).to_bytes(4, "little") + elements + b"\0"))
    assert bool(ticks) == (count >= 64)
