"""The rules of expressions, one by one."""

from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.collation import parse_collation
from headrace.query.expressions import Env, ParseContext, parse_expression
from headrace.values.bson import MISSING

MOMENT = DatetimeMS(1577934245678)  # 2020-01-02T03:04:05.678Z


def evaluate(
    spec: Any, document: dict[str, Any] | None = None, context: ParseContext | None = None, **bound: Any
) -> Any:
    return parse_expression(spec, context)(Env(document or {}, bound))


def code_of(spec: Any, document: dict[str, Any] | None = None) -> int:
    with pytest.raises(CommandError) as caught:
        evaluate(spec, document)
    return caught.value.code


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


def test_a_path_maps_over_the_documents_of_an_array_and_knows_no_indexes() -> None:
    document = {"a": [{"b": 1}, {"c": 2}, 3, [{"b": 4}], {"b": [5]}]}
    assert evaluate("$a.b", document) == [1, [5]]
    assert evaluate("$a.0", document) == []
    assert evaluate("$a.b.c", {"a": {"b": 1}}) is MISSING


def test_fields_names_what_is_read_of_the_root() -> None:
    spec = {"$add": ["$a.b", {"$let": {"vars": {"x": "$c"}, "in": "$$x.d"}}]}
    assert parse_expression(spec).fields() == {"a", "c"}
    assert parse_expression("$$ROOT").fields() is None
    assert parse_expression({"$let": {"vars": {"CURRENT": "$a"}, "in": "$b"}}).fields() == {"a"}


def test_a_rebound_current_is_what_plain_paths_start_from() -> None:
    assert evaluate({"$let": {"vars": {"CURRENT": "$a"}, "in": ["$b", "$$ROOT.b"]}}, {"a": {"b": 1}, "b": 2}) == [1, 2]


def test_variables_of_a_command_fold_and_those_of_a_stage_are_bound() -> None:
    known = ParseContext(constants={"x": {"y": 2}})
    assert parse_expression({"$add": ["$$x.y", 1]}, known).is_constant
    assert evaluate({"$add": ["$$x", 1]}, None, ParseContext(defined=frozenset({"x"})), x=2) == 3
    assert code_of("$$x") == 17276


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("$", 16872), ("$a.", 40353), ("$a..b", 15998), ("$$", 9), ({"$nope": 1}, 168), ({"$abs": 1, "b": 2}, 15983),
        ({"a.b": 1}, 16412), ({"$abs": [1, 2]}, 16020), ({"$round": [1, 2, 3]}, 28667), ({"$switch": {}}, 40068),
        ({"$cond": {"if": 1}}, 17081), ({"$map": {"input": [], "as": "X", "in": 1}}, 9),
        ({"$function": {}}, 31264),
    ],
)  # fmt: skip
def test_what_cannot_be_parsed_is_refused_with_the_servers_number(spec: Any, code: int) -> None:
    assert code_of(spec) == code


def test_constant_subexpressions_fail_when_parsed_even_where_never_reached() -> None:
    with pytest.raises(CommandError) as caught:
        parse_expression({"$cond": ["$a", 1, {"$split": ["a", ""]}]})
    assert (caught.value.code, caught.value.message[:30]) == (40087, "Failed to optimize pipeline ::")
    assert parse_expression({"$cond": ["$a", 1, {"$map": {"input": 5, "in": 1}}]})(Env({"a": 1})) == 1


