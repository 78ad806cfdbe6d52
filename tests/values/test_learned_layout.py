"""A learned layout accepts exactly the documents that decode, and decodes few that repeat it."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from bson.errors import BSONError
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CommandError
from headrace.values.bson import LearnedLayout, check_all, codec, encode
from tests.values.bson_models import NAMES, VALUES


def order(number: int, **fields: Any) -> bytes:
    return encode({"_id": ObjectId(), "n": number, "status": "new", "paid": number % 2 == 0, "tags": ["a"], **fields})


def raises(check: Any, document: bytes) -> type[Exception] | None:
    try:
        check(document)
    except (BSONError, UnicodeDecodeError, CommandError) as error:
        return type(error)
    return None


@pytest.fixture(name="decoded")
def _decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    decoded: list[bytes] = []

    def noted(documents: tuple[bytes]) -> None:
        decoded.extend(documents)
        check_all(documents)

    monkeypatch.setattr(codec, "check_all", noted)
    return decoded


def test_documents_of_one_layout_are_decoded_twice(decoded: list[bytes]) -> None:
    layout = LearnedLayout()
    for number in range(100):
        layout.check(order(number))
    assert len(decoded) == 2


def test_a_document_of_another_layout_is_decoded_and_the_layout_stays(decoded: list[bytes]) -> None:
    layout = LearnedLayout()
    for number in range(3):
        layout.check(order(number))
    for other in (order(1, more=2), order(1, status="né"), order(1, tags=[7])):
        layout.check(other)
        layout.check(order(2))
    assert len(decoded) == 5


def test_a_client_that_changes_its_layout_is_followed(decoded: list[bytes]) -> None:
    layout = LearnedLayout()
    for count in range(1, 5):
        for number in range(100):
            layout.check(order(number, **{"x" * count: 1}))
    assert len(decoded) == 2 + 3 + 5 + 9


def test_documents_without_a_layout_are_learned_rarely(decoded: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[bytes] = []
    monkeypatch.setattr(codec, "layout_of", learned.append)
    layout = LearnedLayout()
    for _ in range(5000):
        layout.check(encode({"_id": 1, "data": b"x"}))
    assert len(decoded) == 5000
    assert len(learned) <= 14


def test_each_damaged_byte_is_found_that_a_decode_finds() -> None:
    sound, layout = order(2, note="x" * 80), LearnedLayout()
    for _ in range(3):
        layout.check(sound)
    for place in range(len(sound)):
        for byte in range(256):
            damaged = sound[:place] + bytes((byte,)) + sound[place + 1 :]
            expected = raises(lambda document: check_all((document,)), damaged)
            assert raises(layout.check, damaged) == expected, (place, byte)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3), st.data())
def test_documents_are_accepted_that_decode(models: list[dict[str, Any]], data: st.DataObject) -> None:
    layout = LearnedLayout()
    for model in data.draw(st.lists(st.sampled_from(models), max_size=12)):
        document = bytearray(encode(model))
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 3]))):
            document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
        expected = raises(lambda checked: check_all((checked,)), bytes(document))
        assert raises(layout.check, bytes(document)) == expected


def test_documents_that_nest_too_deeply_are_refused() -> None:
    inner: Any = 1
    for _ in range(200):
        inner = [inner]
    layout = LearnedLayout()
    for _ in range(5):
        with pytest.raises(CommandError, match="180 levels of nesting"):
            layout.check(encode({"a": inner}))
