"""Updates of raw documents, of many and of one, give what `Update.apply` gives of the decoded ones."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64, ObjectId, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from headrace import limits
from headrace.errors import CommandError
from headrace.query.update.raw_updates import Result, SlicedUpdate, sliced_update
from headrace.query.update.update import Diff, UpdateContext
from headrace.query.update.update_parser import parse_update
from headrace.values.bson import decode, encode
from tests.examples import examples
from tests.query.test_update_properties import documents, parsed, updates

TIMES = UpdateContext(7, Timestamp(9, 1))
AROUND = [{"x": 1, "y": "a\0" * 40}, {"z": {"a": 5, "b": [7]}}, {"": None, "aa": 2.5}]


def surrounded(fields: dict[str, Any], number: int) -> dict[str, Any]:
    """The document with other fields before, between and after its own."""
    made: dict[str, Any] = {"_id": number}
    for place, (name, value) in enumerate(item for item in fields.items() if item[0] != "_id"):
        made |= AROUND[(number + place) % 3]
        made[name] = value
    return made | AROUND[number % 2]


def evaluated(operation: Any, raw: bytes) -> Result:
    """The result of the whole document's way. Raises `CommandError`."""
    applied = operation.apply(decode(raw), TIMES)
    if applied.change is None:
        return None
    assert isinstance(applied.change, Diff)
    return encode(applied.document), encode(applied.change.entry)


