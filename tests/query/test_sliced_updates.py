"""Updates of raw documents give what `Update.apply` gives of the decoded ones: random updates and documents."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from headrace import limits
from headrace.errors import CommandError
from headrace.query.update import Diff, UpdateContext, parse_update
from headrace.query.update.sliced_update import Result, SlicedUpdate, sliced_update
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


def slices_of(update: dict[str, Any]) -> SlicedUpdate:
    sliced = sliced_update(parse_update(update), TIMES)
    assert sliced is not None
    return sliced


@pytest.mark.parametrize("decoded_count", [0, 1024])
def test_a_field_that_a_document_has_twice_is_left_to_the_evaluator(
    decoded_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DECODED_COUNT", decoded_count)
    body = encode({"_id": 1, "a": 1, "b": {"a": 3}})[4:-1] + encode({"a": 2})[4:-1]
    twice = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
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
