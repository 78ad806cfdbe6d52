"""A long document decoded in pieces is what the codec decodes."""

from __future__ import annotations

import random
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.values.bson import decode, encode
from headrace.values.bson.codec import _decode_short
from headrace.values.bson.pieces import decode_in_pieces

SHORT: list[Any] = [
    None, True, 1, Int64(2**40), 1.5, "", "text", "x" * 70, "y" * 300, [], {}, [1, 2], {"a": 1}, [{"b": [None]}],
    ObjectId(), DatetimeMS(5), Timestamp(1, 2), Regex("a", "i"), Binary(b"xyz", 5), b"bytes", Decimal128("1.5"),
    Code("f"), Code("f", {"x": 1}), bson.MinKey(), bson.MaxKey(), {"$ref": "c", "$id": 1},
]  # fmt: skip


def value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.3:
        count = rng.choice((3, 300, 20_000 // depth))
        if rng.random() < 0.5:
            return [rng.choice(SHORT) for _ in range(count)] + [value(rng, depth - 1)]
        return {f"f{index}": rng.choice(SHORT) for index in range(count)} | {"last": value(rng, depth - 1)}
    return rng.choice((*SHORT, "z" * 100_000))


@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_what_the_codec_decodes(seed: int) -> None:
    rng = random.Random(seed)
    document = {"_id": 1} | {f"v{index}": value(rng, 3) for index in range(20)} | {"a": [rng.choice(SHORT)] * 30_000}
    raw = encode(document)
    assert decode_in_pieces(raw, _decode_short) == _decode_short(raw) == decode(raw)


def test_names_of_elements_do_not_count() -> None:
    element = b"\x10\0\x01\0\0\0"
    inside = element * 100_000
    array = (len(inside) + 5).to_bytes(4, "little") + inside + b"\0"
    raw = (len(array) + 4 + 4).to_bytes(4, "little") + b"\x04a\0" + array + b"\0"
    assert decode(raw) == {"a": [1] * 100_000}


@pytest.mark.parametrize("at", [0, 4, 5, 100, 70_000, -1, -2, -6])
def test_a_damaged_long_document_is_invalid(at: int) -> None:
    raw = bytearray(encode({"a": [{"b": 1}] * 30_000, "c": "d"}))
    raw[at] ^= 0x5A
    try:
        expected: Any = _decode_short(bytes(raw))
    except bson.errors.InvalidBSON:
        with pytest.raises(bson.errors.InvalidBSON):
            decode_in_pieces(bytes(raw), _decode_short)
    else:
        assert decode_in_pieces(bytes(raw), _decode_short) == expected
