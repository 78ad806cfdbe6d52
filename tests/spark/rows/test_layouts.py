"""Documents of one layout are told together; what is told is what the decoder says of each, to the letter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from headrace.spark.rows import layouts
from headrace.spark.rows.layouts import BsonColumn, DocumentLayout, KnownLayouts, LayoutMatch, Numbers, layout_of
from headrace.spark.rows.typed import TextColumn, TypedColumns, exact_texts
from headrace.values.bson import encode

ROWS_MIN = 32
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "é", 'q"\\', "$x", "x.y", ""])
KINDS: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.one_of(st.sampled_from([2**53, 2**53 + 1, -(2**53), 127, 128, -129]), st.integers(-(2**63), 2**63 - 1)).map(
        Int64
    ),
    st.one_of(st.floats(), st.sampled_from([-0.0, 0.5, 1e300, float("inf"), float("nan")])),
    st.one_of(TEXT, st.sampled_from(["\0", "a\0\x10b\0", '"', "\\", "\x1f", "\x7f"])),
    st.binary(max_size=5),
    st.binary(max_size=5).map(lambda data: Binary(data, 128)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**52, 2**52 - 1, -(2**52)])).map(DatetimeMS),
    st.tuples(st.integers(-(10**6), 10**6), st.integers(-4, 4)).map(lambda pair: Decimal128(f"{pair[0]}E{pair[1]}")),
    st.sampled_from([Decimal128("NaN"), Decimal128("-0")]),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: Timestamp(*pair)),
    st.sampled_from([MinKey(), MaxKey()]),
    st.sampled_from([Regex('^a"', "im"), Code("x"), Code("y", {"a": 1}), DBRef("c", 1)]),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.one_of(TEXT, st.none(), st.floats(0, 9)), max_size=3),
]


@pytest.fixture(scope="module", autouse=True)
def few_rows_are_enough() -> Iterator[None]:
    """So that documents need not be many to be converted together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "ROWS_MIN", ROWS_MIN)
        yield