def test_constants_of_commutative_operators_are_seen_last() -> None:
    assert evaluate({"$add": [True, "$missing"]}) is None
    assert evaluate({"$or": [{"$divide": ["$a", 0]}, True]}) is True
    assert code_of({"$concat": [1, "$missing"]}) == 16702


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"$add": [2147483647, 1]}, Int64(2147483648)), ({"$add": [1, Int64(1)]}, Int64(2)), ({"$add": [1, 1.0]}, 2.0),
        ({"$add": [Int64(2**63 - 1), 1]}, float(2**63)), ({"$add": [Decimal128("1.50"), 5]}, Decimal128("6.50")),
        ({"$add": [MOMENT, 1]}, DatetimeMS(1577934245679)), ({"$subtract": [MOMENT, MOMENT]}, Int64(0)),
        ({"$multiply": [2147483647, 2]}, Int64(4294967294)), ({"$divide": [6, 3]}, 2.0), ({"$mod": [-7, 3]}, -1),
        ({"$mod": [7, Int64(4)]}, Int64(3)), ({"$pow": [2, 63]}, float(2**63)), ({"$pow": [2, 3]}, 8),
        ({"$abs": Int64(-5)}, Int64(5)), ({"$round": [2.5]}, 2.0), ({"$round": [12355, -1]}, 12360),
        ({"$round": [Decimal128("5"), 2]}, Decimal128("5.00")), ({"$trunc": [-1.55, 1]}, -1.5),
        ({"$toDecimal": 2.5}, Decimal128("2.50000000000000")), ({"$ceil": -0.5}, -0.0),
    ],
)  # fmt: skip
def test_numbers_get_the_widest_type_and_ints_grow(spec: Any, value: Any) -> None:
    assert same(evaluate(spec), value)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"$add": ["a", 1]}, 16554), ({"$add": [MOMENT, MOMENT]}, 16612), ({"$divide": [1, 0]}, 16608),
        ({"$mod": [1, 0]}, 16610), ({"$log": [5, 1]}, 28759), ({"$sqrt": -1}, 28714), ({"$pow": [0, -1]}, 28764),
        ({"$round": [1, 200]}, 51083), ({"$abs": Int64(-(2**63))}, 28680), ({"$bitAnd": [1.5]}, 14),
    ],
)  # fmt: skip
def test_arithmetic_that_cannot_be_done_has_distinct_codes(spec: Any, code: int) -> None:
    assert code_of(spec) == code


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"$substrBytes": ["héllo", 0, 3]}, "hé"), ({"$substrCP": ["héllo", 1, 3]}, "éll"),
        ({"$indexOfBytes": ["héllo", "l"]}, 3), ({"$indexOfCP": ["héllo", "l"]}, 2), ({"$strLenBytes": "é"}, 2),
        ({"$toUpper": "aé"}, "Aé"), ({"$trim": {"input": " \u00a0a "}}, "a"), ({"$split": ["a-b", "-"]}, ["a", "b"]),
        ({"$replaceAll": {"input": "aba", "find": "a", "replacement": "x"}}, "xbx"), ({"$strcasecmp": ["a", "B"]}, -1),
        ({"$toString": 1234567.0}, "1.23457e+06"), ({"$toUpper": Timestamp(5, 1)}, "JAN  1 00:00:05:1"),
        ({"$regexFind": {"input": "Cafés", "regex": Regex("É", 2)}}, {"match": "é", "idx": 3, "captures": []}),
        ({"$regexFindAll": {"input": "ab", "regex": "(x)|b"}}, [{"match": "b", "idx": 1, "captures": [None]}]),
    ],
)  # fmt: skip
def test_strings_count_bytes_or_code_points(spec: Any, value: Any) -> None:
    assert same(evaluate(spec), value)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"$arrayElemAt": [[1, 2], -1]}, 2), ({"$arrayElemAt": [[1, 2], 5]}, MISSING),
        ({"$slice": [[1, 2, 3], -2]}, [2, 3]),
        ({"$slice": [[1, 2, 3], -5, 2]}, [1, 2]), ({"$range": [5, 0, -2]}, [5, 3, 1]), ({"$first": [[]]}, MISSING),
        ({"$setUnion": [[3, 1], [1.0, 2]]}, [1, 2, 3]), ({"$setDifference": [[3, 1, 3, 2], [2]]}, [3, 1]),
        ({"$setEquals": [[1, 1.0], [1]]}, True), ({"$setIsSubset": [[1], [1.0, 2]]}, True),
        ({"$zip": {"inputs": [[1], [2, 3]], "useLongestLength": True, "defaults": [0, 0]}}, [[1, 2], [0, 3]]),
        ({"$sortArray": {"input": [{"a": 2}, {"a": 1}], "sortBy": {"a": 1}}}, [{"a": 1}, {"a": 2}]),
        ({"$filter": {"input": [1, 2, 3], "cond": {"$gt": ["$$this", 1]}, "limit": 1}}, [2]),
        ({"$map": {"input": [1, 2], "in": "$$this.x"}}, [None, None]), ({"$indexOfArray": [[1, 2, 2], 2, 2]}, 2),
        ({"$reduce": {"input": [1, 2], "initialValue": [], "in": {"$concatArrays": ["$$value", ["$$this"]]}}}, [1, 2]),
        ({"$arrayToObject": [[["a", 1], ["a", 2]]]}, {"a": 2}), ({"$objectToArray": {"a": 1}}, [{"k": "a", "v": 1}]),
        ({"$setField": {"field": "a.b", "input": {"c": 1}, "value": 2}}, {"c": 1, "a.b": 2}),
        ({"$unsetField": {"field": "c", "input": {"c": 1}}}, {}),
        ({"$maxN": {"n": 2, "input": [1, None, 3, 2]}}, [3, 2]),
    ],
)  # fmt: skip
def test_arrays_sets_and_objects(spec: Any, value: Any) -> None:
    assert same(evaluate(spec), value)


