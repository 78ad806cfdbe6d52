"""Keys are one key exactly where MongoDB's comparison calls them equal."""

from __future__ import annotations

from typing import Any

from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.key_identity import is_plain_number, key_identity, number_texts, same_document_key
from headrace.values.order import sort_key

NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, 1, -1, 5, Int64(1), Int64(2**62), 0.0, -0.0, 1.0, 1.5, 1e16, 2.0**63, -(2.0**63), 1e300]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(
        [
            "1",
            "1.0",
            "1.00",
            "-0",
            "0E+5",
            "1E1",
            "10",
            "1.5",
            "1.50",
            "9223372036854775808",
            "NaN",
            "Infinity",
            "1E6000",
        ]
    ).map(Decimal128),
)
KEYS = st.one_of(
    NUMBERS,
    st.sampled_from(["1", DatetimeMS(1), None, True]),
    st.dictionaries(st.sampled_from("ab"), NUMBERS, max_size=2),
)


@given(KEYS, KEYS)
def test_identities_are_equal_where_the_values_are(one: Any, other: Any) -> None:
    same = sort_key(one) == sort_key(other)
    assert (key_identity(dumps(one)) == key_identity(dumps(other))) == same


@given(NUMBERS, NUMBERS)
def test_the_texts_of_a_plain_number_follow_from_any_that_is_equal(one: Any, other: Any) -> None:
    text = dumps(other)
    same = key_identity(dumps(one)) == key_identity(text)
    assert (text in number_texts(dumps(one))) == (same and is_plain_number(text))


def test_a_replacement_may_change_the_type_of_a_key() -> None:
    assert same_document_key('{"_id":{"$numberInt":"1"}}', '{"$numberInt":"1"}') == '{"$numberInt":"1"}'
    assert (
        same_document_key('{"a":null,"_id":{"$numberDouble":"1.0"}}', '{"$numberInt":"1"}') == '{"$numberDouble":"1.0"}'
    )
