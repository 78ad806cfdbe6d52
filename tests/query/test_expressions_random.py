"""Random expressions over random values: an answer that BSON can hold, or an error of the client's."""

import random

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression
from headrace.query.expressions.operator_table import OPERATORS
from headrace.values.bson import MISSING, encode

VALUES = [
    None, True, False, 0, 1, -1, 5, 2147483647, -2147483648, Int64(5), Int64(2**63 - 1), Int64(-(2**63)), 0.0, 1.5,
    -2.25, 5.0, 1e300, float("inf"), float("-inf"), float("nan"), Decimal128("5"), Decimal128("-0.1"),
    Decimal128("1E+6000"), Decimal128("NaN"), Decimal128("Infinity"), "", "a", "abcABC", "héllo wörld", " a b ", "10",
    "2020-01-02", "year", "day", "UTC", "%Y-%m", b"\0\1", Binary(b"zz", 5), ObjectId("64b000000000000000000001"),
    DatetimeMS(0), DatetimeMS(1577934245678), DatetimeMS(-86400000), DatetimeMS(2**62), Timestamp(5, 1), MinKey(),
    MaxKey(), Regex("^a", 2), Code("f"), [], [1, 2, 3, 4], [1.5, "a", None], [["a", 1], ["b", 2]],
    [{"k": "a", "v": 1}], {}, {"a": 1}, {"b": {"c": [1]}}, [[1, 2], [3]],
]  # fmt: skip
NAMES = [
    "amount", "as", "binSize", "byteOrder", "case", "chars", "cond", "date", "dateString", "day", "else", "endDate",
    "field", "find", "format", "if", "in", "initialValue", "input", "iso8601", "isoWeek", "isoWeekYear", "limit",
    "method", "month", "n", "onError", "onNull", "options", "p", "regex", "replacement", "sortBy", "startDate",
    "startOfWeek", "then", "timezone", "to", "unit", "value", "year",
]  # fmt: skip
SHAPES = {
    "$convert": ["input", "to"], "$dateAdd": ["startDate", "unit", "amount"],
    "$dateDiff": ["startDate", "endDate", "unit"],
    "$dateFromParts": ["year", "month", "day", "hour"], "$dateFromString": ["dateString"],
    "$dateSubtract": ["startDate", "unit", "amount"], "$dateToParts": ["date"], "$dateToString": ["date"],
    "$dateTrunc": ["date", "unit"], "$filter": ["input", "cond"], "$firstN": ["n", "input"],
    "$getField": ["field", "input"], "$lastN": ["n", "input"], "$ltrim": ["input"], "$map": ["input", "in"],
    "$maxN": ["n", "input"], "$minN": ["n", "input"], "$reduce": ["input", "initialValue", "in"],
    "$regexFind": ["input", "regex"], "$regexFindAll": ["input", "regex"], "$regexMatch": ["input", "regex"],
    "$replaceAll": ["input", "find", "replacement"], "$replaceOne": ["input", "find", "replacement"],
    "$setField": ["field", "input", "value"], "$sortArray": ["input", "sortBy"], "$trim": ["input"],
    "$unsetField": ["field", "input"], "$zip": ["inputs"],
}  # fmt: skip


def operand(chance: random.Random, depth: int) -> object:
    roll = chance.random()
    if roll < 0.25 and depth:
        return operation(chance, depth - 1)
    if roll < 0.5:
        return chance.choice(["$a", "$b", "$a.b", "$missing", "$$ROOT", "$$CURRENT.a", "$$REMOVE"])
    return {"$literal": chance.choice(VALUES)} if roll < 0.9 else chance.choice(VALUES)


def operation(chance: random.Random, depth: int) -> dict[str, object]:
    name = chance.choice(list(OPERATORS))
    if name in SHAPES and chance.random() < 0.9:
        given = {field: operand(chance, depth) for field in SHAPES[name]}
        if chance.random() < 0.4:
            given[chance.choice(NAMES)] = operand(chance, depth)
        return {name: given}
    return {name: [operand(chance, depth) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 2, 3, 4]))]}


def fits_its_type(value: object) -> bool:
    """Whether every plain int, which stands for 32 bits, fits them."""
    if type(value) is dict:
        return all(map(fits_its_type, value.values()))
    if type(value) is list:
        return all(map(fits_its_type, value))
    return type(value) is not int or -(2**31) <= value < 2**31


@pytest.mark.parametrize("seed", range(20))
def test_any_expression_of_any_values_gives_a_value_or_a_command_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(400):
        spec = operation(chance, 2)
        document = {name: value for name in "ab" if (value := chance.choice([*VALUES, MISSING])) is not MISSING}
        try:
            value = parse_expression(spec)(Env(document))
        except CommandError:
            continue
        except Exception as failure:
            raise AssertionError(f"{spec} of {document}") from failure
        if value is not MISSING:
            encode({"value": value})
            assert fits_its_type(value), f"{spec} of {document}"
