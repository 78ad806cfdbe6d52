"""An event as a row: every field in its column, and nothing lost when it has none."""

from __future__ import annotations

import pytest
from bson import Int64, Timestamp
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pyspark.sql.types import StructType

from headrace.spark.errors import OptionError
from headrace.spark.rows.events import SCHEMA, Row
from headrace.spark.source.data_source import HeadraceSource, schema_of
from headrace.spark.source.options import parse_options
from headrace.values.arrow.event_columns import COLUMNS
from tests.spark.support.event_rows import row_of

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


def test_the_columns_have_the_same_names_on_the_way_and_in_spark() -> None:
    assert tuple(column.split()[0] for column in SCHEMA.split(", ")) == COLUMNS == Row._fields[:-1]


def test_the_schema_is_what_was_asked_for() -> None:
    options = {"uri": "mongodb://h/", "columns": "token, fullDocument"}
    assert schema_of(parse_options(options)) == "token STRING NOT NULL, fullDocument STRING"
    assert schema_of(parse_options(options | {"documents": "bson"})) == "token STRING NOT NULL, fullDocument BINARY"
    typed = options | {"documents": "columns", "documentSchema": "a INT", "columns": "fullDocument,fullDocumentRest"}
    assert schema_of(parse_options(typed)) == "fullDocument STRUCT<a INT>, fullDocumentRest STRING"
    assert schema_of(parse_options({"uri": "mongodb://a/\nmongodb://b/"})) == SCHEMA + ", server STRING NOT NULL"
    with pytest.raises(OptionError, match="'tokn'"):
        schema_of(parse_options(options | {"columns": "tokn"}))


@pytest.mark.parametrize(("option", "value"), [("asOf", "2026-01-01T00:00:00Z"), ("endingPosition", "2026-01-01")])
def test_a_stream_has_no_options_of_batches(option: str, value: str) -> None:
    given = {"uri": "mongodb://127.0.0.1:1/", "database": "d", "collection": "c", option: value}
    with pytest.raises(OptionError, match=f"'{option}' is for batch reads, and a stream has no end: leave it out"):
        HeadraceSource(given).streamReader(StructType([]))
