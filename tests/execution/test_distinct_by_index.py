"""`distinct` by an index: which it goes through, how much it reads, and that it has the values of the documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Decimal128, Int64, Regex
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode
from headrace.values.keystring.decoding import value_end
from headrace.values.keystring.encoding import encode_value
from tests.execution.collections import SCALARS, both, documents, filled, flat, inner, keys, options, paths, plain


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        made = [
            {"_id": n, "a": n % 4, "b": f"b{n % 10}", "c": n % 3, "t": [f"t{n % 5}", f"t{n % 7}"], "o": {"d": n % 6}}
            for n in range(420)
        ]
        server.must("t", {"insert": "c", "documents": made})
        yield server


def index(at: DrivenServer, key: dict[str, Any], **more: Any) -> None:
    at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "_".join(key), **more}]})


def asked(at: DrivenServer, key: str, query: dict[str, Any] | None = None, **more: Any) -> tuple[list[str], list[Any]]:
    """The stages of the plan, from above, with what they have examined; and the values."""
    command = {"distinct": "c", "key": key, "query": query or {}, **more}
    reply: Any = at.must("t", {"explain": command, "verbosity": "executionStats"})
    stage, names = reply["queryPlanner"]["winningPlan"], []
    while stage is not None:
        names.append(stage["stage"])
        stage = stage.get("inputStage")
    stats = reply["executionStats"]
    values = at.must("t", command)["values"]
    assert stats["nReturned"] == len(values)
    return [*names, f"{stats['totalKeysExamined']} keys", f"{stats['totalDocsExamined']} documents"], values


COVERED = ["PROJECTION_COVERED", "DISTINCT_SCAN"]


def test_the_first_field_of_a_compound_index_has_a_key_read_for_each_value(at: DrivenServer) -> None:
    index(at, {"b": 1, "c": 1, "a": 1})
    assert asked(at, "b") == ([*COVERED, "10 keys", "0 documents"], [f"b{n}" for n in range(10)])
    assert asked(at, "b", {"b": {"$gte": "b7"}}) == ([*COVERED, "3 keys", "0 documents"], ["b7", "b8", "b9"])


def test_a_later_field_has_a_key_read_for_each_value_behind_equality(at: DrivenServer) -> None:
    index(at, {"a": 1, "c": -1, "b": 1})
    assert asked(at, "c", {"a": 2}) == ([*COVERED, "3 keys", "3 documents"], [2, 1, 0])
    assert asked(at, "b", {"a": 2, "c": 1})[0] == [*COVERED, "5 keys", "0 documents"]
    assert asked(at, "b", {"a": 2, "c": 1, "b": {"$lt": "b5"}})[1] == ["b0", "b2", "b4"]


def test_several_values_before_the_field_are_each_gone_through(at: DrivenServer) -> None:
    index(at, {"a": 1, "b": 1})
    plan, values = asked(at, "b", {"a": {"$in": [1, 3]}})
    assert plan[:2] == COVERED
    assert sorted(values) == ["b1", "b3", "b5", "b7", "b9"]
    plan, values = asked(at, "b", {"a": {"$gt": 1}})
    assert plan[:2] == COVERED
    assert len(values) == 10


def test_a_later_condition_is_looked_for_under_each_value(at: DrivenServer) -> None:
    index(at, {"a": 1, "b": 1})
    plan, values = asked(at, "a", {"a": {"$gte": 0}, "b": "b3"})
    assert plan[:2] == COVERED
    assert values == [1, 3]


@pytest.mark.parametrize(
    ("key", "query"),
    [("b", {}), ("a", {"b": "b1"}), ("a", {"a": 1, "c": 1}), ("b", {"a": {"$mod": [2, 1]}}), ("o.0", {})],
)
def test_other_queries_read_documents(at: DrivenServer, key: str, query: dict[str, Any]) -> None:
    """No bounds of the first field, a condition on another one, or one that is no range."""
    index(at, {"a": 1, "b": 1})
    index(at, {"o.0": 1})
    assert "DISTINCT_SCAN" not in asked(at, key, query)[0]


def test_a_hint_takes_an_index_whose_first_field_has_no_bounds(at: DrivenServer) -> None:
    index(at, {"a": 1, "b": 1})
    plan, values = asked(at, "b", hint={"a": 1, "b": 1})
    assert plan[:2] == COVERED
    assert sorted(values) == [f"b{n}" for n in range(10)]


def test_elements_of_arrays_are_values_where_nothing_is_asked_for(at: DrivenServer) -> None:
    index(at, {"t": 1})
    assert asked(at, "t") == ([*COVERED, "7 keys", "0 documents"], [f"t{n}" for n in range(7)])
    assert "DISTINCT_SCAN" not in asked(at, "t", {"t": "t1"})[0]
    at.must("t", {"insert": "c", "documents": [{"t": []}, {"t": [[1, 2]]}, {"t": [1, 1.5, None]}, {}]})
    values = at.must("t", {"distinct": "c", "key": "t"})["values"]
    assert values == [None, 1, 1.5, *(f"t{n}" for n in range(7)), [1, 2]]


def test_arrays_of_another_field_do_not_matter_unless_they_are_asked_for(at: DrivenServer) -> None:
    index(at, {"a": 1, "t": 1, "b": 1})
    plan, values = asked(at, "a", {"a": {"$gte": 2}})
    assert (plan[:2], values) == (COVERED, [2, 3])
    assert "DISTINCT_SCAN" not in asked(at, "b", {"a": 1, "t": "t1"})[0]
    assert "DISTINCT_SCAN" not in asked(at, "t", {"a": 1})[0]


def test_a_long_array_is_read_once_though_it_has_many_keys(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": -1, "many": list(range(300))}]})
    index(at, {"many": 1}, sparse=True)
    assert asked(at, "many") == ([*COVERED, "300 keys", "1 documents"], list(range(300)))


def test_missing_values_are_none_and_null_is_one(at: DrivenServer) -> None:
    index(at, {"x": 1, "a": 1})
    assert asked(at, "x")[1] == []
    at.must("t", {"insert": "c", "documents": [{"x": None}, {"x": 1}, {"x": None}]})
    assert asked(at, "x")[1] == [None, 1]


def test_a_sparse_index_has_all_values_and_a_partial_one_those_of_its_filter(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"x": 5}, {"x": 7}, {"x": 5}]})
    index(at, {"x": 1}, sparse=True)
    assert asked(at, "x") == ([*COVERED, "2 keys", "2 documents"], [5, 7])
    index(at, {"b": 1}, partialFilterExpression={"b": {"$gte": "b5"}})
    assert "DISTINCT_SCAN" not in asked(at, "b")[0]
    plan, values = asked(at, "b", {"b": {"$gte": "b8"}})
    assert (plan[:2], values) == (COVERED, ["b8", "b9"])


def test_with_a_collation_values_are_those_of_first_documents(at: DrivenServer) -> None:
    folded = {"locale": "en", "strength": 2}
    at.must("t", {"insert": "c", "documents": [{"s": "Ab"}, {"s": "aB"}, {"s": "b"}, {"s": "á"}]})
    index(at, {"s": 1}, collation=folded, sparse=True)
    plan, values = asked(at, "s", collation=folded)
    assert plan[:3] == ["PROJECTION_SIMPLE", "FETCH", "DISTINCT_SCAN"]
    assert (values, plan[3:]) == (["á", "Ab", "b"], ["3 keys", "3 documents"])
    assert asked(at, "s", {"s": "AB"}, collation=folded)[1] == ["Ab"]
    assert "DISTINCT_SCAN" not in asked(at, "s")[0]


points = st.sampled_from([None, 0, 1, 2, "a", "ab", "a\0b"])
conditions = st.one_of(
    points,
    st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$ne"]), points).map(lambda item: dict([item])),
    st.lists(points, max_size=3).map(lambda values: {"$in": values}),
    st.sampled_from([{"$exists": True}, {"$type": "string"}, {"$gt": 0, "$lt": 3}]),
)
queries = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(["a", "b", "c", "a.b"]), conditions, max_size=3), paths),
    min_size=3,
    max_size=8,
)


def shown(values: list[Any]) -> list[bytes]:
    """The values as a set: equal numbers of different types are one, of which an index shows any."""
    numbers = (bool, int, Int64, float, Decimal128)
    return sorted(b"n" + encode_value(value) if isinstance(value, numbers) else encode({"": value}) for value in values)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(flat | documents, st.lists(st.tuples(keys, options), min_size=1, max_size=3), queries)
def test_an_index_has_the_values_of_the_documents(
    made: list[dict[str, Any]], specs: list[Any], asked_for: list[tuple[dict[str, Any], str]]
) -> None:
    with filled(made, specs) as at:
        for spec, path in asked_for:
            expected, got = both(at, "distinct", {"key": path, "query": spec})
            assert shown(expected["values"]) == shown(got["values"]), (spec, path)


@given(st.sampled_from(SCALARS) | plain | inner | st.floats() | st.integers(-(1 << 63), (1 << 63) - 1), st.binary())
def test_the_end_of_a_value_in_a_key(value: Any, rest: bytes) -> None:
    before = b"\x01\x02"
    key = encode_value(value)
    behind = rest.lstrip(b"\xff") if type(value) is str else rest
    if not isinstance(value, Regex):
        assert value_end(before + key + behind, len(before)) == len(before) + len(key)


@pytest.mark.parametrize("text", ["1.1", "-1.1", "1E-6170", "1E+4000", "9007199254740993.5", "0.1", "NaN", "-Infinity"])
def test_the_end_of_a_decimal_in_a_key(text: str) -> None:
    key = encode_value(Decimal128(text))
    assert value_end(key + b"\x2b\x02\x04", 0) == len(key)
