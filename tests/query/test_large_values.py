"""Loops over large values tick, and what is done otherwise with large values gives what it gives with small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Timestamp

from headrace import turns
from headrace.query.diff import compute_diff, identical
from headrace.query.expressions import Env, parse_expression
from headrace.query.match import parse_filter
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.query.projection.projection import parse_projection
from headrace.query.sort import parse_sort
from headrace.query.update import UpdateContext, parse_update
from headrace.turns import Turn, Turns
from headrace.values import hashed as hashed_module
from headrace.values.order import compare, equal, sort_key

COUNT = 2000
NUMBERS = list(range(COUNT))
FIELDS = {f"f{number}": number for number in NUMBERS}
PAIRS_OF = {"$map": {"input": "$a", "in": {"k": {"$toString": "$$this"}, "v": 1}}}
PAIRS = [{"b": number} for number in NUMBERS]


def pauses_of(function: Callable[[], object]) -> int:
    """How often it pauses where every tick is a pause."""
    one, count = Turns(seconds=0.0), 0
    result = one.run(function)
    while isinstance(result, Turn):
        count += 1
        result = one.resume(result)
    return count


def evaluate(expression: Any, document: dict[str, Any]) -> Any:
    return parse_expression(expression)(Env(document))


def updated(update: dict[str, Any], document: dict[str, Any]) -> Any:
    return parse_update(update).apply(document, UpdateContext(5, Timestamp(9, 1)))


@pytest.mark.parametrize("function", [
    lambda: compare(NUMBERS, [*NUMBERS]),
    lambda: compare(FIELDS, {**FIELDS}),
    lambda: equal(FIELDS, {**FIELDS}),
    lambda: identical({"a": PAIRS}, {"a": [dict(item) for item in PAIRS]}),
    lambda: compute_diff({"a": PAIRS}, {"a": [*PAIRS[:-1], {"b": -1}]}),
    lambda: parse_projection(dict.fromkeys(FIELDS, 1), kind="find"),
    lambda: parse_projection({"a": dict.fromkeys(FIELDS, 1)}, kind="find"),
    lambda: updated({"$pull": {"a": {"b": 7}}}, {"_id": 1, "a": PAIRS}),
    lambda: updated({"$pullAll": {"a": NUMBERS}}, {"_id": 1, "a": [1]}),
    lambda: updated({"$addToSet": {"a": {"b": -7}}}, {"_id": 1, "a": PAIRS}),
    lambda: updated({"$addToSet": {"a": {"$each": PAIRS}}}, {"_id": 1, "a": PAIRS}),
    lambda: updated({"$push": {"a": {"$each": PAIRS}}}, {"_id": 1, "a": [1]}),
    lambda: updated({"$set": {"a": {"b": PAIRS}}}, {"_id": 1}),
    lambda: updated({"$set": FIELDS}, {"_id": 1}),
    lambda: evaluate({"$objectToArray": "$$ROOT"}, FIELDS),
    lambda: parse_filter({"$jsonSchema": {"properties": {name: {"minimum": 1} for name in FIELDS}}}),
    lambda: parse_filter({"a": {"$bitsAllSet": NUMBERS}}),
    lambda: parse_filter({"a": {"$type": ["int"] * COUNT}}),
    lambda: parse_filter({"a": {"$elemMatch": {"b": -1}}})({"a": PAIRS}),
    lambda: parse_sort({"a.b": 1, "a.c": -1}).key({"a": PAIRS}),
    lambda: parse_pipeline([{"$bucket": {"groupBy": "$x", "boundaries": NUMBERS}}], context=PipelineContext()),
    lambda: evaluate({"$arrayToObject": PAIRS_OF}, {"a": NUMBERS}),
])  # fmt: skip
def test_it_ticks_about_once_for_64_elements(function: Callable[[], object]) -> None:
    assert COUNT / 64 - 1 <= pauses_of(function) <= COUNT / 64 * 12


@pytest.mark.parametrize("operand", ["a" * 300_000, "é" * 300_000])
@pytest.mark.parametrize("expression", [
    {"$indexOfBytes": ["$a", "ab"]}, {"$indexOfCP": ["$a", "ab"]}, {"$ltrim": {"input": "$a", "chars": "aé"}},
    {"$replaceAll": {"input": "$a", "find": "", "replacement": "xyzw"}}, {"$rtrim": {"input": "$a", "chars": "aé"}},
    {"$replaceOne": {"input": "$a", "find": "ab", "replacement": "xyzw"}}, {"$split": ["$a", "ab"]},
    {"$strLenBytes": "$a"}, {"$strcasecmp": ["$a", "$a"]}, {"$substrBytes": ["$a", 0, 200_000]},
    {"$toLower": "$a"}, {"$toUpper": "$a"}, {"$trim": {"input": "$a", "chars": "aé"}},
])  # fmt: skip
def test_operators_on_long_texts_tick(expression: dict[str, Any], operand: str) -> None:
    assert pauses_of(lambda: evaluate(expression, {"a": operand})) >= 3


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


@pytest.mark.parametrize("expression", [
    {"$setUnion": ["$a", "$b"]}, {"$setIntersection": ["$a", "$b", "$a"]}, {"$setDifference": ["$a", "$b"]},
    {"$setEquals": ["$a", "$b"]}, {"$setEquals": ["$a", "$a"]}, {"$setIsSubset": ["$a", "$b"]},
    {"$setIsSubset": ["$c", "$b"]},
])  # fmt: skip
def test_large_sets_are_as_small_ones(expression: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"a": [3, 1, 2.0, "x", None, 1], "b": [2, "x", [1], 3.0], "c": [2, 3, "x"]}
    small = evaluate(expression, document)
    monkeypatch.setattr(hashed_module, "LARGE_COUNT", 1)
    assert evaluate(expression, document) == small


def test_a_long_list_of_in_matches_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_module, "LARGE_COUNT", 1)
    matches = parse_filter({"a": {"$in": [1, "x", None, [2]]}})
    assert [matches({"a": value}) for value in (1.0, "x", None, [2], 2, "y")] == [True, True, True, True, False, False]
    assert matches({}) and turns.LARGE_COUNT > 1


def test_texts_of_more_digits_than_python_reads_overflow() -> None:
    """Python's `int` refuses more than 4,300 digits."""
    many = "7" * 10_000
    for target in ("int", "long"):
        convert = {"$convert": {"input": "$a", "to": target, "onError": "overflow"}}
        assert evaluate(convert, {"a": many}) == evaluate(convert, {"a": "-" + many}) == "overflow"
        assert evaluate(convert, {"a": "+" + "0" * 10_000 + "7"}) == 7
    assert evaluate({"$convert": {"input": "$a", "to": "date", "onError": "failed"}}, {"a": "@" + many}) == "failed"


@pytest.mark.parametrize("layout", ["base64", "base64url", "hex", "utf8"])
def test_long_binary_data_converts_piece_by_piece(layout: str) -> None:
    data = "häß".encode() * 100_001
    there = {"$convert": {"input": "$a", "to": "string", "format": layout}}
    back = {"$convert": {"input": there, "to": "binData", "format": layout}}
    assert evaluate(back, {"a": data}) == data
    assert pauses_of(lambda: evaluate(back, {"a": data})) >= 6


def test_base64_ends_only_at_its_end() -> None:
    convert = {"$convert": {"input": "$a", "to": "binData", "format": "base64", "onError": "failed"}}
    assert evaluate(convert, {"a": "A" * (65_536 - 4) + "AA==" + "AAAA"}) == "failed"
    assert evaluate(convert, {"a": "A" * 65_536 + "AA=="}) == bytes(49_153)
