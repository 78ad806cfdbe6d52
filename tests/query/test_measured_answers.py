"""Answers that a MongoDB 8.2 was measured to give, where the documentation says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, ParseContext, parse_expression
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline

CONTEXT = PipelineContext(database="t", collection="c", read_collection=lambda database, collection, depth: [])


def value_of(expression: Any) -> Any:
    return parse_expression(expression, ParseContext())(Env({}))


def decimal_of(operator: str, text: str) -> Any:
    return value_of({operator: {"$literal": Decimal128(text)}})


def failure_of(expression: Any) -> tuple[int | None, str]:
    with pytest.raises(CommandError) as caught:
        value_of(expression)
    return caught.value.code, caught.value.message.rpartition(" :: caused by :: ")[2]


def failure_of_stage(stage: dict[str, Any]) -> tuple[int | None, str]:
    with pytest.raises(CommandError) as caught:
        list(run_pipeline(parse_pipeline([stage], context=CONTEXT), iter([{"_id": 1, "n": 5}])))
    return caught.value.code, caught.value.message.rpartition(" :: caused by :: ")[2]


@pytest.mark.parametrize(
    ("operator", "text", "expected"),
    [
        ("$floor", "1E+33", "1000000000000000000000000000000000"),
        ("$ceil", "1E+33", "1000000000000000000000000000000000"),
        ("$floor", "1E+34", "NaN"),
        ("$ceil", "-1E+6144", "NaN"),
        ("$ceil", "Infinity", "NaN"),
        ("$floor", "-Infinity", "NaN"),
        ("$trunc", "1E+34", "1.000000000000000000000000000000000E+34"),
        ("$round", "1E+6144", "1.000000000000000000000000000000000E+6144"),
        ("$round", "9.999999999999999999999999999999999E+6144", "9.999999999999999999999999999999999E+6144"),
        ("$trunc", "Infinity", "Infinity"),
        ("$degreesToRadians", "0", "0E-35"),
        ("$degreesToRadians", "-0.00", "-0E-37"),
        ("$degreesToRadians", "180", "3.141592653589793238462643383279503"),
        ("$degreesToRadians", "4.9E-324", "8.552113334772214926926084765594204E-326"),
        ("$radiansToDegrees", "-0.00", "-0E-34"),
        ("$radiansToDegrees", "1E-6176", "5.7E-6175"),
        ("$exp", "1E-6176", "1"),
        ("$exp", "-1E-400", "1"),
        ("$exp", "1", "2.718281828459045235360287471352662"),
        ("$exp", "NaN", "NaN"),
    ],
)
def test_decimals_at_the_edge(operator: str, text: str, expected: str) -> None:
    assert str(decimal_of(operator, text)) == expected


@pytest.mark.parametrize("operator", ["$ln", "$log10"])
def test_the_logarithm_of_a_decimal_that_is_no_number_is_a_double(operator: str) -> None:
    assert repr(decimal_of(operator, "NaN")) == "nan"


@pytest.mark.parametrize(
    "text", ["4.9E-324", "1E-6176", "2.2250738585072012E-308", "2.225073858507201259573821257020768E-308", "1E+310"]
)
def test_a_decimal_below_the_normal_doubles_is_no_double(text: str) -> None:
    assert failure_of({"$toDouble": {"$literal": Decimal128(text)}})[0] == 241


def test_the_least_decimal_that_is_a_double() -> None:
    assert decimal_of("$toDouble", "2.2250738585072013E-308") == 2.2250738585072014e-308


@pytest.mark.parametrize(("text", "expected"), [("0X1f", 31.0), ("-0x10", -16.0), ("+0x10", 16.0), ("1e3", 1000.0)])
def test_a_text_of_hexadecimal_digits_is_a_double(text: str, expected: float) -> None:
    assert value_of({"$toDouble": text}) == expected


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        ({"$toDouble": "0x10"}, 241, "Illegal hexadecimal input in $convert with no onError value: 0x10"),
        ({"$toDouble": " 5 "}, 241, "Failed to parse number ' 5 ' in $convert with no onError value: "
         "Leading whitespace"),
        ({"$toDouble": "b"}, 241, "Failed to parse number 'b' in $convert with no onError value: "
         "Did not consume any digits"),
        ({"$toDouble": "1_000"}, 241, "Failed to parse number '1_000' in $convert with no onError value: "
         "Did not consume whole string."),
        ({"$toDouble": "1e400"}, 241, "Failed to parse number '1e400' in $convert with no onError value: Out of range"),
        ({"$toInt": 1e10}, 241, "Conversion would overflow target type in $convert with no onError value: 1e+10"),
        ({"$toInt": Int64(2**31)}, 241, "Conversion would overflow target type in $convert with no onError value: "),
        ({"$toObjectId": "z" * 24}, 241, f"Failed to parse objectId '{'z' * 24}' in $convert with no onError value: "
         "Invalid character found in hex string: z"),
        ({"$toInt": Binary(b"zzz", 0)}, 241, "Failed to convert 'BinData(0, \"7A7A7A\")' to int in $convert "
         "because of invalid length: 3"),
        ({"$round": [7.5, 2**31]}, 51082, "precision argument to  $round must be a integral value"),
        ({"$trunc": [7.5, 10_000_000_000]}, 51082, "precision argument to  $trunc must be a integral value"),
        ({"$round": [7.5, 2**31 - 1]}, 51083, "cannot apply $round with precision value 2147483647 "
         "value must be in [-20, 100]"),
        ({"$rand": 0}, 10065, "invalid parameter: expected an object ($rand)"),
        ({"$rand": None}, 10065, "invalid parameter: expected an object ($rand)"),
        ({"$rand": [1]}, 3040501, "$rand does not currently accept arguments"),
        ({"$bitAnd": [1, "abc"]}, 14, "$bitAnd only supports int and long operands."),
        ({"$bitNot": 1.5}, 14, "$bitNot only supports int and long, not: double."),
        ({"$bitNot": "abc"}, 28765, "$bitNot only supports int and long, not: string."),
        ({"$indexOfArray": [[1], 1, "x"]}, 9711600, "$indexOfArrayrequires an integral starting index, "
         'found a value of type: string, with value: "x"'),
        ({"$firstN": 5}, 5787801, "specification must be an object; found $firstN: 5"),
        ({"$firstN": {"input": [1]}}, 5787906, "Missing value for 'n'"),
        ({"$minN": "x"}, 5787900, 'specification must be an object; found $minN: "x"'),
        ({"$median": 5}, 7436201, "specification must be an object; found $median: 5"),
        ({"$percentile": 5}, 7436200, "specification must be an object; found $percentile: 5"),
    ],
)  # fmt: skip
def test_failures_of_expressions(expression: Any, code: int, message: str) -> None:
    assert failure_of(expression) == (code, message)


def test_binary_data_of_any_subtype_is_shown_as_text() -> None:
    assert value_of({"$toString": {"$literal": Binary(b"\1\2\3\4", 4)}}) == "AQIDBA=="


def percentile(fractions: Any, method: str = "approximate") -> dict[str, Any]:
    spec = {"input": "$n", "p": fractions, "method": method}
    return {"$group": {"_id": None, "x": {"$percentile": spec}}}


_FRACTIONS = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: "


@pytest.mark.parametrize(
    ("stage", "code", "message"),
    [
        ({"$group": {"_id": None, "x": {"$median": 5}}}, 7436100, "specification must be an object; found $median: 5"),
        ({"$group": {"_id": None, "x": {"$percentile": 5}}}, 7429703, "specification must be an object; "
         "found $percentile: 5"),
        ({"$group": {"_id": None, "x": {"$topN": 5}}}, 5788001, "specification must be an object; found $topN: 5"),
        ({"$group": {"_id": {"$median": 5}}}, 7436201, "specification must be an object; found $median: 5"),
        (percentile("x", "exact"), 7750301, _FRACTIONS + '"x"'),
        (percentile([]), 7750301, _FRACTIONS + "[]"),
        (percentile(["a"]), 7750302, _FRACTIONS + '"a"'),
        (percentile([1.5]), 7750303, _FRACTIONS + "1.5"),
        (percentile([0.5], "exact"), 2, "Currently only 'approximate' can be used as a percentile 'method'."),
        ({"$lookup": {"a": 1}}, 9, "must specify 'pipeline' when 'from' is empty"),
        ({"$lookup": {"from": "c", "zz": 1}}, 40415, "BSON field '$lookup.zz' is an unknown field."),
        ({"$lookup": "x"}, 9, "the $lookup stage specification must be an object, but found string"),
        ({"$graphLookup": {"a": 1, "b": "x"}}, 9, "missing 'from' option to $graphLookup stage specification: "
         '{ a: 1, b: "x" }'),
        ({"$geoNear": [1]}, 5860400, "$geoNear requires a 'near' argument"),
        ({"$unionWith": ""}, 73, "Namespace tis not a valid collection name"),
        ({"$documents": {}}, 51270, "Invalid empty sub-projection: _tempDocumentsField"),
        ({"$densify": 5}, 9, "The $densify stage specification must be an object, found int"),
        ({"$fill": 5}, 9, "The $fill stage specification must be an object, found int"),
        ({"$setWindowFields": 5}, 9, "the $setWindowFields stage specification must be an object, found int"),
        ({"$facet": "x"}, 40169, 'the $facet specification must be a non-empty object, but found: $facet: "x"'),
        ({"$merge": 5}, 14, "$merge requires a string or object argument, but found int"),
        ({"$replaceRoot": 5}, 40229, "expected an object as specification for $replaceRoot stage, got int"),
        ({"$redact": "x"}, 17053, "$redact's expression should not return anything aside from the variables $$KEEP, "
         '$$DESCEND, and $$PRUNE, but returned "x"'),
        ({"$skip": Decimal128("1.5")}, 5107200, "invalid argument to $skip stage: Cannot represent as a 64-bit "
         "integer: $skip: 1.5"),
        ({"$project": {"a": 0, "n": {"$literal": 1}}}, 31252, "Cannot use expression other than $meta in exclusion "
         "projection"),
        ({"$project": {"a": 0, "o": {"p": {"q": "$b"}}}}, 31310, 'Cannot use an expression q: "$b" in an exclusion '
         "projection"),
        ({"$project": {"a": 0, "o": {"p": 1}}}, 31253, "Cannot do inclusion on field p in exclusion projection"),
        ({"$project": {"a": 0, "o.p": 1}}, 31253, "Cannot do inclusion on field o.p in exclusion projection"),
        ({"$project": {"n": {"q": {}}}}, 51270, "Invalid empty sub-projection: q"),
    ],
)  # fmt: skip
def test_failures_of_stages(stage: dict[str, Any], code: int, message: str) -> None:
    assert failure_of_stage(stage) == (code, message)


def test_the_last_week_of_a_leap_year_that_began_on_a_sunday() -> None:
    date = DatetimeMS(1_356_912_000_000)
    assert value_of({"$dateToString": {"date": date, "format": "%U"}}) == "53"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@1577836800.5", 1_577_836_800_500),
        ("@-1", -1_000),
        ("2024-01-01 22:30:00 IST", 1_704_141_000_000),
        ("2024-01-01 10:00 PM", 1_704_146_400_000),
    ],
)
def test_texts_of_dates(text: str, expected: int) -> None:
    assert int(value_of({"$toDate": text})) == expected


@pytest.mark.parametrize("text", ["2024-01-01 23:59:60", "2024-01-01T23:59:60Z", "2024-01-01T235960"])
def test_a_minute_has_sixty_seconds(text: str) -> None:
    assert failure_of({"$toDate": text})[0] == 241