def test_strings_compare_by_the_collation_of_the_command() -> None:
    context = ParseContext(collation=parse_collation({"locale": "en", "strength": 2}))
    assert evaluate({"$eq": ["a", "A"]}, None, context) is True
    assert evaluate({"$in": ["a", ["A"]]}, None, context) is True
    assert evaluate({"$setUnion": [["a"], ["A"]]}, None, context) == ["a"]


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"$hour": {"date": MOMENT, "timezone": "America/New_York"}}, 22), ({"$isoWeekYear": MOMENT}, Int64(2020)),
        ({"$year": ObjectId("64b000000000000000000001")}, 2023), ({"$dayOfWeek": MOMENT}, 5),
        ({"$dateToString": {"date": MOMENT, "timezone": "+05:30"}}, "2020-01-02T08:34:05.678"),
        ({"$dateToString": {"date": MOMENT, "format": "%G-W%V-%u %j%%"}}, "2020-W01-4 002%"),
        ({"$dateFromString": {"dateString": "02/2020/01", "format": "%d/%Y/%m"}}, DatetimeMS(1577923200000)),
        ({"$dateFromString": {"dateString": "nope", "onError": "E"}}, "E"),
        ({"$dateFromParts": {"year": 2023, "month": 14, "day": 0}}, DatetimeMS(1706659200000)),
        ({"$dateAdd": {"startDate": DatetimeMS(1706659200000), "unit": "month", "amount": 1}},
         DatetimeMS(1709164800000)),
        ({"$dateAdd": {"startDate": DatetimeMS(1678582800000), "unit": "day", "amount": 1,
                       "timezone": "America/New_York"}}, DatetimeMS(1678665600000)),
        ({"$dateDiff": {"startDate": DatetimeMS(0), "endDate": MOMENT, "unit": "year"}}, Int64(50)),
        ({"$dateTrunc": {"date": MOMENT, "unit": "week", "startOfWeek": "mon"}}, DatetimeMS(1577664000000)),
        ({"$dateTrunc": {"date": MOMENT, "unit": "hour", "binSize": 5}}, DatetimeMS(1577926800000)),
    ],
)  # fmt: skip
def test_dates_follow_the_clock_of_the_time_zone(spec: Any, value: Any) -> None:
    result = evaluate(spec)
    assert type(result) is type(value)
    assert int(result) == int(value) if isinstance(value, DatetimeMS) else result == value


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ({"$convert": {"input": "x", "to": "int", "onError": "E"}}, "E"), ({"$toInt": "12"}, 12),
        ({"$convert": {"input": None, "to": "int", "onNull": "N"}}, "N"), ({"$toInt": -1.9}, -1),
        ({"$convert": {"input": 1, "to": 18}}, Int64(1)), ({"$toBool": "false"}, True), ({"$toDouble": "1e3"}, 1000.0),
        ({"$convert": {"input": b"ab", "to": "string", "format": "hex"}}, "6162"),
        ({"$convert": {"input": 258, "to": "binData", "byteOrder": "big"}}, b"\0\0\1\2"),
        ({"$toUUID": "00000000-0000-0000-0000-000000000001"}, Binary(b"\0" * 15 + b"\1", 4)),
    ],
)  # fmt: skip
def test_conversions(spec: Any, value: Any) -> None:
    assert same(evaluate(spec), value)


@pytest.mark.parametrize("spec", [{"$toInt": "1.5"}, {"$toInt": 2.0**31}, {"$toDate": 5}, {"$toObjectId": "x"}])
def test_what_does_not_convert_is_error_241(spec: Any) -> None:
    assert code_of(spec) == 241


@pytest.mark.parametrize(
    ("spec", "digits"),
    [
        ({"$sin": Decimal128("0.5")}, "0.4794255386042030002732879352155714"),
        ({"$atan2": [Decimal128("1"), Decimal128("-1")]}, "2.356194490192344928846982537459627"),
        ({"$acosh": Decimal128("2")}, "1.316957896924816708625046347307968"),
        ({"$exp": Decimal128("1")}, "2.718281828459045235360287471352662"),
    ],
)
def test_decimals_have_thirty_four_right_digits(spec: Any, digits: str) -> None:
    assert evaluate(spec) == Decimal128(digits)


def test_chance_is_handed_in() -> None:
    assert evaluate({"$rand": {}}, None, ParseContext(random_source=lambda: 0.25)) == 0.25
