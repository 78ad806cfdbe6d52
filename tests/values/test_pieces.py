"""A long document decoded in pieces is what the codec decodes."""

from __future__ import annotations

import random
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.turns import TICK_COUNT
from headrace.values.bson import check_all, decode, encode, encode_in_order, encode_stored_in_pieces, encoding_in_pieces
from headrace.values.bson.codec import _decode_short
from headrace.values.bson.pieces import decode_in_pieces
from tests.stretches import longest_stretch, tick_count

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


LONG = {"letters": "ä€😀" * 50_000, "bytes": bytes(300_000), "array": ["x" * 300_000, b"y" * 300_000], "n": 1}


def test_long_texts_and_binaries_are_what_the_codec_decodes() -> None:
    raw = encode({**LONG, "binary": Binary(bytes(300_000), 5), "code": Code("f" * 300_000)})
    assert decode_in_pieces(raw, _decode_short) == _decode_short(raw)


@pytest.mark.parametrize("what", [b"\xff", b"\xe2\x82", b"\0"], ids=["no UTF-8", "cut off", "length"])
def test_a_long_text_that_is_none_is_invalid(what: bytes) -> None:
    raw = bytearray(encode({"a": "x" * 300_000}))
    end = len(raw) - 2 if what != b"\0" else len(raw) - 1
    raw[end - len(what) : end] = what if what != b"\0" else b"x"
    for decoder in (_decode_short, lambda data: decode_in_pieces(data, _decode_short)):
        with pytest.raises(bson.errors.InvalidBSON):
            decoder(bytes(raw))


@pytest.mark.parametrize(
    "document",
    [{"a": "x" * 9_000_000}, {"a": bytes(9_000_000)}, {"a": [{"b": [key]} for key in range(100_000)]}],
    ids=["text", "binary", "elements"],
)
def test_a_long_document_is_checked_in_pieces(document: dict[str, Any]) -> None:
    raw = encode(document)
    _, longest = longest_stretch(check_all, [raw])
    assert longest < len(raw) * 1.2  # a text is put together at once


def test_a_long_document_that_nests_deeply_is_refused() -> None:
    inner: Any = "x" * 300_000
    for _ in range(179):
        inner = [inner]
    check_all([encode({"a": inner})])
    with pytest.raises(CommandError, match="180 levels of nesting"):
        check_all([encode({"a": [[inner]]})])


@pytest.mark.parametrize("seed", range(5))
def test_a_document_encoded_in_pieces_is_what_the_codec_encodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_in_pieces, "PIECE_BYTES", 4096)
    rng = random.Random(seed)
    document = {f"v{index}": value(rng, 3) for index in range(20)} | {"a": [rng.choice(SHORT)] * 30_000, "_id": 1}
    document |= LONG
    assert encoding_in_pieces.encode_in_pieces(document, encode_in_order) == encode_in_order(document)
    assert encode_stored_in_pieces(document) == encode(document)


def test_a_long_document_is_encoded_in_pieces() -> None:
    document = {"a": [{"b": [key]} for key in range(100_000)], "c": list(range(300_000)), "_id": "x" * 3_000_000}
    raw, longest = longest_stretch(encode_stored_in_pieces, document)
    assert raw == encode(document) and longest < len(raw)


def test_the_estimate_of_a_long_document_lets_others_run() -> None:
    left, count = tick_count(encoding_in_pieces.left_of, 10_000_000, {"a": [{"b": [1]}] * 10_000})
    assert left > 0 and count >= 10_000 // TICK_COUNT
