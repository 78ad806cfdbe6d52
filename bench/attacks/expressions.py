"""Attacks with expressions: loops that look at no document."""

from __future__ import annotations

from typing import Any

from attacks.attacker import Attack, aggregating, computing, repeated

MILLION = {"$range": [0, 1_000_000]}


def _mapped(depth: int) -> Any:
    inner: Any = 1
    for _ in range(depth):
        inner = {"$map": {"input": {"$range": [0, 1000]}, "in": inner}}
    return inner


def _doubling(operator: str, start: Any) -> dict[str, Any]:
    doubled = {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": start, "in": {operator: ["$$value"] * 2}}}
    measured = {"$size": doubled} if operator == "$concatArrays" else {"$strLenBytes": doubled}
    return aggregating({"$documents": [{}]}, {"$project": {"x": measured}})


def _text(length: int) -> Any:
    """An expression for a text of so many letters, a power of two."""
    return {"$reduce": {"input": {"$range": [0, length.bit_length() - 1]}, "initialValue": "a", "in": {
        "$concat": ["$$value", "$$value"]}}}  # fmt: skip


def of_text(expression: Any) -> dict[str, Any]:
    """An aggregate that evaluates an expression of `$t`, a text of 4 MB, and answers nothing."""
    return aggregating({"$documents": [{"t": _text(2**22)}]}, {"$project": {"x": expression}}, {"$match": {"x": -1}})


def _branches(count: int) -> Any:
    cases = [{"case": {"$eq": ["$i", -key]}, "then": key} for key in range(1, count)]
    return {"$switch": {"branches": cases, "default": 0}}


def _deep(depth: int) -> Any:
    expression: Any = 1
    for _ in range(depth):
        expression = {"$add": [expression, "$i"]}
    return expression


def _attack(name: str, expression: Any) -> Attack:
    return repeated(name, computing(expression))


ATTACKS = (
    repeated("$reduce that doubles an array", _doubling("$concatArrays", [1])),
    repeated("$reduce that doubles a string", _doubling("$concat", "a")),
    _attack("$map in $map in $map of 1,000 each", _mapped(3)),
    _attack("$range of 4,000,000", {"$range": [0, 4_000_000]}),
    _attack("$filter of 1,000,000", {"$filter": {"input": MILLION, "cond": {"$lt": ["$$this", 0]}}}),
    _attack("$zip of five arrays of 500,000", {"$zip": {"inputs": [{"$range": [0, 500_000]}] * 5}}),
    _attack("$setUnion of arrays of 1,000,000", {"$setUnion": [MILLION, {"$range": [500_000, 1_500_000]}]}),
    _attack("$setDifference of arrays of 1,000,000", {"$setDifference": [MILLION, {"$range": [500_000, 1_500_000]}]}),
    _attack("$sortArray of 1,000,000", {"$sortArray": {"input": MILLION, "sortBy": -1}}),
    _attack("$reverseArray and $slice of 1,000,000", {"$slice": [{"$reverseArray": MILLION}, 5, 1_000_000]}),
    _attack("$indexOfArray of 1,000,000", [{"$indexOfArray": [MILLION, -1]}, {"$in": [-1, MILLION]}]),
    _attack("$firstN and $maxN of 1,000,000", {"$maxN": {"input": MILLION, "n": 500_000}}),
    _attack("$sum, $avg, $max and $stdDevPop of 1,000,000", [
        {operator: MILLION} for operator in ("$sum", "$avg", "$max", "$stdDevPop")]),
    _attack("$objectToArray of $arrayToObject of 200,000", {"$objectToArray": {"$arrayToObject": {"$map": {
        "input": {"$range": [0, 200_000]}, "in": {"k": {"$toString": "$$this"}, "v": 1}}}}}),
    _attack("arrays of 1,000,000 compared", [{"$eq": [MILLION, MILLION]}, {"$cmp": [MILLION, MILLION]}]),
    repeated("$split of 4 MB into letters", of_text({"$size": {"$split": [
        {"$replaceAll": {"input": "$t", "find": "a", "replacement": "a "}}, " "]}})),
    repeated("$indexOfCP in 4 MB", of_text({"$indexOfCP": ["$t", "aaaaaaaaaab"]})),
    repeated("$replaceAll in 4 MB", of_text({"$strLenCP": {"$replaceAll": {
        "input": "$t", "find": "a", "replacement": "bc"}}})),
    repeated("$toUpper, $trim and $strcasecmp of 4 MB", of_text([
        {"$strLenCP": {"$toUpper": "$t"}}, {"$trim": {"input": "$t", "chars": "a"}}, {"$strcasecmp": ["$t", "$t"]}])),
    repeated("$switch of 10,000 branches", aggregating(
        {"$documents": [{"i": key} for key in range(1000)]}, {"$project": {"x": _branches(10_000)}})),
    repeated("expressions nested 80 deep over a collection", aggregating(
        {"$documents": [{"i": key} for key in range(10_000)]}, {"$project": {"x": _deep(80)}}, {"$match": {"x": -1}})),
)  # fmt: skip
