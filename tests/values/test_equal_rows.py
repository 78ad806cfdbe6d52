"""Byte strings of one length: what is packed and cut at once is what one by one gives."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

from headrace.store.checksums.transaction import with_checksum, with_checksums
from headrace.store.identity import identified, identified_many
from headrace.values.bson import encode
from headrace.values.rows import EqualRows, as_rows, longest, part, total_bytes


@pytest.mark.parametrize("lengths", [(), (0,), (3,), (3, 3, 3), (0, 0), (3, 4), (3, 4, 3), (4, 3, 3)])
def test_rows_are_items_of_one_length(lengths: tuple[int, ...]) -> None:
    items = [bytes(length) for length in lengths]
    rows = as_rows(items)
    assert (rows is not None) == (len(set(lengths)) == 1)
    assert longest(items) == max(lengths, default=0) and total_bytes(items) == sum(lengths)
    if rows is not None:
        assert rows == items and rows.row_bytes == lengths[0] and as_rows(rows) is rows
        assert longest(rows) == max(lengths) and total_bytes(rows) == sum(lengths)
        assert type(rows[:1]) is type(rows + rows) is list
        for end in range(len(rows) + 2):
            some = part(rows, 0, end)
            assert some == items[:end] == part(items, 0, end) and type(some) is EqualRows
            assert part(rows, 1, end) == items[1:end] == part(items, 1, end)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("lengths", [(0,), (8,), (300,), (8, 9), (300_000,), (8, 8, 8, 300_000)])
def test_checksums_are_those_of_single_values(count: int, lengths: tuple[int, ...]) -> None:
    keys = [b"key%d" % number for number in range(count)]
    values = [bytes((number,)) * lengths[number % len(lengths)] for number in range(count)]
    expected = list(map(with_checksum, keys, values))
    assert list(with_checksums(keys, values)) == expected
    assert list(with_checksums(keys, as_rows(values) or values)) == expected


@pytest.mark.parametrize("size", [0, 1, 100, 4096 - 32, 4096 - 31, 4096 - 30, 9000])
@pytest.mark.parametrize("other", [None, 1, "x" * 7, "id", "nothing"])
def test_identities_are_those_of_single_documents(size: int, other: Any) -> None:
    """`other`: the `_id` of one of the documents."""
    filled: dict[str, Any] = {"t": "x" * size} if size else {}
    documents = [encode({"_id": ObjectId(), **filled}) for _ in range(20)]
    if other is not None:
        identity = ObjectId() if other in ("id", "nothing") else other
        documents[7] = encode({"_id": identity, **filled, **({"more": 1} if other == "id" else {})})
    ready, keys, key_documents = identified_many(documents, b"pre")
    single = list(map(identified, documents))
    assert ready == documents
    assert keys == [b"pre" + key for _, key, _ in single]
    assert key_documents == [key_document for *_, key_document in single]
    assert all(type(made) is not EqualRows or len({*map(len, made), made.row_bytes}) == 1 for made in (ready, keys))
