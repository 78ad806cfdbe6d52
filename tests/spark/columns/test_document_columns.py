"""Documents as typed columns, a rest and a shape: whatever the schema and the document, the same document comes out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, MinKey, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.columns.arrow_columns import REST, SHAPE, ArrowColumns
from headrace.spark.columns.column_types import parse_schema, schema_text
from headrace.spark.columns.infer import ColumnRules, grown, infer_schema
from headrace.spark.rows.extjson import dumps, loads
from tests.values import bson_models

Document = dict[str, Any]
NAMES = st.sampled_from(["a", "A", "b", "c d", "a.b", "", "$x", "_rest", "é"])
VALUES = st.recursive(
    bson_models.SCALARS
    | st.sampled_from([Binary(bytes(16), 4), Decimal128("1.50"), Decimal128("2.00"), 1.5, 7, "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5).map(lambda document: loads(dumps(document)))
RULES = st.builds(
    ColumnRules,
    evolve=st.sampled_from(["none", "add", "widen", "text"]),
    flatten=st.sampled_from([frozenset(), frozenset({("a",), ("a", "b")}), None]),
    reserved=st.just(frozenset({"_rest", "_shape"})),
)


def rows_of(columns: ArrowColumns, documents: list[Document]) -> pa.Table:
    arrays, _ = columns.split(documents)
    return pa.table(arrays, schema=columns.arrow)


def texts(documents: list[Document]) -> list[str]:
    return [dumps(document) for document in documents]


@given(st.lists(DOCUMENTS, max_size=3), st.lists(DOCUMENTS, min_size=1, max_size=3), RULES)
def test_any_document_comes_out_as_it_was_by_the_schema_of_any_others(
    sample: list[Document], documents: list[Document], rules: ColumnRules
) -> None:
    schema = infer_schema(sample, rules)
    assert parse_schema(schema_text(schema), rules.reserved) == schema
    columns = ArrowColumns(schema)
    table = rows_of(columns, documents)
    assert texts(columns.joined(table)) == texts(documents)
    assert len({name.lower() for name in table.column_names}) == len(table.column_names)


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), DOCUMENTS, RULES)
def test_rows_of_before_say_the_same_by_a_schema_with_more_columns(
    documents: list[Document], new: Document, rules: ColumnRules
) -> None:
    before = infer_schema(documents[:1], rules)
    table = rows_of(ArrowColumns(before), documents)
    after = grown(before, new, ColumnRules("add", rules.flatten, reserved=rules.reserved))
    assert texts(ArrowColumns(after).joined(table)) == texts(documents)
    assert texts(ArrowColumns(after).joined(rows_of(ArrowColumns(after), [new]))) == texts([new])


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("boolean", True, True),
        ("tinyint", 127, 127),
        ("bigint", Int64(1 << 62), 1 << 62),
        ("double", Int64(1 << 53), 2.0**53),
        ("float", 0.5, 0.5),
        ("string", ObjectId("a" * 24), "a" * 24),
        ("uuid", Binary(bytes(16), 4), "00000000-0000-0000-0000-000000000000"),
        ("int as string", Decimal128("1.50"), "1.50"),
        ("binary", b"bytes", b"bytes"),
        ("decimal(5,2)", Decimal128("123.4"), Decimal128("123.40").to_decimal()),
        ("decimal(5,2)", 0.1, Decimal128("0.10").to_decimal()),
        ("array<bigint>", [1, Int64(2), None], [1, 2, None]),
        ("map<string, bigint>", {"b": 1, "a": None}, [("b", 1), ("a", None)]),
        ("struct<x: bigint>", {"x": 1}, {"x": 1}),
        ("timestamp", DatetimeMS(-62135596800000), None),
    ],
)
def test_a_value_that_fits_is_in_its_column(kind: str, value: Any, held: Any) -> None:
    columns = ArrowColumns(parse_schema(f"a {kind}"))
    table = rows_of(columns, [{"a": value}])
    (row,) = table.to_pylist()
    assert row[REST] is None
    assert held is None or row["a"] == held
    assert texts(columns.joined(table)) == texts([{"a": value}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", 1),
        ("tinyint", 128),
        ("int", True),
        ("int", Int64(1 << 31)),
        ("bigint", 1.0),
        ("double", Int64((1 << 53) + 1)),
        ("double", Decimal128("1")),
        ("float", 0.1),
        ("string", 5),
        ("timestamp", DatetimeMS(1 << 60)),
        ("decimal(5,2)", Decimal128("1.234")),
        ("decimal(5,2)", Decimal128("1234")),
        ("decimal(5,2)", Decimal128("NaN")),
        ("decimal(5,2)", -0.0),
        ("array<bigint>", [1, "two"]),
        ("array<struct<x: bigint>>", [{"x": 1, "y": 2}]),
        ("bigint", MinKey()),
        ("struct<x: bigint>", [1]),
    ],
)
def test_a_value_that_does_not_fit_is_in_the_rest(kind: str, value: Any) -> None:
    columns = ArrowColumns(parse_schema(f"a {kind}"))
    table = rows_of(columns, [{"a": value}])
    (row,) = table.to_pylist()
    assert (row["a"], row[REST]) == (None, dumps({"a": value}))
    assert texts(columns.joined(table)) == texts([{"a": value}])


def test_what_is_as_the_schema_says_needs_no_shape() -> None:
    columns = ArrowColumns(
        parse_schema("_id objectId\nn int\nprice decimal(38,2)\naddress.city string\naddress.zip string")
    )
    document = {"_id": ObjectId(), "n": 1, "price": Decimal128("1.50"), "address": {"city": "Oslo", "zip": "1"}, "x": 2}
    (row,) = rows_of(columns, [document]).to_pylist()
    assert (row[SHAPE], row[REST]) == (None, dumps({"x": 2}))
