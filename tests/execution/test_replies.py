"""Replies as bytes are read back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.dispatch.reply import answer_elements
from headrace.values.bson import decode

LISTS: dict[str, list[Any]] = {
    "values": [1, "a", None, [1], {"b": 2}], "cursorsNotFound": [1], "writeErrors": [{"index": 0, "errmsg": "x"}]
}  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_any_length_is_read_back(name: str, count: int) -> None:
    answer = {"n": 1, name: (LISTS[name] * count)[:count], "empty": []}
    elements = answer_elements(answer)
    assert decode((len(elements) + 5).to_bytes(4, "little") + elements + b"\0") == answer
    assert list(answer) == list(decode((len(elements) + 5).to_bytes(4, "little") + elements + b"\0"))
