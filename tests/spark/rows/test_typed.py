"""Documents as typed columns: what fits is in its column, everything else in the rest, nothing in both or neither."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64, MinKey, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.event_ranges import rows_batches
from headrace.spark.rows.extjson import loads
from headrace.spark.rows.typed import Shaper, fit_struct
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import MISSING, encode


def struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        (spark.BooleanType(), True, True),
        (spark.ByteType(), 127, 127),
        (spark.LongType(), Int64(1 << 62), 1 << 62),
        (spark.LongType(), 5, 5),
        (spark.DoubleType(), 1.5, 1.5),
        (spark.DoubleType(), Int64(1 << 53), 2.0**53),
        (spark.FloatType(), 0.5, 0.5),
        (spark.StringType(), "text", "text"),
        (spark.StringType(), ObjectId("a" * 24), "a" * 24),
        (spark.BinaryType(), b"bytes", b"bytes"),
        (spark.TimestampType(), DatetimeMS(1500), 1_500_000),
        (spark.DecimalType(5, 2), Decimal128("123.45"), Decimal128("123.45").to_decimal()),
        (spark.ArrayType(spark.LongType()), [1, Int64(2), None], [1, 2, None]),
        (spark.MapType(spark.StringType(), spark.LongType()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        (struct(x=spark.LongType()), {"x": 1}, {"x": 1}),
    ],
)
def test_a_value_that_fits_is_in_its_column(kind: spark.DataType, value: Any, held: Any) -> None:
    assert fit_struct(struct(a=kind))({"a": value}) == ({"a": held}, MISSING)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (spark.BooleanType(), 1),
        (spark.ByteType(), 128),
        (spark.IntegerType(), True),
        (spark.IntegerType(), Int64(1 << 31)),
        (spark.LongType(), 1.0),
        (spark.DoubleType(), Int64((1 << 53) + 1)),
        (spark.DoubleType(), Decimal128("1")),
        (spark.FloatType(), 0.1),
        (spark.FloatType(), 1e300),
        (spark.StringType(), 5),
        (spark.StringType(), None),
        (spark.TimestampType(), DatetimeMS(1 << 60)),
        (spark.DecimalType(5, 2), Decimal128("1.234")),
        (spark.DecimalType(5, 2), Decimal128("1234")),
        (spark.DecimalType(5, 2), Decimal128("NaN")),
        (spark.ArrayType(spark.LongType()), [1, "two"]),
        (spark.ArrayType(struct(x=spark.LongType())), [{"x": 1, "y": 2}]),
        (spark.LongType(), MinKey()),
        (struct(x=spark.LongType()), [1]),
    ],
)
def test_a_value_that_does_not_fit_is_in_the_rest(kind: spark.DataType, value: Any) -> None:
    assert fit_struct(struct(a=kind))({"a": value}) == ({}, {"a": value})


def test_an_objects_fields_fit_one_by_one() -> None:
    fit = fit_struct(struct(a=struct(x=spark.LongType(), y=spark.StringType())))
    assert fit({"a": {"x": 1, "y": 2, "z": 3}, "b": 4}) == ({"a": {"x": 1}}, {"a": {"y": 2, "z": 3}, "b": 4})


@pytest.mark.parametrize("kind", [spark.DateType(), spark.MapType(spark.LongType(), spark.LongType())])
def test_a_type_that_no_value_has_is_refused(kind: spark.DataType) -> None:
    with pytest.raises(OptionError, match="'a'"):
        fit_struct(struct(a=kind))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 31), (1 << 31) - 1) | st.text(max_size=3)
    | st.floats(allow_nan=False) | st.integers(-(1 << 63), (1 << 63) - 1).map(Int64),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from("abc"), each, max_size=3),
    max_leaves=8,
)  # fmt: skip
_SCHEMA = struct(
    a=spark.LongType(), b=struct(a=spark.StringType(), b=spark.ArrayType(spark.DoubleType())), c=spark.StringType()
)


def joined(held: Any, rest: Any) -> Any:
    """A document from its two halves, but for the order of fields."""
    if rest is MISSING or (rest is None and held is not None):
        return held
    if not isinstance(held, dict) or not isinstance(rest, dict):
        assert held is None
        return rest
    return {name: joined(held.get(name), rest.get(name, MISSING)) for name in held.keys() | rest.keys()}


@given(st.dictionaries(st.sampled_from("abcd"), _VALUES, max_size=4))
def test_the_halves_of_any_document_make_it_again(document: dict[str, Any]) -> None:
    assert joined(*fit_struct(_SCHEMA)(document)) == document


def event_batch(document: dict[str, Any]) -> pa.RecordBatch:
    row = [None] * len(COLUMNS)
    row[0], row[7] = "8201", encode(document)  # type: ignore[call-overload]
    (batch,) = rows_batches([row], COLUMNS)
    return batch


def test_a_batch_has_the_struct_and_the_rest_as_columns() -> None:
    schema = struct(
        token=spark.StringType(),
        fullDocument=struct(
            n=spark.LongType(), when=spark.TimestampType(), m=spark.MapType(spark.StringType(), spark.LongType())
        ),
        fullDocumentRest=spark.StringType(),
    )
    shaper = Shaper(schema)
    assert shaper.columns == ("token", "fullDocument")
    (row,) = shaper.shape(event_batch({"n": 1, "when": DatetimeMS(0), "m": {"k": 2}, "other": "x"})).to_pylist()
    assert row["fullDocument"]["n"] == 1 and row["fullDocument"]["m"] == [("k", 2)]
    assert row["fullDocument"]["when"].timestamp() == 0
    assert loads(row["fullDocumentRest"]) == {"other": "x"}


def test_bson_is_passed_on_as_it_is() -> None:
    schema = struct(fullDocument=spark.BinaryType(), documentKey=spark.BinaryType())
    (row,) = Shaper(schema).shape(event_batch({"n": 1})).to_pylist()
    assert row == {"fullDocument": encode({"n": 1}), "documentKey": None}
