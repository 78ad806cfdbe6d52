"""Raw BSON is walked as the codec would decode it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import InvalidBSON
from bson_models import NAMES, VALUES, raw
from hypothesis import given
from hypothesis import strategies as st

from headrace.values import bson, position
from tests.examples import examples

repeatable = examples(150)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


@repeatable
@given(DOCUMENTS)
def test_every_element_is_at_its_offset(document: dict[str, Any]) -> None:
    data = bson.encode_in_order(document)
    walked = [(name.decode(), kind, data[start:end]) for kind, name, start, end in bson.iter_elements(data)]
    assert walked == [(name, *raw(value)) for name, value in document.items()]


@repeatable
@given(DOCUMENTS)
def test_a_field_is_looked_up_by_name(document: dict[str, Any]) -> None:
    data = bson.encode({"x": document})
    inner = bson.find_element(data, b"x")
    assert inner is not None
    for name, value in document.items():
        element = bson.find_element(data, name.encode(), inner[1])
        assert element is not None
        assert (element[0], data[element[1] : element[2]]) == raw(value)
    assert bson.find_element(data, b"no such name") is None


def test_the_first_element_of_an_empty_document_is_none() -> None:
    assert bson.first_element(bson.encode({})) is None
    assert bson.first_element(bson.encode({"ab": 1})) == (16, b"ab", 8, 12)


def test_a_name_is_not_found_as_the_beginning_of_another() -> None:
    assert bson.find_element(bson.encode({"ab": 1, "b": 2}), b"a") is None


@pytest.mark.parametrize("seed", range(20))
def test_a_field_is_looked_up_as_a_walk_finds_it(seed: int) -> None:
    """Also where its name is the end of another, or is in a value, or comes behind the document."""
    rng = random.Random(seed)
    values: list[Any] = [
        1,
        1.5,
        "a",
        "b" * 300,
        "x\0a\0y",
        b"a\0b\0",
        {"a": 1},
        {"a": "a\0" * 90},
        [],
        None,
        True,
        "b\0" * 80,
    ]
    names = ["a", "b", "ab", "ba", "aa", *(f"{letter}{number}" for number in range(30) for letter in "ab")]
    for _ in range(50):
        document = {name: rng.choice(values) for name in rng.sample(names, rng.randint(0, 30))}
        data = bson.encode_in_order({"before": 1, "x": document, "a": 2, "b": "a\0"})
        inner = bson.find_element(data, b"x")
        assert inner is not None
        for start in (0, inner[1]):
            walked: dict[bytes, tuple[int, int, int]] = {}
            for kind, name, *place in bson.iter_elements(data, start):
                walked.setdefault(name, (kind, *place))
            for name in map(str.encode, names):
                assert bson.find_element(data, name, start) == walked.get(name)


@repeatable
@given(DOCUMENTS, st.data())
def test_a_document_cut_short_is_walked_or_refused_but_never_without_end(
    document: dict[str, Any], data: st.DataObject
) -> None:
    document_bytes = bson.encode(document)
    cut = document_bytes[: data.draw(st.integers(0, len(document_bytes) - 1))]
    with pytest.raises(InvalidBSON):
        list(bson.iter_elements(cut))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidBSON, match="unknown BSON type 64"):
        list(bson.iter_elements(b"\x08\0\0\0\x40a\0\0"))


@given(st.integers(0, 2**64 - 1))
def test_a_position_survives_all_its_forms(at: int) -> None:
    assert position.from_timestamp(position.to_timestamp(at)) == at
    assert position.from_key(position.to_key(at)) == at
    assert position.from_bson_value(position.to_bson_value(at)) == at
    assert position.to_bson_value(at) == raw(position.to_timestamp(at))[1]
    assert position.position(position.seconds(at), position.increment(at)) == at
