"""A document with an update's description applied is the document that the server had, order of fields included."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

from headrace.query.diff import compute_diff
from headrace.spark.tables.apply_update import CannotApply, apply_update
from headrace.values import bson

pytestmark = pytest.mark.long


def description(**fields: Any) -> dict[str, Any]:
    return {"updatedFields": {}, "removedFields": [], "truncatedArrays": []} | fields


def test_fields_are_set_where_they_are_and_new_ones_come_last() -> None:
    before = {"_id": 1, "a": 1, "b": {"c": 2}}
    after = apply_update(before, description(updatedFields={"a": "x", "z": 1, "b.d": [1]}))
    assert list(after.items()) == [("_id", 1), ("a", "x"), ("b", {"c": 2, "d": [1]}), ("z", 1)]
    assert before == {"_id": 1, "a": 1, "b": {"c": 2}}


def test_a_number_in_a_path_is_an_index_or_a_name_as_the_document_has_it() -> None:
    before = {"_id": 1, "list": [{"n": 1}, {"n": 2}], "map": {"1": {"n": 5}}}
    after = apply_update(before, description(updatedFields={"list.1.n": 7, "map.1.n": 8, "list.4": "end"}))
    assert after == {"_id": 1, "list": [{"n": 1}, {"n": 7}, None, None, "end"], "map": {"1": {"n": 8}}}


def test_an_array_is_cut_before_its_elements_are_set() -> None:
    cut = description(updatedFields={"a.0": 9}, truncatedArrays=[{"field": "a", "newSize": Int64(2)}])
    assert apply_update({"a": [1, 2, 3]}, cut) == {"a": [9, 2]}


def test_a_field_is_removed_at_any_depth() -> None:
    assert apply_update({"a": {"b": [{"c": 1, "d": 2}]}}, description(removedFields=["a.b.0.c"])) == {
        "a": {"b": [{"d": 2}]}
    }


def test_disambiguated_paths_say_what_dots_and_numbers_are() -> None:
    before = {"a.b": {"0": 1}, "a": {"b": [5]}}
    update = description(
        updatedFields={"a.b.0": 2, "a.c.d": 3}, disambiguatedPaths={"a.b.0": ["a.b", "0"], "a.c.d": ["a", "c.d"]}
    )
    assert apply_update(before, update) == {"a.b": {"0": 2}, "a": {"b": [5], "c.d": 3}}


def test_a_path_that_can_be_read_in_two_ways_is_refused_not_guessed() -> None:
    with pytest.raises(CannotApply, match="two ways"):
        apply_update({"a.b": 1, "a": {"b": 2}}, description(updatedFields={"a.b": 3}))
    with pytest.raises(CannotApply, match="two ways"):
        apply_update({"x": [{"y.z": 1}]}, description(removedFields=["x.0.y.z"]))


@pytest.mark.parametrize(
    "update",
    [
        description(updatedFields={"b.c": 1}),
        description(updatedFields={"a.b.c": 1}),
        description(removedFields=["b"]),
        description(removedFields=["a.0"]),
        description(truncatedArrays=[{"field": "a", "newSize": 3}]),
        description(truncatedArrays=[{"field": "n", "newSize": 0}]),
        {"$v": 1, "$set": {"a": 1}},
    ],
)
def test_an_update_that_does_not_fit_the_document_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(CannotApply):
        apply_update({"_id": 1, "a": [1, 2], "n": 1}, update)


NAMES = st.sampled_from(["a", "b", "c", "0", "1"])
VALUES = st.recursive(
    st.one_of(st.integers(0, 3), st.text("xy", max_size=12), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


@given(DOCUMENTS, DOCUMENTS)
def test_the_raw_difference_gives_the_same_bytes(before: dict[str, Any], after: dict[str, Any]) -> None:
    diff = compute_diff(before, after)
    if diff is not None:
        assert bson.encode(apply_update(before, {"$v": 2, "diff": diff})) == bson.encode(after)


def described(diff: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The description of a difference, by the rule of the reference: u, i, d, then what is inside."""
    changes: dict[str, Any] = description()
    for name, value in {**diff.get("u", {}), **diff.get("i", {})}.items():
        changes["updatedFields"][prefix + name] = value
    changes["removedFields"] += [prefix + name for name in diff.get("d", {})]
    if "l" in diff:
        changes["truncatedArrays"].append({"field": prefix[:-1], "newSize": diff["l"]})
    for name, value in diff.items():
        if len(name) > 1 and name[0] == "u":
            changes["updatedFields"][prefix + name[1:]] = value
        elif len(name) > 1 and name[0] == "s":
            inner = described(value, f"{prefix}{name[1:]}.")
            changes["updatedFields"] |= inner["updatedFields"]
            changes["removedFields"] += inner["removedFields"]
            changes["truncatedArrays"] += inner["truncatedArrays"]
    return changes


@given(DOCUMENTS, DOCUMENTS)
def test_the_description_gives_the_same_values(before: dict[str, Any], after: dict[str, Any]) -> None:
    diff = compute_diff(before, after)
    if diff is not None:
        # Equal as Python compares: without the order of fields, which a description cannot say.
        assert apply_update(before, described(diff)) == after