def skeletons(depth: int) -> st.SearchStrategy[st.SearchStrategy[dict[str, Any]]]:
    """Strategies of documents that have the same fields of the same types (or nearly)."""
    kinds = st.sampled_from(KINDS)
    if depth:
        below = skeletons(depth - 1)
        kinds = st.one_of(kinds, kinds, below, below.map(lambda inner: st.lists(inner, max_size=2)))
    return st.dictionaries(NAMES, kinds, max_size=7).map(st.fixed_dictionaries)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Rows of BSON: several documents each of a few layouts, often enough to be converted together, and others."""
    rows: list[bytes | None] = []
    for documents in draw(st.lists(skeletons(2), min_size=1, max_size=3)):
        some = [encode(each) for each in draw(st.lists(documents, min_size=1, max_size=5))]
        rows += some * draw(st.sampled_from([1, ROWS_MIN, ROWS_MIN + 9]))
    rows += [None] * draw(st.integers(0, 2))
    random.Random(draw(st.integers(0, 9))).shuffle(rows)
    return pa.array(rows, pa.binary())[draw(st.integers(0, 1)) :]


SCHEMA = spark.StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "nullable": True, "metadata": {}, "type": kind}
            for name, kind in {
                "a": "long", "b": "string", "c": "double", "d": "timestamp", "e": "byte", "f": "float", "g": "binary",
                "h": "boolean", "i": "decimal(8,2)", "é": "integer",
                "j": {"type": "array", "elementType": "double", "containsNull": True},
                "k": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
                "l": {
                    "type": "struct",
                    "fields": [
                        {"name": name, "nullable": True, "metadata": {}, "type": kind}
                        for name, kind in {"a": "string", "b": "short", "c": "long", "d": "double"}.items()
                    ],
                },
            }.items()
        ],
    }
)  # fmt: skip
ARROW = to_arrow_type(SCHEMA, timezone="UTC")
many = settings(max_examples=150, deadline=None, derandomize=True)


def as_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with times as their milliseconds: Python has only those of the years 1 to 9999."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, as_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(as_numbers(kind.value_type))
    return pa.map_(kind.key_type, as_numbers(kind.item_type)) if pa.types.is_map(kind) else kind


def same(one: pa.Array, other: pa.Array) -> bool:
    """Equal, NaN equal to itself and the signs of zeros distinguished."""
    values = [repr(each.cast(as_numbers(each.type)).to_pylist()) for each in (one, other)]
    return one.type == other.type and values[0] == values[1]


@pytest.mark.process
@many
@given(columns())
def test_texts_converted_together_equal_those_converted_one_by_one(column: pa.Array) -> None:
    assert TextColumn()(column).equals(exact_texts(column)[0])


@pytest.mark.process
@many
@example(pa.array([encode({"d": DatetimeMS(-62_135_596_800_001)})]))
@given(columns())
def test_typed_columns_converted_together_equal_those_converted_one_by_one(column: pa.Array) -> None:
    together, alone = TypedColumns(SCHEMA, ARROW)(column), TypedColumns(SCHEMA, ARROW).exact(column)
    assert same(together[0], alone[0])
    assert together[1].equals(alone[1])


def test_documents_that_fit_their_columns_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"a": 1, "b": "t", "c": 0.5, "d": DatetimeMS(5), "h": True, "l": {"a": "x", "z": [1, "2"]}, "new": "n"}
    column = pa.array([encode(document | {"a": number}) for number in range(ROWS_MIN)])
    typed = TypedColumns(SCHEMA, ARROW)
    monkeypatch.setattr(typed, "exact", None)
    held, rest = typed(column)
    assert held[7].as_py()["a"] == 7 and held[7].as_py()["l"]["a"] == "x"
    assert rest[7].as_py() == '{"l":{"z":[{"$numberInt":"1"},"2"]},"new":"n"}'


def texts_of(column: pa.Array) -> tuple[pa.Array, int]:
    """The texts, and how many rows went to the decoder."""
    asked: list[int] = []

    def exact(rows: pa.Array) -> list[pa.Array]:
        asked.append(len(rows))
        return exact_texts(rows)

    def fast(match: LayoutMatch) -> tuple[Numbers, list[pa.Array]]:
        return match.rows, exact_texts(column.take(pa.array(match.rows)))

    (texts,) = KnownLayouts().columns(column, fast, exact)
    return texts, sum(asked)


def test_rows_of_many_layouts_come_back_in_their_order() -> None:
    documents = [{"n": number, f"f{number % 3}": number % 2 or None} for number in range(300)] + [{"x": 1}]
    column = pa.array([encode(each) for each in documents])
    texts, asked = texts_of(column)
    assert texts.equals(exact_texts(column)[0])
    assert asked == 1


def test_a_column_of_which_every_document_is_another_is_left_to_the_decoder() -> None:
    column = pa.array([encode({f"f{number}": number}) for number in range(200)])
    assert texts_of(column)[1] == 200


def raw(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


@pytest.mark.parametrize(
    "document",
    [
        raw(b"\x10a\0\1\0\0\0", b"\x10a\0\2\0\0\0"),
        encode({"r": {"$ref": "c", "$id": 1}}),
        encode({"a": Regex("x")}),
        raw(b"\x06u\0"),
        encode({f"f{number}": number for number in range(201)}),
    ],
)
def test_a_document_that_no_layout_describes_is_decoded(document: bytes) -> None:
    assert layout_of(document) is None
    column = pa.array([document] * 40)
    assert TextColumn()(column).equals(exact_texts(column)[0])


@pytest.mark.parametrize(
    "document",
    [
        raw(b"\x02a\0\2\0\0\0\xff\0"),
        raw(b"\x02a\0\4\0\0\0\xed\xa0\x80\0"),
        raw(b"\x08a\0\2"),
        raw(b"\x02a\0\xff\0\0\0b\0"),
        b"\x20\0\0\0\x10a\0\1\0\0\0\0",
        raw(b"\x10\xff\0\1\0\0\0"),
    ],
)
def test_malformed_documents_are_the_decoders_error(document: bytes) -> None:
    column = pa.array([encode({"a": "x"})] * 40 + [document] * 40)
    for converter in (exact_texts, TextColumn(), TypedColumns(SCHEMA, ARROW)):
        with pytest.raises((bson.InvalidBSON, UnicodeDecodeError)):
            converter(column)


def test_a_document_whose_lengths_lead_elsewhere_is_not_of_the_layout() -> None:
    good, other = encode({"s": "ab", "n": 1}), encode({"s": "ab\0\x10n\0", "n": 1})
    layout = layout_of(good)
    assert layout is not None
    column = BsonColumn(pa.array([good, other, encode({"s": "ab", "m": 1}), good]))
    assert layout.match(column, np.arange(4)).rows.tolist() == [0, 1, 3]


def test_layouts_are_remembered_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[bytes] = []

    def learning(document: bytes) -> DocumentLayout | None:
        learned.append(document)
        return layout_of(document)

    monkeypatch.setattr(layouts, "layout_of", learning)
    texts = TextColumn()
    one, two = (pa.array([encode({name: number}) for number in range(40)]) for name in "ab")
    for column in (one, one, two, two, one):
        texts(column)
    assert len(learned) == 3
