"""Diffs: what the oplog keeps of two documents, and that applying it gives the second."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128, Int64
from hypothesis import given
from hypothesis import strategies as st

from headrace.query.diff import apply_diff, compute_diff, identical, value_bytes
from headrace.values.bson import encode
from tests.examples import examples

LONG = "x" * 100

scalars = st.sampled_from([0, 1, 1.0, -0.0, Int64(1), Decimal128("1.0"), True, None, "a", "é", "long text " * 3])
names = st.sampled_from(["a", "b", "c", "0", "1", "é", "a.b"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5), max_leaves=12
)
documents = st.dictionaries(names, values, max_size=6)
changes = st.lists(st.tuples(names, values), max_size=3)


@given(documents, documents)
@examples(300)
def test_a_diff_applied_gives_the_post_image(pre: dict[str, Any], post: dict[str, Any]) -> None:
    diff = compute_diff({**pre, "pad": LONG}, {**post, "pad": LONG})
    if diff is not None:
        assert identical(apply_diff({**pre, "pad": LONG}, diff), {**post, "pad": LONG})


@given(documents, changes)
@examples(300)
def test_a_small_change_in_a_large_document_is_a_diff(pre: dict[str, Any], edits: list[tuple[str, Any]]) -> None:
    before: dict[str, Any] = {"_id": 1, "pad": LONG * 10, "deep": {"pad": LONG * 10, "in": [LONG * 5, pre, LONG]}}
    after = {**before, "deep": {**before["deep"], "in": [LONG * 5, {**pre, **dict(edits)}, LONG, 5]}}
    diff = compute_diff(before, after)
    assert diff is not None
    assert list(diff) == ["sdeep"]
    assert identical(apply_diff(before, diff), after)


@given(documents, documents)
@examples(200)
def test_what_a_diff_is_applied_to_is_left_alone(pre: dict[str, Any], post: dict[str, Any]) -> None:
    before = encode(pre)
    diff = compute_diff(pre, {**post, "pad": LONG})
    if diff is not None:
        apply_diff(pre, diff)
    assert encode(pre) == before


@pytest.mark.parametrize(
    ("pre", "post", "diff"),
    [
        ({"a": 1, "p": LONG}, {"a": 1, "p": LONG}, {}),
        ({"a": 1, "p": LONG}, {"a": 2, "p": LONG}, {"u": {"a": 2}}),
        ({"a": 1, "p": LONG}, {"a": 1.0, "p": LONG}, {"u": {"a": 1.0}}),
        ({"b": 1, "a": 1, "p": LONG}, {"p": LONG}, {"d": {"a": False, "b": False}}),
        ({"p": LONG, "b": 1, "a": 1}, {"p": LONG}, {"d": {"b": False, "a": False}}),
        ({"a": 1, "p": LONG}, {"p": LONG, "a": 1}, {"i": {"a": 1}}),
        ({"p": LONG, "a": [1, LONG, 3]}, {"p": LONG, "a": [1, LONG]}, {"sa": {"a": True, "l": 2}}),
        ({"p": LONG, "a": [1, LONG]}, {"p": LONG, "a": [1, LONG, 3]}, {"sa": {"a": True, "u2": 3}}),
        ({"a": {"b": 1, "p": LONG}}, {"a": {"b": 2, "p": LONG}}, {"sa": {"u": {"b": 2}}}),
        ({"a": {"b": 1}, "p": LONG}, {"a": {"b": 2}, "p": LONG}, {"u": {"a": {"b": 2}}}),
        ({"a": 1}, {"a": 2}, None),
        (
            {"a": [{"x": number} for number in range(6)]},
            {"a": [{"x": 0}, {"x": 77}, {"x": 2}, {"x": 3}]},
            {"sa": {"a": True, "l": 4, "u1": {"x": 77}}},
        ),
    ],
)
def test_diffs_of_documents(pre: dict[str, Any], post: dict[str, Any], diff: dict[str, Any] | None) -> None:
    assert compute_diff(pre, post) == diff


def test_a_diff_is_used_only_if_it_is_shorter_than_the_document_by_what_an_entry_adds() -> None:
    # {$v: 2, diff: …} adds 15 bytes; {u: {a: 2}} has 5 + 8 + 7; {a: 2, p: …} has 5 + 7 + 8 + letters.
    assert compute_diff({"a": 1, "p": "x" * 15}, {"a": 2, "p": "x" * 15}) is None
    assert compute_diff({"a": 1, "p": "x" * 16}, {"a": 2, "p": "x" * 16}) == {"u": {"a": 2}}


def test_applying_a_diff_pads_arrays_with_null() -> None:
    assert apply_diff({"a": [1]}, {"sa": {"a": True, "u3": 5}}) == {"a": [1, None, None, 5]}


@given(values)
@examples(200)
def test_value_bytes_is_the_encoded_size(value: Any) -> None:
    assert value_bytes(value) == len(encode({"a": value})) - 8


def test_identical_distinguishes_types_and_signs() -> None:
    assert not identical(1, Int64(1))
    assert not identical(0.0, -0.0)
    assert not identical(True, 1)
    assert not identical({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert identical(float("nan"), float("nan"))