@pytest.mark.parametrize("by_pattern", [False, True])
def test_an_update_by_slices_is_the_evaluators(by_pattern: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_pattern:
        monkeypatch.setattr(limits, "DECODED_COUNT", 0)

    @given(st.lists(documents, min_size=1, max_size=4), updates)
    @examples(300)
    def compare(some: list[dict[str, Any]], update: dict[str, Any]) -> None:
        operation = parsed(update)
        sliced = None if operation is None else sliced_update(operation, TIMES)
        if sliced is None:
            return
        raws = [encode(surrounded(fields, number)) for number, fields in enumerate(some)]
        for _ in range(2):  # computed, and known
            try:
                expected: list[Result] | None = [evaluated(operation, raw) for raw in raws]
            except CommandError:
                expected = None
            assert sliced.apply(raws) == expected

    compare()


@given(st.lists(documents, min_size=1, max_size=4), updates)
@examples(600)
def test_an_update_of_one_raw_document_is_the_evaluators(some: list[dict[str, Any]], update: dict[str, Any]) -> None:
    operation = parsed(update)
    if operation is None or operation.needs_position:
        return
    for number, fields in enumerate(some):
        raw = encode(surrounded(fields, number))
        made = operation.apply_raw(raw, TIMES)
        if made is not None:
            assert made == (evaluated(operation, raw) or (raw, b""))


SPLICED = {"_id": 1, "i": 1, "l": Int64(2), "t": "on", "d": {"x": [1]}, "a": [1, {"b": None}], "f": 0.0, "n": None}


@pytest.mark.parametrize(
    "update",
    [
        {"$inc": {"i": 1}}, {"$inc": {"l": 1, "i": 2**31 - 1}}, {"$set": {"t": "off", "i": 1}}, {"$set": {"t": "on"}},
        {"$set": {"d": {"x": [1]}, "a": [1, {"b": None}]}}, {"$set": {"f": -0.0, "n": 1}}, {"$set": {"i": Int64(1)}},
        {"$max": {"i": 5, "t": "a"}}, {"$mul": {"f": 2.0}}, {"$set": {"t": ""}, "$bit": {"i": {"or": 6}}},
        {"$currentDate": {"n": True}}, {"$pull": {"a": 1}}, {"$inc": {"i": 1}, "$min": {"l": 1}},
        {"$set": {"i": 2**40}},
    ],
)  # fmt: skip
def test_fields_are_replaced_in_the_raw_document(update: dict[str, Any]) -> None:
    operation, raw = parse_update(update), encode(SPLICED)
    assert operation.apply_raw(raw, TIMES) == (evaluated(operation, raw) or (raw, b""))


@pytest.mark.parametrize(
    "update",
    [
        {"$inc": {"new": 1}}, {"$unset": {"i": 1}}, {"$push": {"a": 1}}, {"$inc": {"t": 1}}, {"$set": {"d.x": 1}},
        {"$setOnInsert": {"i": 2}}, {"$set": dict.fromkeys("ilt", 1)}, {"$rename": {"i": "j"}},
        {"$set": {"$i": 1}},
    ],
)  # fmt: skip
def test_an_update_of_one_document_that_is_left_to_the_evaluator(update: dict[str, Any]) -> None:
    assert parse_update(update).apply_raw(encode(SPLICED | {"$i": 2}), TIMES) is None


@given(documents, documents)
@examples(300)
def test_a_replacement_of_a_raw_document_is_the_evaluators(old: dict[str, Any], new: dict[str, Any]) -> None:
    update = parsed(new)
    if update is None or update.kind != "replacement":
        return
    raw = encode({"_id": 1, **old})
    made = update.apply_raw(raw, TIMES)
    assert (made is None) == ("_id" in new or Timestamp(0, 0) in new.values())
    if made is not None:
        after = encode(update.apply(decode(raw), TIMES).document)
        assert made == (after, after)


@pytest.mark.parametrize("identity", [1, Int64(1), "x", ObjectId(bytes(12)), None, {"a": {"b": 1}}, 1.5])
def test_a_replacement_keeps_the_raw_id(identity: Any) -> None:
    raw, update = encode({"_id": identity, "a": 1}), parse_update({"b": "x"})
    expected = encode({"_id": identity, "b": "x"})
    assert update.apply_raw(raw, TIMES) == (expected, expected)


@pytest.mark.parametrize("update", [{"_id": 1, "b": 2}, {"b": Timestamp(0, 0)}, [{"$set": {"a": 2}}]])
def test_a_replacement_that_is_left_to_the_evaluator(update: Any) -> None:
    assert parse_update(update).apply_raw(encode({"_id": 1, "a": 1}), TIMES) is None


def test_one_document_with_a_field_twice_is_left_to_the_evaluator() -> None:
    update = parse_update({"$inc": {"a": 1}})
    assert update.apply_raw(document_of({"_id": 1, "a": 1, "b": {"a": 3}}, {"a": 2}), TIMES) is None
    once = document_of({"_id": 1, "a": 1, "b": {"a": 3}}, {"c": "a\0"})
    assert update.apply_raw(once, TIMES) == evaluated(update, once)


@pytest.mark.parametrize("value", [None, {"b": None}, [None]])
def test_a_value_that_the_codec_reads_alike_is_not_changed(value: Any) -> None:
    """The codec reads undefined as null."""
    raw = encode({"_id": 1, "a": value})
    at = raw.rindex(b"\x0a")
    undefined = raw[:at] + b"\x06" + raw[at + 1 :]
    update = parse_update({"$set": {"a": value}})
    assert update.apply_raw(undefined, TIMES) == (undefined, b"")
    assert evaluated(update, undefined) is None


def document_of(*parts: dict[str, Any]) -> bytes:
    """A document with the fields of all parts, also those with the same name."""
    body = b"".join(encode(part)[4:-1] for part in parts)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def slices_of(update: dict[str, Any]) -> SlicedUpdate:
    sliced = sliced_update(parse_update(update), TIMES)
    assert sliced is not None
    return sliced


@pytest.mark.parametrize("decoded_count", [0, 1024])
def test_a_field_that_a_document_has_twice_is_left_to_the_evaluator(
    decoded_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DECODED_COUNT", decoded_count)
    twice = document_of({"_id": 1, "a": 1, "b": {"a": 3}}, {"a": 2})
    assert decode(twice)["a"] == 2
    sliced = slices_of({"$inc": {"a": 1}})
    assert sliced.apply([twice]) is None


def test_what_an_update_does_not_touch_is_copied_as_it_is() -> None:
    """The codec reads undefined as null, and a symbol as a string."""
    body = b"\x10_id\0\1\0\0\0\x06u\0\x10a\0\1\0\0\0\x0es\0\2\0\0\0x\0"
    raw = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    (result,) = slices_of({"$inc": {"a": 1}}).apply([raw]) or [None]
    assert result == (raw.replace(b"a\0\1", b"a\0\2"), encode({"$v": 2, "diff": {"u": {"a": 2}}}))


@pytest.mark.parametrize(
    "update",
    [{"$set": {"_id": 1}}, {"$set": {"a.$": 1}}, {"$set": dict.fromkeys("abcde", 1)}, {"a": 1}, {"$set": {}}],
)
def test_updates_of_much_are_left_to_the_evaluator(update: dict[str, Any]) -> None:
    assert sliced_update(parse_update(update), TIMES) is None
