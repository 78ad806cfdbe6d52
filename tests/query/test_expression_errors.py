"""Codes of errors of expressions, by operator: each wrong argument has MongoDB's number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.testing.driven import DrivenServer

DOCUMENT = {
    "_id": 1, "a": 1, "s": "abc", "arr": [1, 2, 3], "d": datetime(2020, 1, 1), "n": None, "o": {"x": 1},
    "zero": Decimal128("0"), "odd": Binary(b"x"),
}  # fmt: skip
NO_NUMBERS: list[Any] = [
    "x", True, [], {"a": 1}, Binary(b"x"), ObjectId(), DatetimeMS(0), Regex("x"), Timestamp(1, 1), MinKey(),
]  # fmt: skip
NO_STRINGS: list[Any] = [
    1, Int64(1), 1.5, Decimal128("1"), True, [1], {"$literal": {"a": 1}}, Binary(b"x"), ObjectId(), DatetimeMS(0),
    Regex("x"), Timestamp(1, 1), MinKey(),
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [DOCUMENT]})
        yield server


def code(server: DrivenServer, expression: Any) -> int:
    pipeline = [{"$project": {"r": expression}}]
    reply = server.run("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


CASES: list[tuple[Any, int]] = [
    ({"$substrCP": ["$s", 1.5, 1]}, 34451),
    ({"$substrCP": ["$s", "x", 1]}, 34450),
    ({"$substrCP": ["$s", 0, "x"]}, 34452),
    ({"$substrCP": ["$s", 0, 1.5]}, 34453),
    ({"$substrCP": ["$s", 0, -1]}, 34454),
    ({"$substrCP": ["$s", -1, 1]}, 34455),
    ({"$substrBytes": ["$s", "x", 1]}, 16034),
    ({"$substrBytes": ["$s", 1, "x"]}, 16035),
    ({"$substrBytes": ["$s", -1, 1]}, 50752),
    ({"$substrBytes": ["é", 1, 1]}, 28656),
    ({"$substrBytes": ["é", 0, 1]}, 28657),
    ({"$range": ["x", 1]}, 34443),
    ({"$range": [1.5, 2]}, 34444),
    ({"$range": [0, "x"]}, 34445),
    ({"$range": [0, 1.5]}, 34446),
    ({"$range": [0, 1, "x"]}, 34447),
    ({"$range": [0, 1, 1.5]}, 34448),
    ({"$range": [0, 1, 0]}, 34449),
    ({"$slice": ["$arr", 1.5]}, 28726),
    ({"$slice": ["$arr", "x"]}, 28725),
    ({"$slice": ["$arr", 0, 0]}, 28729),
    ({"$slice": ["$s", 1]}, 28724),
    ({"$slice": ["$arr", 0, 1.5]}, 28728),
    ({"$indexOfArray": ["$arr", 1, 1.5]}, 9711600),
    ({"$indexOfArray": ["$arr", 1, -1]}, 9711601),
    ({"$indexOfArray": ["$s", 1]}, 40090),
    ({"$indexOfBytes": ["$s", 1]}, 40092),
    ({"$indexOfCP": ["$s", 1]}, 40094),
    ({"$indexOfCP": [1, "x"]}, 40093),
    ({"$indexOfBytes": [1, "x"]}, 40091),
    ({"$indexOfCP": ["$s", "x", "x"]}, 40096),
    ({"$indexOfCP": ["$s", "x", -1]}, 40097),
    ({"$indexOfCP": ["$s", "x", 1.5]}, 40096),
    ({"$switch": {"branches": [{"case": False, "then": 1}]}}, 40069),
    ({"$switch": {"branches": []}}, 40068),
    ({"$sortArray": {"input": "$arr", "sortBy": {"a": 2}}}, 2942505),
    ({"$sortArray": {"input": "$arr", "sortBy": 2}}, 2942506),
    ({"$sortArray": {"input": "$arr", "sortBy": "x"}}, 2942507),
    ({"$sortArray": {"input": "$arr", "sortBy": {}}}, 2942505),
    ({"$setField": {"field": "$s", "input": {}, "value": 1}}, 4161108),
    ({"$setField": {"field": {"$concat": ["a", "b"]}, "input": {}, "value": 1}}, 4161106),
    ({"$setField": {"field": 1, "input": {}, "value": 1}}, 4161107),
    ({"$convert": {"input": "x", "to": {"type": "binData", "subtype": 1.5}, "format": "utf8"}}, 4341106),
    ({"$convert": {"input": "x", "to": {"type": "binData", "subtype": "x"}, "format": "utf8"}}, 4341108),
    ({"$convert": {"input": "x", "to": {"type": "binData", "subtype": 300}, "format": "utf8"}}, 4341107),
    ({"$convert": {"input": "x", "to": "binData", "format": 1}}, 4341114),
    ({"$convert": {"input": "x", "to": "binData"}}, 4341115),
    ({"$convert": {"input": "x", "to": "binData", "format": "nope"}}, 4341125),
    ({"$convert": {"input": Binary(b"1234"), "to": "int", "byteOrder": 1}}, 9130001),
    ({"$convert": {"input": Binary(b"1234"), "to": "int", "byteOrder": "x"}}, 9130002),
    ({"$mod": [Decimal128("1"), Decimal128("0")]}, 5733415),
    ({"$arrayToObject": [[["a\0b", 1]]]}, 4940400),
    ({"$arrayToObject": [[{"k": "a\0b", "v": 1}]]}, 4940401),
    ({"$allElementsTrue": []}, 16020),
    ({"$allElementsTrue": ["$s"]}, 17040),
    ({"$dateAdd": {"startDate": "$d", "unit": 1, "amount": 1}}, 5166404),
    ({"$dateAdd": {"startDate": "$d", "unit": "day", "amount": 1.5}}, 5166405),
    ({"$dateAdd": {"startDate": "$d", "unit": "year", "amount": Int64(2**62)}}, 5976500),
    ({"$dateSubtract": {"startDate": "$d", "unit": "day", "amount": Int64(-(2**63))}}, 6045000),
    ({"$dateAdd": {"startDate": "$d", "unit": "millisecond", "amount": Int64(2**63 - 1)}}, 5166406),
    ({"$dateTrunc": {"date": "$d", "unit": "year", "binSize": Int64(2**62)}}, 5439006),
    ({"$dateTrunc": {"date": "$d", "unit": "hour", "binSize": Int64(2**62)}}, 5439002),
    ({"$setEquals": [1, [1]]}, 17044),
    ({"$setEquals": ["$a", [1]]}, 17044),
    ({"$let": {"vars": 1, "in": 1}}, 10065),
    ({"$let": {"vars": [1, 2], "in": 1}}, 9),
    ({"$mergeObjects": [1]}, 40400),
    ({"$getField": {}}, 3041702),
    ({"$mergeObjects": ["$a"]}, 40400),
    ({"$split": ["$s", 1]}, 40086),
    ({"$split": [1, "x"]}, 40085),
    ({"$split": ["$s", ""]}, 40087),
    ({"$replaceOne": {"input": 1, "find": "a", "replacement": "b"}}, 51746),
    ({"$replaceOne": {"input": "a", "find": 1, "replacement": "b"}}, 51745),
    ({"$replaceOne": {"input": "a", "find": "a", "replacement": 1}}, 51744),
    ({"$replaceAll": {"input": 1, "find": "a", "replacement": "b"}}, 51746),
    ({"$replaceAll": {"input": "a", "find": 1, "replacement": "b"}}, 51745),
    ({"$pow": [0, -1]}, 28764),
    ({"$toInt": 2**40}, 241),
    ({"$dateFromString": {"dateString": "2020", "format": 1}}, 40684),
    ({"$dateFromString": {"dateString": "2020", "format": "%Q"}}, 18536),
    ({"$percentile": {"input": "$arr", "p": "x", "method": "approximate"}}, 7750301),
    ({"$percentile": {"input": "$arr", "p": [2], "method": "approximate"}}, 7750303),
    ({"$percentile": {"input": "$arr", "p": [], "method": "approximate"}}, 7750301),
    ({"$firstN": {"n": "x", "input": "$arr"}}, 5787902),
    ({"$firstN": {"n": 0, "input": "$arr"}}, 5787908),
    ({"$regexMatch": {"input": "a", "regex": "a\0"}}, 51109),
    ({"$regexMatch": {"input": "a", "regex": "a", "options": "i\0"}}, 51110),
    ({"$regexMatch": {"input": "a", "regex": "a", "options": "z"}}, 51108),
    ({"$regexMatch": {"input": "a", "regex": Regex("a", "i"), "options": "i"}}, 51107),
    ("$a\0b", 16411),
    ({"$round": [1.5, 101]}, 51083),
    ({"$round": [1.5, 1.5]}, 51082),
    ({"$round": ["x"]}, 51081),
    ({"$trunc": [1.5, -21]}, 51083),
    ({"$zip": {"inputs": []}}, 34465),
    ({"$zip": {"inputs": "$s"}}, 34461),
    ({"$zip": {"inputs": [1]}}, 34468),
    ({"$zip": {"inputs": [[1]], "useLongestLength": 1}}, 34463),
    ({"$zip": {"inputs": [[1]], "defaults": [1]}}, 34466),
    ({"$zip": {"inputs": [[1]], "defaults": [1, 2], "useLongestLength": True}}, 34467),
    ({"$zip": {"inputs": [[1]], "defaults": 1}}, 34462),
    ({"$zip": {"x": 1}}, 34464),
    ({"$cond": [1, 2]}, 16020),
    ({"$ifNull": [1]}, 1257300),
    ({"$rand": 1}, 10065),
    ({"$rand": {"a": 1}}, 3040501),
    ({"$filter": {"input": "$arr", "cond": True, "limit": 1.5}}, 327391),
    ({"$filter": {"input": "$arr", "cond": True, "limit": 0}}, 327392),
    ({"$getField": {"field": 1}}, 3041703),
    ({"$getField": 1}, 3041704),
    ({"$getField": {"field": 1, "input": {}}}, 3041704),
    ({"$dateToString": {"date": "$d", "format": "%"}}, 18535),
    ({"$dateToString": {"date": "$d", "format": 1}}, 18533),
    ({"$dateFromParts": {"year": 1.5}}, 40515),
    ({"$dateFromParts": {"year": 10000}}, 40523),
    ({"$dateDiff": {"startDate": 1, "endDate": "$d", "unit": "day"}}, 5166307),
]


@pytest.mark.parametrize(("expression", "expected"), CASES, ids=range(len(CASES)))
def test_a_wrong_argument_has_its_number(server: DrivenServer, expression: Any, expected: int) -> None:
    assert code(server, expression) == expected


@pytest.mark.parametrize("name", ["$replaceOne", "$replaceAll"])
def test_replacing_looks_at_types_first_and_in_its_order(server: DrivenServer, name: str) -> None:
    codes = {"input": 51746, "find": 51745, "replacement": 51744}
    for field, expected in codes.items():
        for value in NO_STRINGS:
            for other in ("a", None):
                given = {**dict.fromkeys(codes, other), field: value}
                assert code(server, {name: given}) == expected, given
    assert code(server, {name: dict.fromkeys(codes, 1)}) == 51746
    assert code(server, {name: {"input": "a", "find": 1, "replacement": 1}}) == 51745


def test_split_and_its_operands(server: DrivenServer) -> None:
    for value in NO_STRINGS:
        assert code(server, {"$split": ["a", value]}) == 40086
        assert code(server, {"$split": [value, "a"]}) == 40085


def test_the_order_of_sort_array(server: DrivenServer) -> None:
    for value in (0, 2, -2, 1.5, Decimal128("1.5"), Int64(2), math.nan):
        for array in ("$arr", "$s", "$n"):
            assert code(server, {"$sortArray": {"input": array, "sortBy": value}}) == 2942506
        assert code(server, {"$sortArray": {"input": "$arr", "sortBy": {"a": value}}}) == 2942505
    for value in ("x", None, True, [1]):
        assert code(server, {"$sortArray": {"input": "$arr", "sortBy": value}}) == 2942507
    for value in (1, -1, 1.0, Int64(-1), Decimal128("1"), {"a": 1}, {"a": -1, "b": 1.0}):
        assert code(server, {"$sortArray": {"input": "$arr", "sortBy": value}}) == 0


def test_the_subtype_of_converted_binary_data(server: DrivenServer) -> None:
    def converted(value: Any) -> int:
        return code(server, {"$convert": {"input": 42, "to": {"type": "binData", "subtype": value}}})

    for value in NO_NUMBERS:
        assert converted({"$literal": value}) == 4341108, value
    assert converted(None) == 4341108
    for value in (1.5, Decimal128("1.5"), math.nan, math.inf):
        assert converted(value) == 4341106
    for value in (-1, 10, 127, 256, Int64(1000)):
        assert converted(value) == 4341107
    for value in (0, 9.0, Int64(128), Decimal128("255")):
        assert converted(value) == 0


def test_the_byte_order_of_converted_numbers(server: DrivenServer) -> None:
    for value in NO_STRINGS:
        assert code(server, {"$convert": {"input": 42, "to": "binData", "byteOrder": value}}) == 9130001
    for text in ("", "medium", "Big"):
        assert code(server, {"$convert": {"input": 42, "to": "binData", "byteOrder": text}}) == 9130002


def test_a_remainder_by_zero(server: DrivenServer) -> None:
    for left, right, expected in (
        (1, 0, 16610), (1.5, 0.0, 16610), (Int64(1), 0, 16610), (1, Decimal128("0"), 5733415),
        (Decimal128("1"), 0, 5733415), ("$a", "$zero", 5733415),
    ):  # fmt: skip
        assert code(server, {"$mod": [left, right]}) == expected
        assert code(server, {"$divide": [left, right]}) == 16608


def test_sets_that_are_compared(server: DrivenServer) -> None:
    for value in (None, 1, "x", {"$literal": {"a": 1}}):
        assert code(server, {"$setEquals": [value, [1]]}) == code(server, {"$setEquals": [[1], [1], value]}) == 17044
    for path in ("$n", "$a", "$missing"):
        assert code(server, {"$setEquals": [path, [1]]}) == 17044


def test_the_name_of_a_field_that_is_set(server: DrivenServer) -> None:
    for name, expected in (
        ("$s", 4161108), ("$$ROOT", 4161108), ({"$concat": ["a", "b"]}, 4161106),
        ({"$cond": [True, "a", "b"]}, 4161106),
        ({"a": 1}, 4161106), (1, 4161107), (None, 4161107), ({}, 4161107), ({"$literal": "$x"}, 0), ("x", 0),
    ):  # fmt: skip
        assert code(server, {"$setField": {"field": name, "input": {}, "value": 1}}) == expected, name
        assert code(server, {"$unsetField": {"field": name, "input": {}}}) == expected, name
