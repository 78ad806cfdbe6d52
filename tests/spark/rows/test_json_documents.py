"""Updates applied to documents as parsed JSON give the text that decoding them would give."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Timestamp

from headrace.query.diff import apply_diff
from headrace.spark.rows.extjson import JsonDocument, dumps, with_fields

DOCUMENT: dict[str, Any] = {
    "_id": 1, "text": 'quoted "ü" \\ \x01 \u2028', "long": Int64(1 << 40), "double": -0.0,
    "decimal": Decimal128("1.00"), "nested": {"$oid": "zz", "list": [1, {"x": None}]}, "looks": {"$numberInt": "5"},
    "time": Timestamp(1, 2), "max": MaxKey(), "binary": Binary(b"x", 4), "true": True,
}  # fmt: skip
DIFFS: list[dict[str, Any]] = [
    {"u": {"text": "new", "long": 5}},
    {"d": {"text": False, "missing": False}, "i": {"added": {"$oid": "6" * 24}, "nested": ObjectId("6" * 24)}},
    {"u": {"double": {"deep": [Int64(1), None]}}, "i": {"_x": Decimal128("NaN"), "looks": [{"$date": 1}]}},
    {"d": {"true": False}},
    {"i": {"": "a field without a name", "a.b": 1}},
]


@pytest.mark.parametrize("diff", DIFFS, ids=str)
def test_the_text_is_that_of_the_decoded_document(diff: dict[str, Any]) -> None:
    changed = with_fields(dumps(DOCUMENT), dumps({"$v": 2, "diff": diff}))
    assert changed is not None
    assert changed.text() == dumps(apply_diff(DOCUMENT, diff))


def test_updates_follow_one_another() -> None:
    expected = DOCUMENT
    changed = with_fields(dumps(DOCUMENT), dumps({"$v": 2, "diff": DIFFS[0]}))
    for diff in DIFFS:
        assert changed is not None
        changed = with_fields(changed, dumps({"$v": 2, "diff": diff}))
        expected = apply_diff(expected, diff)
    assert changed is not None and changed.text() == dumps(expected)


def test_a_document_is_left_as_it_was_by_an_update_that_is_left_to_the_decoder() -> None:
    document = JsonDocument(a=1)
    assert with_fields(document, dumps({"$v": 2, "diff": {"u": {"a": 2}, "i": {"$b": 1}}})) is None
    assert document == {"a": 1}


@pytest.mark.parametrize(
    "description",
    [
        {"$v": 2, "diff": {"u": {"a": 1}, "snested": {"u": {"list": []}}}},
        {"$v": 2, "diff": {"u": {"$oid": "a field's name"}}},
        {"$v": 2, "diff": {"i": {"$name": 1}}},
        {"$v": 1, "diff": {"u": {"a": 1}}},
        {"updatedFields": {"a": 1}, "removedFields": []},
        {"$v": 2, "diff": {"a": True, "u0": 1}},
    ],
    ids=str,
)
def test_other_updates_are_left_to_the_decoder(description: dict[str, Any]) -> None:
    assert with_fields(dumps(DOCUMENT), dumps(description)) is None


def test_a_document_that_looks_like_a_value_is_left_to_the_decoder() -> None:
    update = dumps({"$v": 2, "diff": {"u": {"a": 1}}})
    assert with_fields(dumps({"$oid": "zz"}), update) is None
