"""Documents of one layout, which are checked without a decode: exactly those that decode are accepted."""

from __future__ import annotations

from typing import Any, Final

import pytest
from bson import Decimal128, Int64, MaxKey, ObjectId, Timestamp
from bson.errors import BSONError
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CommandError
from headrace.values.bson import check_all, decode, encode
from headrace.values.bson.codec import ALIKE_COUNT_MIN, are_alike
from tests.values.bson_models import NAMES, VALUES

COUNT: Final = ALIKE_COUNT_MIN + 7
MANY: Final = 150
"""So many orders are compared by columns, `COUNT` by a mask."""


def order(number: int, **fields: Any) -> bytes:
    return encode({
        "_id": ObjectId(), "n": number, "status": "new", "total": number / 7, "tags": ["a", "b"],
        "at": Timestamp(number, 1),
        "paid": number % 2 == 0, "none": None, "far": MaxKey(), "long": Int64(number), "price": Decimal128("1.5"),
        "inner": {"a": {"b": "c"}}, **fields,
    })  # fmt: skip


def is_valid(document: bytes) -> bool:
    try:
        decode(document)
    except (BSONError, UnicodeDecodeError):
        return False
    return True


def passes(batch: list[bytes]) -> bool:
    try:
        check_all(batch)
    except (BSONError, UnicodeDecodeError):
        return False
    return True


def test_documents_with_other_values_are_alike() -> None:
    assert are_alike([order(number) for number in range(COUNT)])
    assert are_alike([order(number) for number in range(2)])
    assert are_alike([order(number) for number in range(200)])
    assert are_alike([order(number, note="x" * 3000) for number in range(COUNT)])
    assert are_alike([encode({}) for _ in range(COUNT)])


@pytest.mark.parametrize(
    "other",
    [
        order(1, status="gone"), order(1, tags=["a", "é"]), order(1, paid=None), order(1, n=Int64(1)), order(1, more=1),
        order(1, none=MaxKey(), far=None), order(1, inner={"a": {"c": "c"}}), order(1, status="n\u00e9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 1, COUNT // 2, COUNT - 1])
def test_a_document_that_differs_is_decoded(other: bytes, at: int) -> None:
    batch = [order(number) for number in range(COUNT)]
    batch[at] = other
    assert not are_alike(batch)
    assert passes(batch)


@pytest.mark.parametrize(("at", "count"), [(1, COUNT), (COUNT // 2, COUNT), (COUNT - 1, COUNT), (1, MANY), (149, MANY)])
def test_each_damaged_byte_is_found_that_a_decode_finds(at: int, count: int) -> None:
    batch = [order(number) for number in range(count)]
    sound = batch[at]
    for place in range(len(sound)):
        for byte in {sound[place] ^ 1, sound[place] ^ 0x80, 0, 1, 2, 3, 0x7F, 0xFF}:
            batch[at] = sound[:place] + bytes((byte,)) + sound[place + 1 :]
            if are_alike(batch):
                assert is_valid(batch[at]), place
            elif place % 16 == 0:
                assert passes(batch) == is_valid(batch[at]), place


@pytest.mark.parametrize("size", [63, 64, 65, 3000])
@pytest.mark.parametrize("at", [1, MANY - 1])
def test_text_that_is_not_ascii_is_decoded(size: int, at: int) -> None:
    batch = [order(number, note="x" * size, end="y") for number in range(MANY)]
    assert are_alike(batch)
    sound = batch[at]
    for place in (0, size // 2, size - 2):
        for text, valid in (("é".encode(), True), (b"\xff\xff", False)):
            start = sound.index(b"xx") + place
            batch[at] = sound[:start] + text + sound[start + 2 :]
            assert not are_alike(batch)
            assert passes(batch) == valid


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.data())
def test_documents_that_are_alike_decode(model: dict[str, Any], data: st.DataObject) -> None:
    first = encode(model)
    damaged = bytearray(first)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(first) - 1))] = data.draw(st.integers(0, 255))
    few, many = are_alike([first, bytes(damaged)]), are_alike([first, *[bytes(damaged)] * 300])
    assert few == many
    if few:
        assert is_valid(bytes(damaged))


def test_a_damaged_first_document_is_refused() -> None:
    broken = order(1).replace(b"new", b"\xff\xff\xff")
    assert not passes([broken] * COUNT)


def test_documents_of_one_layout_that_nest_too_deeply_are_refused() -> None:
    inner: Any = 1
    for _ in range(200):
        inner = [inner]
    with pytest.raises(CommandError, match="180 levels of nesting"):
        check_all([encode({"a": inner})] * COUNT)
