"""Large values give what small ones give, and too large ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.operation_memory import size_of
from headrace.values.order import compare, sort_key

COUNT = 2000
NUMBERS = list(range(COUNT))
FIELDS = {f"f{number}": number for number in NUMBERS}
PAIRS_OF = {"$map": {"input": "$a", "in": {"k": {"$toString": "$$this"}, "v": 1}}}
PAIRS = [{"b": number} for number in NUMBERS]


def evaluate(expression: Any, document: dict[str, Any]) -> Any:
    return parse_expression(expression)(Env(document))


def test_trimming_by_very_many_characters_takes_no_longer_than_the_text() -> None:
    """Python compares each character of the text with each of them."""
    characters = "".join(map(chr, range(0x4E00, 0x9F00))) + "a"
    assert evaluate({"$trim": {"input": "$a", "chars": characters}}, {"a": "a" * 300_000 + "x"}) == "x"


def test_values_compare_as_their_sort_keys() -> None:
    items: list[Any] = [
        NUMBERS, NUMBERS[:-1], [*NUMBERS[:-1], "x"], [*NUMBERS[:-1], float(COUNT - 1)], FIELDS, {**FIELDS, "f7": "x"},
        {**FIELDS, "f8": None}, {name + "x": value for name, value in FIELDS.items()}, dict(list(FIELDS.items())[:-1]),
    ]  # fmt: skip
    for one in items:
        for other in items:
            keys = sort_key(one), sort_key(other)
            assert compare(one, other) == (keys[0] > keys[1]) - (keys[0] < keys[1])


def test_texts_of_more_digits_than_python_reads_overflow() -> None:
    """Python's `int` refuses more than 4,300 digits."""
    many = "7" * 10_000
    for target in ("int", "long"):
        convert = {"$convert": {"input": "$a", "to": target, "onError": "overflow"}}
        assert evaluate(convert, {"a": many}) == evaluate(convert, {"a": "-" + many}) == "overflow"
        assert evaluate(convert, {"a": "+" + "0" * 10_000 + "7"}) == 7
    assert evaluate({"$convert": {"input": "$a", "to": "date", "onError": "failed"}}, {"a": "@" + many}) == "failed"


@pytest.mark.parametrize("layout", ["base64", "base64url", "hex", "utf8"])
def test_long_binary_data_converts_there_and_back(layout: str) -> None:
    data = "häß".encode() * 100_001
    there = {"$convert": {"input": "$a", "to": "string", "format": layout}}
    back = {"$convert": {"input": there, "to": "binData", "format": layout}}
    assert evaluate(back, {"a": data}) == data


def test_base64_ends_only_at_its_end() -> None:
    convert = {"$convert": {"input": "$a", "to": "binData", "format": "base64", "onError": "failed"}}
    assert evaluate(convert, {"a": "A" * (65_536 - 4) + "AA==" + "AAAA"}) == "failed"
    assert evaluate(convert, {"a": "A" * 65_536 + "AA=="}) == bytes(49_153)


@pytest.mark.parametrize("expression", [
    {"$concat": ["$a", "$a"]}, {"$replaceAll": {"input": "$a", "find": "x", "replacement": "yyy"}},
    {"$replaceAll": {"input": "$a", "find": "", "replacement": "y"}},
    {"$replaceOne": {"input": "$a", "find": "x", "replacement": "$a"}},
])  # fmt: skip
def test_a_text_that_is_too_long_is_not_made(expression: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as raised:
        evaluate(expression, {"a": "x" * (2**24 - 1)})
    assert raised.value.code == 16493


def test_a_text_is_not_split_into_more_than_an_array_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPRESSION_ARRAY_LENGTH_MAX", 4)
    assert evaluate({"$split": ["$a", ","]}, {"a": "a,b,c,d"}) == ["a", "b", "c", "d"]
    with pytest.raises(CommandError) as raised:
        evaluate({"$split": ["$a", ","]}, {"a": "a,b,c,d,e"})
    assert raised.value.code == 146


def test_case_is_that_of_ascii_letters() -> None:
    assert evaluate({"$toUpper": "$a"}, {"a": "aé~ß"}) == "Aé~ß"
    assert evaluate({"$toLower": "$a"}, {"a": "AÉ[Z"}) == "aÉ[z"
    assert evaluate({"$strcasecmp": ["$a", "$b"]}, {"a": "aé", "b": "Aé"}) == 0
    assert evaluate({"$strcasecmp": ["$a", "$b"]}, {"a": "a\uffff", "b": "A\U00010000"}) == -1


@pytest.mark.parametrize("item", [1, 1.5, Int64(1), "text", b"bytes", None, True, {}, {"a": 1}, [1, 2]])
def test_each_value_of_a_long_array_or_document_counts(item: Any) -> None:
    alone = size_of(item)
    assert size_of([item] * 1000) - size_of([]) == 1000 * (alone + 8)
    assert size_of({str(at): item for at in range(1000)}) - size_of({}) == 1000 * (alone + 56)
    assert size_of([item] * 999 + ["x"]) - size_of([item] * 999) == size_of("x") + 8
