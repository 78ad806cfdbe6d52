"""Attacks with aggregation stages."""

from __future__ import annotations

from typing import Any

from attacks.attacker import Attack, Attacker, aggregating, over, repeated

ARRAY = list(range(1000))
CROSS = (
    {"$documents": [{"a": ARRAY, "b": ARRAY, "c": ARRAY}]},
    {"$unwind": "$a"}, {"$unwind": "$b"}, {"$unwind": "$c"},
)  # fmt: skip
TWO_MILLION = (
    {"$documents": [{"a": list(range(2000)), "b": ARRAY}]},
    {"$unwind": "$a"}, {"$unwind": "$b"},
)  # fmt: skip
NONE = {"$match": {"x": "none"}}


def _numbers(attacker: Attacker) -> None:
    attacker.fill(20_000)


def _large(attacker: Attacker) -> None:
    attacker.fill(2_000, 50_000)


def _graph(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "to": [(key * 7 + step) % 5000 for step in range(20)]} for key in range(5000)])


def _deep_documents(attacker: Attacker) -> None:
    level: dict[str, Any] = {"level": 1}
    for _ in range(8):
        level = {"level": 1, "a": level, "b": level}
    attacker.insert([{"_id": key, **level} for key in range(500)])


def _words(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "word": f"Straße Éclair {key * 7919 % 20000:x}" * 3} for key in range(20_000)])


def _many_stages(attacker: Attacker) -> None:
    attacker.repeat(aggregating(*[{"$set": {f"f{key}": {"$add": ["$n", key]}}} for key in range(990)], collection="c"))


def _sixteen_megabytes(attacker: Attacker) -> None:
    documents = [{"i": key, "a": [key] * 20} for key in range(40_000)]
    attacker.repeat(aggregating({"$documents": documents}, {"$match": {"i": -1}}))


def _group(name: str, accumulator: Any, key: Any = None) -> Attack:
    stage = {"$group": {"_id": key, "x": accumulator}}
    return repeated(name, aggregating(*TWO_MILLION, stage, {"$match": {"_id": "none"}}))


def _joined(name: str, stage: Any) -> Attack:
    return repeated(name, aggregating(stage, NONE, collection="c"), _numbers)


ATTACKS = (
    repeated("$unwind of 1,000 × 1,000 × 1,000", aggregating(*CROSS, NONE)),
    _group("$group of 2,000,000 groups", {"$sum": 1}, {"a": "$a", "b": "$b"}),
    _group("$group with $push of 2,000,000", {"$push": "$$ROOT"}),
    _group("$group with $addToSet of 2,000,000", {"$addToSet": {"a": "$a", "b": "$b"}}),
    _group("$group with $mergeObjects and $maxN", {"$maxN": {"input": "$b", "n": 1000}}, "$a"),
    repeated("$sort of 2,000,000 documents", aggregating(*TWO_MILLION, {"$sort": {"b": -1, "a": 1}}, NONE)),
    repeated("$sort of 100 MB", aggregating({"$sort": {"note": 1, "n": -1}}, NONE, collection="c"), _large),
    repeated("a find sorted by a field without an index", {"find": "c", "sort": {"n": -1}, "batchSize": 1}, _large),
    repeated("$sort by a collation", {**aggregating({"$sort": {"word": 1}}, NONE, collection="c"),
             "collation": {"locale": "de", "strength": 1}}, _words),
    repeated("$setWindowFields with moving ranges", aggregating(over(20_000), {"$setWindowFields": {
        "sortBy": {"i": 1}, "output": {
            "s": {"$sum": "$i", "window": {"documents": [-1000, 1000]}},
            "m": {"$max": "$i", "window": {"range": [-1000, 1000]}},
            "p": {"$push": "$i", "window": {"documents": [-100, 100]}}}}}, NONE)),
    repeated("$setWindowFields over one partition of 500,000", aggregating(
        {"$documents": [{"a": list(range(500)), "b": ARRAY}]}, {"$unwind": "$a"}, {"$unwind": "$b"},
        {"$setWindowFields": {"sortBy": {"b": 1, "a": 1}, "output": {
            "r": {"$rank": {}}, "s": {"$sum": "$a", "window": {"documents": ["unbounded", "current"]}}}}}, NONE)),
    repeated("$bucketAuto of 2,000,000", aggregating(
        *TWO_MILLION, {"$bucketAuto": {"groupBy": "$a", "buckets": 100}}, NONE)),
    repeated("$facet of ten groups", aggregating(
        over(50_000), {"$facet": {f"f{n}": [{"$group": {"_id": "$i"}}, {"$match": {"_id": -1}}] for n in range(10)}})),
    _joined("$lookup of every document with every other", {"$lookup": {
        "from": "c", "let": {"n": "$n"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$n", "$$n"]}}}, {"$count": "k"}],
        "as": "x"}}),
    _joined("$lookup by a field that all share", {"$lookup": {
        "from": "c", "localField": "note", "foreignField": "note", "as": "x"}}),
    repeated("$graphLookup through cycles", aggregating({"$graphLookup": {
        "from": "c", "startWith": "$to", "connectFromField": "to", "connectToField": "_id", "as": "x"}},
        {"$match": {"x": "none"}}, collection="c"), _graph),
    repeated("$densify of 500,000", aggregating({"$documents": [{"i": 0}, {"i": 499_000}]}, {"$densify": {
        "field": "i", "range": {"step": 1, "bounds": "full"}}}, NONE)),
    repeated("$fill of 100,000", aggregating(over(100_000), {"$fill": {
        "sortBy": {"i": 1}, "output": {"x": {"method": "locf"}, "y": {"method": "linear"}}}}, {"$match": {"x": 1}})),
    repeated("$redact of documents of 512 levels", aggregating(
        {"$redact": {"$cond": [{"$eq": ["$level", 1]}, "$$DESCEND", "$$PRUNE"]}}, NONE, collection="c"),
        _deep_documents),
    _joined("$unionWith of twenty collections", {"$unionWith": {"coll": "c", "pipeline": [
        {"$unionWith": "c"} for _ in range(20)]}}),
    Attack("a pipeline of 990 stages", _many_stages, _numbers),
    Attack("$documents of 10 MB", _sixteen_megabytes),
    repeated("$sample of a large collection", aggregating({"$sample": {"size": 1500}}, NONE, collection="c"), _large),
    repeated("$out of 2,000,000 documents", aggregating(*TWO_MILLION, {"$out": "made"})),
    repeated("$merge of 200,000 documents", aggregating(
        {"$documents": [{"a": list(range(200)), "b": ARRAY}]}, {"$unwind": "$a"}, {"$unwind": "$b"},
        {"$project": {"_id": {"a": "$a", "b": "$b"}}}, {"$merge": "merged"})),
    repeated("explain of $unwind of 1,000 × 1,000 × 1,000", {
        "explain": aggregating(*CROSS, NONE), "verbosity": "executionStats"}),
    repeated("explain of a find without an index", {
        "explain": {"find": "c", "filter": {"note": {"$regex": "y"}}}, "verbosity": "executionStats"}, _large),
)  # fmt: skip
