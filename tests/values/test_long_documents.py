"""Long documents: what the codec decodes of them, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.values.bson import check_all, decode, encode


def test_names_of_elements_do_not_count() -> None:
    element = b"\x10\0\x01\0\0\0"
    inside = element * 100_000
    array = (len(inside) + 5).to_bytes(4, "little") + inside + b"\0"
    raw = (len(array) + 4 + 4).to_bytes(4, "little") + b"\x04a\0" + array + b"\0"
    assert decode(raw) == {"a": [1] * 100_000}


def test_a_long_document_that_nests_deeply_is_refused() -> None:
    inner: Any = "x" * 300_000
    for _ in range(179):
        inner = [inner]
    check_all([encode({"a": inner})])
    with pytest.raises(CommandError, match="180 levels of nesting"):
        check_all([encode({"a": [[inner]]})])
