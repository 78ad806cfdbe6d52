"""An event as a row: every field in its column, and nothing lost when it has none."""

from __future__ import annotations

import pyarrow as pa
from bson import Int64, Timestamp
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headrace.spark.events import Row, row_of, to_batch

UPDATE = {
    "txnNumber": Int64(3),
    "lsid": {"id": Binary(b"0" * 16, 4)},
    "_id": {"_data": "8201"},
    "operationType": "update",
    "clusterTime": Timestamp(1700000000, 7),
    "wallTime": DatetimeMS(1700000000123),
    "ns": {"db": "d", "coll": "c"},
    "documentKey": {"_id": 1},
    "updateDescription": {"updatedFields": {"a.b": 2}, "removedFields": [], "truncatedArrays": []},
    "fullDocumentBeforeChange": None,
}


def test_every_field_has_its_column() -> None:
    row = row_of({name: value for name, value in UPDATE.items() if value is not None})
    assert row == Row(
        token="8201",
        clusterTime=1_700_000_000_000_000,
        clusterTimeIncrement=7,
        operationType="update",
        database="d",
        collection="c",
        documentKey='{"_id":{"$numberInt":"1"}}',
        updateDescription='{"updatedFields":{"a.b":{"$numberInt":"2"}},"removedFields":[],"truncatedArrays":[]}',
        lsid='{"id":{"$binary":{"base64":"MDAwMDAwMDAwMDAwMDAwMA==","subType":"04"}}}',
        txnNumber=3,
        wallTime=1_700_000_000_123_000,
    )


def test_what_has_no_column_or_is_not_what_its_column_takes_is_in_other() -> None:
    event = {"_id": {"_data": "8201"}, "to": {"db": "d", "coll": "x"}, "operationType": 5, "ns": {"db": "d", "x": "y"}}
    row = row_of(event | {"fullDocument": "reshaped", "txnNumber": 1, "fullDocumentBeforeChange": None})
    assert row == Row(
        token="8201",
        other='{"to":{"db":"d","coll":"x"},"operationType":{"$numberInt":"5"},"ns":{"db":"d","x":"y"},'
        '"fullDocument":"reshaped","txnNumber":{"$numberInt":"1"},"fullDocumentBeforeChange":null}',
    )


def test_a_raw_description_takes_the_same_column() -> None:
    row = row_of({"_id": {"_data": "8201"}, "rawUpdateDescription": {"$v": 2, "diff": {"u": {"a": True}}}})
    assert row.updateDescription == '{"$v":{"$numberInt":"2"},"diff":{"u":{"a":true}}}'


def test_rows_become_an_arrow_batch_of_sparks_schema() -> None:
    schema = pa.schema(
        [pa.field(name, pa.timestamp("us", "UTC") if name.endswith("Time") else
                  pa.int64() if name in {"clusterTimeIncrement", "txnNumber"} else pa.string())
         for name in Row._fields]
    )  # fmt: skip
    batch = to_batch([row_of({k: v for k, v in UPDATE.items() if v is not None}), Row("8202")], schema)
    assert batch.to_pylist()[0]["wallTime"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert batch.to_pylist()[1] == dict.fromkeys(Row._fields) | {"token": "8202"}
    assert to_batch([], schema).num_rows == 0
    assert (
        to_arrow_schema(StructType([StructField("token", StringType(), False)]), timezone="UTC").field(0).nullable
        is False
    )
