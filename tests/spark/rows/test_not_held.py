"""BSON that tables cannot hold is never changed without a word: each kind is found, with its reason."""

from __future__ import annotations

import random
import struct
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from pyspark.sql.types import DoubleType, IntegerType, StructType

from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.not_held import held_or_marked, is_held_number, marked_rows, reason_not_held, reason_of
from headrace.spark.rows.typed import Shaper
from headrace.values.arrow.batches import SCHEMA
from headrace.values.bson import decode, encode


def document(*elements: bytes) -> bytes:
    body = encode({"_id": 1})[4:-1] + b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def element(kind: int, value: bytes, name: bytes = b"x") -> bytes:
    return bytes([kind]) + name + b"\0" + value


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def inside(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


INT = struct.pack("<i", 7)
DUPLICATE = inside(element(16, INT, b"a"), element(16, INT, b"a"))
CASES = {
    "duplicate": (document(element(16, INT), element(16, INT)), "the field x is there twice"),
    "duplicate below": (document(element(3, DUPLICATE)), "the field x.a is there twice"),
    "duplicate in an array": (document(element(4, inside(element(3, DUPLICATE, b"0")))), "x.0.a is there twice"),
    "symbol": (document(element(14, text(b"s"))), "x is a symbol"),
    "symbol in an array": (document(element(4, inside(element(14, text(b"s"), b"0")))), "x.0 is a symbol"),
    "dbPointer": (document(element(12, text(b"d.c") + bytes(12))), "x is a dbPointer"),
    "undefined": (document(element(6, b"")), "x is undefined"),
    "array names": (document(element(4, inside(element(16, INT, b"5")))), "x is an array whose names are not 0, 1"),
    "array order": (
        document(element(4, inside(element(16, INT, b"1"), element(16, INT, b"0")))), "x is an array whose names"
    ),
    "regex unknown": (document(element(11, b"a\0gi\0")), "x is a regular expression with options"),
    "regex unsorted": (document(element(11, b"a\0xi\0")), "x is a regular expression with options"),
    "NaN payload": (document(element(1, b"\1\0\0\0\0\0\xf8\x7f")), "x is a NaN"),
    "NaN sign": (document(element(1, b"\0\0\0\0\0\0\xf8\xff")), "x is a NaN"),
    "NaN signalling": (document(element(1, b"\1\0\0\0\0\0\xf0\x7f")), "x is a NaN"),
    "decimal digits": (document(element(19, b"\xff" * 14 + b"\x41\x30")), "x is a Decimal128"),
    "decimal large form": (document(element(19, bytes(15) + b"\x60")), "x is a Decimal128"),
    "decimal NaN payload": (document(element(19, b"\1" + bytes(14) + b"\x7c")), "x is a Decimal128"),
    "decimal NaN sign": (document(element(19, bytes(15) + b"\xfc")), "x is a Decimal128"),
}  # fmt: skip
HELD: dict[str, Any] = {
    "_id": 1, "double": 1.5, "nan": float("nan"), "inf": float("inf"), "negative": -0.0, "s": "x\0y", "d": {"a": [1]},
    "b": b"x", "b2": Binary(b"y", 2), "o": ObjectId(bytes(12)), "t": True, "date": DatetimeMS(1), "n": None,
    "r": Regex("a", "imsx"), "code": Code("x"), "scoped": Code("x", {"a": 1}), "i": 1, "ts": Timestamp(1, 2),
    "l": Int64(1), "dec": Decimal128("1.50"), "decnan": Decimal128("NaN"), "max": MaxKey(), "min": MinKey(),
    "ref": {"$ref": "c", "$id": 1, "$db": "d"},
}  # fmt: skip


def batch(column: list[bytes], name: str = "fullDocument") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column, pa.binary())], schema=pa.schema([SCHEMA.field(name)]))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("rows", [1, 500])
def test_each_kind_is_marked_with_its_reason(kind: str, rows: int) -> None:
    data, reason = CASES[kind]
    good = encode({"_id": 1, "x": 7})
    shaped = Shaper(StructType().add("fullDocument", "string")).shape(batch([good] * rows + [data] * rows))
    texts = shaped.column(0).to_pylist()
    assert texts[:rows] == [dumps(decode(good))] * rows
    assert all(reason in (reason_of(each) or "") for each in texts[rows:])
    assert sorted(marked_rows(shaped)) == list(range(rows, 2 * rows))


@pytest.mark.parametrize("kind", CASES)
def test_columns_of_bson_have_the_bytes(kind: str) -> None:
    data, _ = CASES[kind]
    shaped = Shaper(StructType().add("fullDocument", "binary")).shape(batch([data]))
    assert shaped.column(0).to_pylist() == [data]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("rows", [1, 500])
def test_typed_columns_are_marked_in_the_rest(kind: str, rows: int) -> None:
    data, reason = CASES[kind]
    schema = StructType().add("fullDocument", StructType().add("_id", IntegerType()).add("x", DoubleType()))
    shaped = Shaper(schema.add("fullDocumentRest", "string")).shape(batch([data] * rows))
    assert all(reason in (reason_of(each) or "") for each in shaped.column(1).to_pylist())


def test_every_other_type_is_held_and_comes_back_as_the_same_bytes() -> None:
    data = encode(HELD)
    assert reason_not_held(data, decode(data)) is None
    assert encode(loads(dumps(held_or_marked(data)))) == data


def test_a_decimal_is_held_exactly_if_its_text_gives_its_bytes() -> None:
    draw = random.Random(27)
    for _ in range(3000):
        high = draw.getrandbits(64) if draw.random() < 0.5 else draw.choice([0x30, 0x7C, 0xFC, 0x78, 0xF8]) << 56
        low = draw.choice([0, 1, draw.getrandbits(64)])
        data = struct.pack("<QQ", low, high)
        same = Decimal128(str(Decimal128.from_bid(data))).bid == data
        assert is_held_number(19, data) == same, data.hex()


def test_a_double_is_held_exactly_if_its_text_gives_its_bytes() -> None:
    draw = random.Random(28)
    for _ in range(3000):
        data = struct.pack(
            "<Q", draw.choice([0x7FF, 0xFFF, 0x3FF]) << 52 | draw.choice([0, 1 << 51, draw.getrandbits(52)])
        )
        value = bson.decode(document(element(1, data)))["x"]
        same = struct.pack("<d", loads(dumps(value))) == data
        assert is_held_number(1, data) == same, data.hex()
