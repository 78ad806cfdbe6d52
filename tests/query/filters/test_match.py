"""Filters: each row is a rule of MongoDB's query language, with what matches and what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, Regex, Timestamp

from headrace.query.collation import parse_collation
from headrace.query.match import parse_filter
from headrace.values.bson import MISSING

MATCHES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    # a filter on the field "a"; values of "a" that match; values that do not
    ({"a": 1}, [1, 1.0, Int64(1), Decimal128("1.0"), [1], [2, 1]], [True, "1", [[1]], None]),
    ({"a": None}, [None, [None], [1, None]], [0, [], [1], "", False]),
    ({"a": [1]}, [[1], [[1]], [1.0]], [1, [1, 2], [[1, 2]]]),
    ({"a": {}}, [{}, [{}]], [{"b": 1}, [], None]),
    ({"a": {"b": 1, "c": 2}}, [{"b": 1, "c": 2}], [{"c": 2, "b": 1}, {"b": 1}]),
    ({"a": math.nan}, [math.nan, Decimal128("NaN")], [0, None, "NaN"]),
    ({"a": {"$gt": 1}}, [2, 1.5, [0, 2], math.inf, Decimal128("1.1")], [1, "2", None, math.nan, [], {}]),
    ({"a": {"$gte": math.nan}}, [math.nan], [0, math.inf]),
    ({"a": {"$lt": Decimal128("5")}}, [4, 4.9, -math.inf, Int64(-1)], [5, math.nan, Decimal128("NaN"), None]),
    ({"a": {"$gt": math.nan}}, [], [math.nan, 0]),
    ({"a": {"$lte": None}}, [None, [None]], [0, [], -math.inf]),
    ({"a": {"$lt": None}}, [], [None, MinKey()]),
    ({"a": {"$gt": MinKey()}}, [0, None, [], MaxKey(), "x"], [MinKey()]),
    ({"a": {"$gte": MinKey()}}, [0, MinKey()], []),
    ({"a": {"$lt": MaxKey()}}, [0, None, MinKey()], [MaxKey()]),
    ({"a": {"$gt": False}}, [True], [False, 1]),
    ({"a": {"$gt": [1]}}, [[2], [1, 0], [[2]]], [2, [1], [0, 9]]),
    ({"a": {"$lt": {"b": 2}}}, [{"b": 1}, {}, {"a": 2}], [{"b": 2}, {"b": "x"}, 1]),
    ({"a": {"$gt": Timestamp(1, 1)}}, [Timestamp(1, 2)], [Timestamp(1, 1), 5]),
    ({"a": {"$ne": 1}}, [2, None, [], [2]], [1, [1, 2]]),
    ({"a": {"$in": [1, None, Regex("^x")]}}, [1.0, None, "xy", [3, "x"], Regex("^x")], [2, "yx", [], [3]]),
    ({"a": {"$in": []}}, [], [None, [], 1]),
    ({"a": {"$nin": [1, "x"]}}, [2, None, [], [[1]]], [1, ["x"]]),
    ({"a": Regex("b.c", "is")}, ["aB\nC", ["bxc"], Regex("b.c", "is")], ["bc", 1, Regex("b.c")]),
    ({"a": {"$regex": "^A", "$options": "i"}}, ["ab"], ["ba"]),
    ({"a": {"$options": "i", "$regex": "^A"}}, ["ab"], ["ba"]),
    ({"a": {"$eq": Regex("x")}}, [Regex("x")], ["x", Regex("x", "i")]),
    ({"a": {"$exists": 1}}, [None, [], 0], []),
    ({"a": {"$size": 1}}, [[1], [[]]], [[], 1, [1, 2], [[1], [2]]]),
    ({"a": {"$size": Int64(0)}}, [[]], [[[]], None]),
    ({"a": {"$type": "number"}}, [1, 1.5, Int64(1), Decimal128("1"), ["x", 1]], ["1", True, None, []]),
    ({"a": {"$type": ["string", 10]}}, ["x", None], [1]),
    ({"a": {"$type": "array"}}, [[], [1]], [1]),
    ({"a": {"$type": -1}}, [MinKey()], [MaxKey()]),
    ({"a": {"$mod": [3, 1]}}, [4, 4.9, Int64(7), Decimal128("1.5"), [0, 1]], [3, -2, "4", math.nan, math.inf, 1e30]),
    ({"a": {"$mod": [-3, -1]}}, [-4, -1.5], [4, -3]),
    ({"a": {"$mod": [3.9, 1.2]}}, [4], [3]),
    ({"a": {"$bitsAllSet": [0, 2]}}, [5, 7.0, Int64(-1), b"\x05"], [4, 5.5, "5", b"\x04", math.nan]),
    ({"a": {"$bitsAllClear": 2}}, [5, 0, b"\x01"], [2, 3]),
    ({"a": {"$bitsAnySet": b"\x06"}}, [2, 4, Binary(b"\x02", 5)], [1, 8]),
    ({"a": {"$bitsAnyClear": [70]}}, [1, b"\x01"], [-1]),
    ({"a": {"$bitsAnySet": 2}}, [Decimal128("1.5")], [Decimal128("1.4")]),
    ({"a.b": {"$bitsAllSet": 4}}, [[{"b": 1}, {"b": Int64(5)}], [{"b": [1, 6]}]], [[1, {"b": 3}], [{}], [{"b": []}]]),
    ({"a.b": {"$size": 2}}, [[{"b": [1, 2]}], [{}, {"b": [[], 3]}]], [[{"b": [[1, 2]]}], [[{"b": [1, 2]}]]]),
    ({"a": {"$in": [{"b": 1}, {}]}}, [{"b": 1.0}, {}, [{}]], [{"b": 2}, None, []]),
    ({"a": {"$in": [{"$ref": "c", "$id": 1}, {"b": 1}]}}, [{"$ref": "c", "$id": 1}], [{"$ref": "c"}]),
    ({"a": {"$in": [1, "x"]}}, [1.0, "x", Int64(1)], [True, "1"]),
    ({"a": {"$all": [1, 2]}}, [[1, 2, 3], [2, 1]], [1, [1], [[1, 2]]]),
    ({"a": {"$all": [1]}}, [1, [1]], [[]]),
    ({"a": {"$all": [[1, 2]]}}, [[1, 2], [[1, 2]]], [[1], [2, 1]]),
    ({"a": {"$all": []}}, [], [[], None, 1]),
    ({"a": {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"b": 2}}]}}, [[{"b": 1}, {"b": 2}]], [[{"b": 1}]]),
    ({"a": {"$elemMatch": {"$gt": 0, "$lt": 4}}}, [[9, 3]], [[9, -1], 3, [[3]]]),
    ({"a": {"$elemMatch": {"b": 1, "c": 2}}}, [[{"b": 1, "c": 2}]], [[{"b": 1}, {"c": 2}], {"b": 1, "c": 2}]),
    ({"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": 2}]}}}, [[{"c": 2}]], [[{"c": 1}]]),
    ({"a": {"$elemMatch": {"0": 5}}}, [[[5]]], [[5]]),
    ({"a": {"$elemMatch": {"b": None}}}, [[{}], [[]]], [[1], []]),
    ({"a": {"$elemMatch": {"$elemMatch": {"$gt": 1}}}}, [[[2]]], [[2], [[[2]]]]),
    ({"a": {"$elemMatch": {"$ne": 1}}}, [[1, 2], [[1]]], [[1], [], 2]),
    ({"a": {"$not": {"$gt": 1}}}, [1, None, "x", []], [2, [0, 2]]),
    ({"a": {"$not": Regex("^x")}}, ["yx", 1], ["x"]),
    ({"$nor": [{"a": 1}, {"a": {"$gt": 5}}]}, [2, None], [1, 6]),
    ({"$or": [{"a": 1}, {"a": 2, "_id": 0}]}, [1, 2], [3]),
    ({"$and": [{"a": {"$gt": 1}}, {"a": {"$lt": 3}}]}, [2, [0, 4]], [1]),
    ({"a": {"$gt": 1, "$lt": 3}, "$comment": "x"}, [2, [0, 4]], [1]),
    ({"$alwaysFalse": 1}, [], [1]),
    ({"a": {"$ref": "c", "$id": 1}}, [{"$ref": "c", "$id": 1}], [{"$ref": "c", "$id": 2}]),
]


@pytest.mark.parametrize(("document", "matching", "other"), MATCHES)
def test_filter(document: dict[str, Any], matching: list[Any], other: list[Any]) -> None:
    predicate = parse_filter(document)
    assert [value for value in matching if not predicate({"_id": 0, "a": value})] == []
    assert [value for value in other if predicate({"_id": 0, "a": value})] == []


@pytest.mark.parametrize("document", [{"a": None}, {"a": {"$exists": 0}}, {"a": {"$lte": None}}, {"a": {"$ne": 1}},
                                      {"a": {"$in": [None]}}, {"a": {"$not": {"$gt": 1}}}, {"a": {"$gt": MinKey()}},
                                      {"a.b": None}, {}, {"a": {"$nin": []}}])  # fmt: skip
def test_a_missing_field_matches(document: dict[str, Any]) -> None:
    assert parse_filter(document)({"_id": 0})


@pytest.mark.parametrize("document", [{"a": {"$exists": True}}, {"a": {"$nin": [None]}}, {"a": {"$type": "null"}},
                                      {"a": {"$size": 0}}, {"a": {"$mod": [1, 0]}}])  # fmt: skip
def test_a_missing_field_does_not_match(document: dict[str, Any]) -> None:
    assert not parse_filter(document)({"_id": 0})


ERRORS: list[tuple[dict[str, Any], int]] = [
    ({"$nope": 1}, 2),
    ({"a": {"$nope": 1}}, 2),
    ({"a": {"$gt": 1, "b": 2}}, 2),
    ({"$and": []}, 2),
    ({"$or": {}}, 2),
    ({"$nor": [1]}, 2),
    ({"a": {"$in": 1}}, 2),
    ({"a": {"$in": [{"$gt": 1}]}}, 2),
    ({"a": {"$nin": None}}, 2),
    ({"a": {"$all": 1}}, 2),
    ({"a": {"$all": [{"$gt": 1}]}}, 2),
    ({"a": {"$all": [{"$elemMatch": {}}, 1]}}, 2),
    ({"a": {"$elemMatch": 1}}, 2),
    ({"a": {"$elemMatch": {"$expr": True}}}, 2),
    ({"a": {"$not": 1}}, 2),
    ({"a": {"$not": {}}}, 2),
    ({"a": {"$not": {"b": 1}}}, 2),
    ({"a": {"$ne": Regex("x")}}, 2),
    ({"a": {"$gt": Regex("x")}}, 2),
    ({"a": {"$size": "1"}}, 2),
    ({"a": {"$size": -1}}, 2),
    ({"a": {"$size": 1.5}}, 2),
    ({"a": {"$mod": [0, 1]}}, 2),
    ({"a": {"$mod": [1]}}, 2),
    ({"a": {"$mod": [1, 2, 3]}}, 2),
    ({"a": {"$mod": ["x", 1]}}, 2),
    ({"a": {"$mod": [math.nan, 1]}}, 2),
    ({"a": {"$type": "nope"}}, 2),
    ({"a": {"$type": 0}}, 2),
    ({"a": {"$type": []}}, 9),
    ({"a": {"$type": None}}, 14),
    ({"a": {"$bitsAllSet": -1}}, 9),
    ({"a": {"$bitsAllSet": [-1]}}, 2),
    ({"a": {"$bitsAllSet": "x"}}, 2),
    ({"a": {"$bitsAllSet": 1.5}}, 9),
    ({"a": {"$regex": 1}}, 2),
    ({"a": {"$options": "i"}}, 2),
    ({"a": {"$regex": "("}}, 51091),
    ({"a": {"$regex": "a", "$options": "q"}}, 51108),
    ({"a": {"$regex": Regex("a", "i"), "$options": "i"}}, 51075),
    ({"$alwaysTrue": 2}, 9),
    ({"$sampleRate": "x"}, 2),
    ({"$sampleRate": True}, 2),
    ({"$sampleRate": 1.5}, 2),
    ({"$sampleRate": -0.1}, 2),
    ({"$sampleRate": math.nan}, 2),
    ({"a": {"$elemMatch": {"$sampleRate": 0.5}}}, 2),
    ({"$where": "1"}, 2),
    ({"$text": {"$search": "x"}}, 2),
    ({"a": {"$near": [0, 0]}}, 5626500),
    ({"$jsonSchema": 1}, 14),
    ({"$jsonSchema": {"nope": 1}}, 9),
]


@pytest.mark.parametrize(("document", "code"), ERRORS)
def test_a_bad_filter_is_refused_with_its_code(document: dict[str, Any], code: int) -> None:
    from headrace.errors import CommandError

    with pytest.raises(CommandError) as raised:
        parse_filter(document)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("document", "value", "index"),
    [
        ({"a": {"$gt": 1}}, {"a": [0, 2, 3]}, "1"),
        ({"a": {"$elemMatch": {"b": 2}}}, {"a": [{"b": 1}, {"b": 2}]}, "1"),
        ({"a.b": 2}, {"a": [{"b": 1}, {"b": [1, 2]}]}, "1"),
        ({"a.b": 2}, {"a": {"b": [1, 2]}}, "1"),
        ({"a": 2}, {"a": 2}, None),
        ({"$or": [{"a": 2}, {"a": 3}]}, {"a": [1, 2]}, "1"),
        ({"$or": [{"a": 2}, {"b": 3}]}, {"a": [1, 2]}, None),
        ({"a": 2, "b": 7}, {"a": [1, 2], "b": [7]}, "0"),
        ({"a": {"$not": {"$gt": 5}}}, {"a": [1]}, None),
    ],
)
def test_the_positional_index_is_that_of_the_last_condition_that_met_an_array(
    document: dict[str, Any], value: dict[str, Any], index: str | None
) -> None:
    assert parse_filter(document).matched_index(value) == index


def test_equalities_are_those_that_must_hold() -> None:
    predicate = parse_filter(
        {"a": 1, "b": {"$eq": 2}, "c": {"$in": [3]}, "d": {"$all": [4]}, "$and": [{"e": 5}], "$or": [{"f": 6}],
         "g": {"$gt": 1}, "h": {"$ne": 1}, "i": Regex("x"), "j": {"$in": [1, 2]}}
    )  # fmt: skip
    assert [predicate.equality(path) for path in "abcdef"] == [1, 2, 3, 4, 5, 6]
    assert predicate.equality("g") is MISSING


def test_fields_are_the_top_level_names_looked_at() -> None:
    assert parse_filter({"a.b": 1, "$or": [{"c": 1}, {"d": {"$not": {"$gt": 1}}}]}).fields() == {"a", "c", "d"}
    assert parse_filter({}).fields() == set()


def test_a_sample_rate_is_the_share_of_documents_that_match() -> None:
    assert not any(parse_filter({"$sampleRate": 0})({}) for _ in range(100))
    assert all(parse_filter({"$sampleRate": Decimal128("1.0")})({}) for _ in range(100))
    half = parse_filter({"$sampleRate": 0.5, "a": 1})
    assert 4_000 < sum(half({"a": 1}) for _ in range(10_000)) < 6_000  # 20 standard deviations to each side
    assert not any(half({"a": 2}) for _ in range(100))


def test_conjuncts_together_say_what_the_filter_says() -> None:
    children = parse_filter({"a": 1, "$and": [{"b": 2}, {"c": 3}]}).conjuncts()
    assert sorted(name for part in children for name in part.fields() or ()) == ["a", "b", "c"]


def test_a_collation_reaches_equality_order_and_in() -> None:
    collation = parse_collation({"locale": "en", "strength": 1})
    for document in ({"a": "ÉA"}, {"a": {"$in": ["x", "Ea"]}}, {"a": {"$gte": "EA", "$lte": "ea"}}, {"a": ["EA"]}):
        assert parse_filter(document, collation=collation)({"a": ["ea"]})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"required": ["a"]}, {"a": None}, {"b": 1}),
        ({"properties": {"a": {"bsonType": ["int", "string"]}}}, {"b": 1}, {"a": 1.5}),
        ({"properties": {"a": {"type": "number", "minimum": 3, "exclusiveMinimum": True}}}, {"a": 4}, {"a": 3}),
        ({"properties": {"a": {"items": {"type": "string"}, "uniqueItems": True}}}, {"a": ["x"]}, {"a": ["x", "x"]}),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}, {"a": 1, "b": 2}),
        ({"properties": {"a": {"enum": [1, {"x": 1, "y": 2}]}}}, {"a": {"y": 2, "x": 1}}, {"a": 2}),
        ({"properties": {"a": {"multipleOf": 0.5}}}, {"a": 1.5}, {"a": 1.2}),
        ({"patternProperties": {"^x": {"type": "string"}}}, {"xa": "s"}, {"xa": 1}),
        ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 1}),
        ({"not": {"properties": {"a": {"pattern": "^x"}}, "required": ["a"]}}, {"a": "y"}, {"a": "x"}),
        ({"properties": {"a": {"maxLength": 2}}}, {"a": "éé"}, {"a": "abc"}),
    ],
)
def test_json_schema(schema: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]) -> None:
    predicate = parse_filter({"$jsonSchema": schema})
    assert predicate(good) and not predicate(bad)


@pytest.mark.parametrize(
    ("pattern", "options", "good", "bad"),
    [
        (r"^\d+$", "", "12", "١٢"),
        (r"\bfoo\b", "", "a foo", "afoo"),
        (r"\Aa\z", "", "a", "a\n"),
        (r"a\Z", "", "a\n", "a\n\n"),
        (r"[[:alpha:]]+\d", "", "ab1", "1"),
        (r"(?<year>\d{4})-(?P=year)", "", "2020-2020", "2020-2021"),
        (r"\Qa.b\E", "", "a.b", "axb"),
        ("É", "i", "é", "e"),
        ("a b # note", "x", "ab", "a b"),
        ("^b", "m", "a\nb", "a b"),
        ("(*UTF8)a", "", "a", "b"),
        ("[a&&b]", "", "&", "c"),
    ],
)
def test_patterns_mean_what_pcre_means(pattern: str, options: str, good: str, bad: str) -> None:
    predicate = parse_filter({"a": {"$regex": pattern, "$options": options}})
    assert predicate({"a": good}) and not predicate({"a": bad})
