"""Canonical Extended JSON: the same text as the drivers', and the same value back."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.rows import extjson
from headrace.spark.rows.typed import TextColumn, exact_texts
from headrace.values import bson

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    # A NaN's payload is not in the text.
    st.one_of(st.floats(allow_nan=False), st.just(float("nan"))),
    st.text(st.characters(exclude_categories=("Cs",))),
    st.binary(max_size=20),
    st.binary(max_size=20).map(lambda data: Binary(data, 128)),
    st.binary(min_size=16, max_size=16).map(lambda data: Binary(data, 4)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**62), 2**62).map(DatetimeMS),
    st.tuples(st.integers(-(10**20), 10**20), st.integers(-99, 99)).map(
        lambda pair: Decimal128(f"{pair[0]}E{pair[1]}")
    ),
    st.sampled_from([Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("-0")]),
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(lambda pair: Timestamp(*pair)),
    st.sampled_from([MinKey(), MaxKey(), Regex('^a"b', "imx"), Code("return 1"), Code("f", {"a": Int64(1)})]),
)
KEYS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0$"), max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_text_is_the_drivers_canonical_text_without_blanks(document: dict[str, Any]) -> None:
    document = bson.decode(bson.encode(document))
    theirs = json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert json.loads(extjson.dumps(document)) == json.loads(theirs)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_value_comes_back_from_its_text_with_every_type(document: dict[str, Any]) -> None:
    data = bson.encode(document)
    assert bson.encode(extjson.loads(extjson.dumps(bson.decode(data)))) == data


def test_a_reference_is_a_document_like_any_other() -> None:
    document = bson.decode(bson.encode({"r": {"$ref": "c", "$id": 1, "note": "kept"}}))
    text = extjson.dumps(document)
    assert text == '{"r":{"$ref":"c","$id":{"$numberInt":"1"},"note":"kept"}}'
    assert extjson.loads(text) == document


def test_a_value_that_bson_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not a BSON value"):
        extjson.dumps({"a": {1}})


LOOKALIKES = [
    "$binary", "$code", "$date", "$dbPointer", "$id", "$maxKey", "$numberDecimal", "$numberInt", "$numberLong", "$oid",
    "$options", "$plainDocument", "$regex", "$regularExpression", "$scope", "$symbol", "$timestamp", "$type", "$uuid",
    "base64", "i", "subType", "t",
]  # fmt: skip
IMITATIONS = st.dictionaries(
    st.sampled_from(LOOKALIKES),
    st.recursive(
        st.sampled_from(["zz", "5f" * 12, 1, Int64(1), 1.0, None, True, "2020-01-01T00:00:00Z", Regex("a", "i")]),
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(LOOKALIKES), inner)),
        max_leaves=6,
    ),
    max_size=3,
)


@given(IMITATIONS)
def test_a_document_that_imitates_a_value_comes_back_as_itself(document: dict[str, Any]) -> None:
    data = bson.encode({"_id": 1, "a": document, "b": [document]})
    text = extjson.dumps(bson.decode(data))
    assert bson.encode(extjson.loads(text)) == bson.encode(extjson.loads_strict(text)) == data


@given(st.lists(IMITATIONS, min_size=1, max_size=2))
def test_texts_made_by_layouts_are_those_of_single_documents(documents: list[dict[str, Any]]) -> None:
    encoded = [bson.encode({"_id": 1, "a": document}) for document in documents] * 250
    column = pa.array(encoded, pa.binary())
    assert TextColumn()(column).to_pylist() == exact_texts(column)[0].to_pylist()


def test_stored_texts_without_the_escape_are_documents_where_they_are_no_values() -> None:
    assert extjson.loads('{"a":{"$oid":"zz"}}') == {"a": {"$oid": "zz"}}
    assert extjson.loads('{"a":{"$binary":{"$numberInt":"1"}}}') == {"a": {"$binary": 1}}
    with pytest.raises(ValueError, match="no value of Extended JSON"):
        extjson.loads_strict('{"a":{"$oid":"zz"}}')
