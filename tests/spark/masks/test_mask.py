"""Masks: what is masked, at which paths, and that masking and updating commute."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.query.diff import apply_diff, compute_diff
from headrace.spark.masks.mask import Mask, MaskError, omitting, parse_mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.tokens import Token, with_masked_key
from headrace.spark.tables.apply_update import apply_update
from headrace.values import bson
from headrace.values.keystring.encoding import encode_fields
from headrace.values.token import decode_token, make_event_token
from tests.values import bson_models

KEY = "0123456789abcdef0123456789abcdef"


def mask_of(**given: Any) -> Mask:
    mask = parse_mask(json.dumps({"key": "env:KEY", **given}), lambda _: KEY)
    assert mask
    return mask


def hashed(value: Any) -> str:
    return hmac.digest(KEY.encode(), dumps(value).encode(), "sha256").hex()


def test_each_action_masks_each_value_below_its_path() -> None:
    mask = mask_of(
        hash=["email", "_id"],
        redact=["name"],
        null=["card"],
        truncate={"zip": 2, "at.geo": 3},
        omit=["internal", "a.b"],
    )
    document = {
        "_id": 1, "email": ["x@y", None, {"work": "z"}], "name": {"first": "A", "n": 5}, "card": [[1], {"no": 2}],
        "zip": "12345", "at": {"geo": 5, "city": "Oslo"}, "internal": {"x": 1}, "a": [{"b": 1, "c": 2}], "rest": None,
    }  # fmt: skip
    assert mask.document(document) == {
        "_id": hashed(1), "email": [hashed("x@y"), None, {"work": hashed("z")}], "name": {"first": "***", "n": "***"},
        "card": [[None], {"no": None}], "zip": "12", "at": {"geo": None, "city": "Oslo"}, "a": [{"c": 2}], "rest": None,
    }  # fmt: skip


def test_values_that_are_one_key_have_one_hash() -> None:
    mask = mask_of(hash=["_id"])
    keys = [mask.document({"_id": value})["_id"] for value in (1, 1.0, Int64(1), Decimal128("1.00"), 2)]
    assert len(set(keys[:4])) == 1 and keys[4] != keys[0]
    assert mask.document({"_id": ObjectId("a" * 24)}) == {"_id": hashed(ObjectId("a" * 24))}


PLAIN = ["4111", 5, Int64(5), 1.5, Decimal128("1.5"), True, b"4111", ObjectId("a" * 24)]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_plain_value_in_place_of_an_object_is_masked(value: Any) -> None:
    mask = mask_of(hash=["cards.number"], redact=["a.b", "a.c"], null=["n.b"], omit=["o.b", "n.c"], truncate={"t.b": 2})
    digest = mask_of(hash=["x"]).document({"x": value})["x"]
    document = dict.fromkeys(("cards", "a", "n", "o", "t", "other"), value)
    expected = {"cards": digest, "a": "***", "n": None, "o": None, "t": "***", "other": value}
    assert mask.document(document) == expected
    # As an item, beside items that are as expected, in arrays of arrays, and in updates of all of these.
    number = {"number": "1"}
    assert mask.document({"cards": [number, value, [value], None]}) == {
        "cards": [{"number": hashed("1")}, digest, [digest], None]
    }
    updated = {"cards": value, "cards.0": value, "cards.1.0": value, "o": [value], "a.d": value}
    assert mask.update({"updatedFields": updated})["updatedFields"] == {
        "cards": digest, "cards.0": digest, "cards.1.0": digest, "o": [None], "a.d": value,
    }  # fmt: skip
    diff = {
        "i": {"cards": value},
        "u": {"a": value},
        "sn": {"a": True, "u0": value},
        "so": {"a": True, "s1": {"u": {"b": 1}}},
    }
    assert mask.update({"$v": 2, "diff": diff})["diff"] == {
        "i": {"cards": digest}, "u": {"a": "***"}, "sn": {"a": True, "u0": None}, "so": {"a": True, "s1": {}},
    }  # fmt: skip


def test_a_document_whose_key_is_no_object_has_a_hashed_key() -> None:
    mask = mask_of(hash=["_id.customer"])
    assert mask.document({"_id": 5}) == {"_id": hashed(5)}


def test_a_number_in_a_path_is_an_index_or_a_name() -> None:
    mask = mask_of(redact=["items.0.card"])
    masked = {"items": [{"card": "***"}, {"card": "2"}]}
    assert mask.document({"items": [{"card": "1"}, {"card": "2"}]}) == masked
    assert mask.document({"items": {"0": {"card": "1"}, "1": {"card": "2"}}}) == {
        "items": {"0": {"card": "***"}, "1": {"card": "2"}}
    }
    assert mask.document({"items": ["1", "2"]}) == {"items": ["***", "***"]}
    assert omitting(["items.0"]).document({"items": ["1", "2"]}) == {"items": [None, None]}  # type: ignore[union-attr]


def test_updates_are_masked_by_their_paths() -> None:
    mask = mask_of(redact=["items.card", "a.b"], omit=["x"])
    description = {
        "updatedFields": {
            "items.0.card": "1", "items.1": {"card": "2", "n": 3}, "a.b.c": [4], "a": {"b": 5}, "x.y": 6, "n": 7,
        },
        "removedFields": ["x.z", "items.0.n"],
        "truncatedArrays": [{"field": "x.list", "newSize": 1}, {"field": "items", "newSize": 2}],
        "disambiguatedPaths": {"x.y": ["x", "y"], "items.0.card": ["items", 0, "card"]},
    }  # fmt: skip
    assert mask.update(description) == {
        "updatedFields": {
            "items.0.card": "***", "items.1": {"card": "***", "n": 3}, "a.b.c": ["***"], "a": {"b": "***"}, "n": 7,
        },
        "removedFields": ["items.0.n"],
        "truncatedArrays": [{"field": "items", "newSize": 2}],
        "disambiguatedPaths": {"items.0.card": ["items", 0, "card"]},
    }  # fmt: skip


def test_an_event_is_masked_in_all_its_documents() -> None:
    mask = mask_of(redact=["name"], hash=["_id"])
    document = {"_id": 1, "name": "A"}
    event = {
        "fullDocument": document,
        "fullDocumentBeforeChange": document,
        "documentKey": document,
        "operationType": "x",
    }
    masked = mask.event(event)
    assert masked["documentKey"] == masked["fullDocument"] == masked["fullDocumentBeforeChange"]
    assert "A" not in json.dumps(masked) and masked["operationType"] == "x"


NAMES = st.sampled_from(["a", "b", "c", "0", "a.b"])
VALUES = st.recursive(
    bson_models.SCALARS | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
# Large enough that an update is described as a diff.
PADDING = {"large": "x" * 3000}
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4).map(lambda document: loads(dumps(PADDING | document)))
MASKS = st.sampled_from(
    [
        mask_of(redact=["a.b"], omit=["c"]), mask_of(hash=["a"], truncate={"b.c": 1}), mask_of(omit=["a.b", "b.a.c"]),
        mask_of(null=["c.a"], redact=["b"]),
    ]
)  # fmt: skip


def token_of(**key: Any) -> str:
    uuid = bytes(range(16))
    return make_event_token(5 << 32, 1, uuid, "update", bson.encode(key), None)[0]


@pytest.mark.parametrize(
    ("given", "key", "masked"),
    [
        ({"hash": ["_id"]}, {"_id": "Ada"}, True),
        ({"hash": ["_id"]}, {"_id": 1.5}, True),
        ({"hash": ["_id.name"]}, {"_id": {"name": "Ada", "n": 1}}, True),
        ({"hash": ["_id.name"]}, {"_id": {"n": 1}}, False),
        ({"hash": ["_id.name"]}, {"_id": "Ada"}, True),
        ({"redact": ["name"]}, {"_id": 1, "name": "Ada"}, True),
        ({"redact": ["at.name"]}, {"at.name": "Ada", "_id": 1}, True),
        ({"omit": ["name"]}, {"_id": "name"}, False),
        ({"null": ["name"]}, {"surname": "Ada", "_id": 1}, False),
    ],
)
def test_a_token_has_the_masked_key(given: dict[str, Any], key: dict[str, Any], masked: bool) -> None:
    mask, token = mask_of(**given), token_of(**key)
    key_bytes = encode_fields(bson.encode(mask.document(key)))[:-1]
    expected = with_masked_key(token, key_bytes) if masked else token
    assert mask.token(token) == mask.token(expected) == expected
    assert mask.event({"_id": {"_data": token, "_typeBits": b"5"}, "documentKey": key})["_id"] == (
        {"_data": expected} if masked else {"_data": token, "_typeBits": b"5"}
    )


@given(bson_models.SCALARS)
def test_any_key_is_hashed_in_tokens(value: Any) -> None:
    assume(value is not None)
    masked = mask_of(hash=["_id"]).token(token_of(_id=value))
    assert Token(masked).is_masked and decode_token({"_data": masked})


def test_fields_that_a_sink_leaves_out_stay_in_tokens() -> None:
    mask = omitting(["name"])
    assert mask and mask.token(token_of(_id=1, name="Ada")) == token_of(_id=1, name="Ada")


@given(DOCUMENTS, DOCUMENTS, MASKS)
def test_the_masked_update_of_a_masked_document_is_the_masked_document(
    before: dict[str, Any], after: dict[str, Any], mask: Mask
) -> None:
    diff = compute_diff(before, after)
    assume(diff is not None)
    masked = mask.update({"$v": 2, "diff": diff})
    assert dumps(apply_update(mask.document(before), masked)) == dumps(mask.document(apply_diff(before, diff or {})))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"redact": ["_id"]}, "hashed only"),
        ({"omit": ["_id.a"]}, "hashed only"),
        ({"redact": ["a"], "null": ["a"]}, "twice"),
        ({"redact": "a"}, "an array"),
        ({"truncate": {"a": "1"}}, "number of characters"),
        ({"blur": ["a"]}, "there is no 'blur'"),
        ({"hash": ["a"], "key": "0123456789abcdef"}, "env:NAME"),
        ({"redact": [""]}, "no path"),
        ({"truncate": {"a.*.b": 1}}, "no wildcard"),
        ({"omit": ["a.$"]}, "no wildcard"),
        ({"null": ["a[]"]}, "no wildcard"),
        ({"null": ["a\0"]}, "NUL"),
        ({"redact": ["a.0.b", "a.c"]}, "below a one path has a number"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MaskError, match=message):
        mask_of(**given)


def test_a_name_with_the_character_of_a_wildcard_is_in_backticks() -> None:
    mask = mask_of(redact=["`a[0]`", "`*`", "a.$id", "$a.$b"])
    document = {"a[0]": 1, "*": 2, "a": {"$id": 3}, "$a": {"$b": 4}, "b": 5}
    assert mask.document(document) == {"a[0]": "***", "*": "***", "a": {"$id": "***"}, "$a": {"$b": "***"}, "b": 5}


def test_a_key_is_long_and_in_no_text() -> None:
    with pytest.raises(MaskError, match="shorter than 16") as caught:
        parse_mask('{"hash": ["a"], "key": "env:KEY"}', lambda _: "short secret")
    assert "short secret" not in str(caught.value)
    assert KEY not in repr(mask_of(hash=["a"]))
