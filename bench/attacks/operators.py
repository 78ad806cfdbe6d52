"""Attacks with operators on large values: long texts, arrays and documents of hundreds of thousands of values."""

from __future__ import annotations

from typing import Any

from bson import Int64

from attacks.attacker import Attack, Attacker, aggregating, computing, over, repeated
from attacks.expressions import MILLION, of_text

LARGE = {"$map": {"input": {"$range": [0, 100_000]}, "in": {"a": "$$this", "b": {"c": ["$$this", "x"]}}}}
"""An expression for an array of 100,000 documents."""
FIELDS = {"$arrayToObject": {"$map": {"input": {"$range": [0, 200_000]}, "in": {"k": {"$toString": "$$this"}, "v": 1}}}}
"""An expression for a document of 200,000 fields."""


def _numbers(attacker: Attacker) -> None:
    attacker.fill(20_000)


def _hundred_thousand(attacker: Attacker) -> None:
    attacker.fill(100_000)


def _large_array(attacker: Attacker) -> None:
    attacker.insert([{"_id": 1, "a": [{"b": key} for key in range(200_000)], "n": list(range(200_000))}])


def _large_documents(attacker: Attacker) -> None:
    for key in range(2):
        attacker.insert([{"_id": key, "a": [{"b": number, "c": "x"} for number in range(300_000)]}])


def _strings(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "s": f"{key:07}" * 10} for key in range(100_000)])


def _chain(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "next": key + 1} for key in range(20_000)])


def _compared(name: str, expression: Any) -> Attack:
    return repeated(name, computing([expression]))


def _update(name: str, change: Any, prepare: Any = _large_array, **options: Any) -> Attack:
    return repeated(name, {"update": "c", "updates": [{"q": {"_id": 1}, "u": change, **options}]}, prepare)


def _each(operator: str, value: Any) -> dict[str, Any]:
    return {operator: {"n": {"$each": value}}}


def _indexes(attacker: Attacker) -> None:
    specs = [{"key": {f"f{key}": 1, "n": 1}, "name": f"i{key}", "unique": True} for key in range(60)]
    while attacker.seconds_left > 0:
        attacker.ask({"createIndexes": "c", "indexes": specs})
        attacker.ask({"dropIndexes": "c", "index": "*"})


def _two_indexes(attacker: Attacker) -> None:
    attacker.fill(20_000)
    attacker.ask({"createIndexes": "c", "indexes": [{"key": {name: 1}, "name": name} for name in ("n", "note")]})


def _planned(attacker: Attacker) -> None:
    slow = {"$filter": {"input": {"$range": [0, 100_000]}, "cond": {"$lt": ["$$this", 0]}}}
    number = 0
    while attacker.seconds_left > 0:
        number += 1  # another shape, so that a plan is chosen anew
        spec = {"n": {"$gt": 0}, "note": {"$gt": ""}, f"f{number}": None, "$expr": {"$eq": [{"$size": slow}, 0]}}
        attacker.ask({"find": "c", "filter": spec, "limit": 1})


def _modifications(attacker: Attacker) -> None:
    schema = {"properties": {f"f{key}": {"bsonType": "string", "minLength": key % 10} for key in range(50_000)}}
    while attacker.seconds_left > 0:
        attacker.ask({"collMod": "c", "validator": {"$jsonSchema": schema}})
        attacker.ask({"collMod": "c", "validator": {}})


def _databases(attacker: Attacker) -> None:
    for key in range(3000):
        attacker.ask({"create": "c"}, f"d{key}")


def _schema(attacker: Attacker) -> None:
    schema = {"properties": {f"f{key}": {"bsonType": ["string", "int"], "minimum": key} for key in range(50_000)}}
    attacker.repeat({"find": "c", "filter": {"$jsonSchema": schema}})


def _hashed_in(attacker: Attacker) -> None:
    documents = [{"a": key, "b": f"{key}"} for key in range(100_000)]
    texts = [f"{key}" for key in range(100_000)]
    attacker.repeat({"find": "c", "filter": {"n": {"$in": documents}, "note": {"$nin": texts}}})


def _killed_cursors(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        body = aggregating(over(150_000), {"$group": {"_id": "$i", "n": {"$sum": 1}}})
        cursor = attacker.ask({**body, "cursor": {"batchSize": 1}})
        if "cursor" in cursor:
            attacker.ask({"killCursors": "$cmd.aggregate", "cursors": [cursor["cursor"]["id"]]})


def _killed_among_many(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        ids = [attacker.ask({"find": "c", "batchSize": 1})["cursor"]["id"] for _ in range(100)]
        attacker.ask({"killCursors": "c", "cursors": [*map(Int64, ids), *map(Int64, range(1, 300_000))]})


ATTACKS = (
    repeated("$regexFindAll, $regexMatch and $regexFind of 4 MB", of_text([
        {"$regexFindAll": {"input": "$t", "regex": "b"}}, {"$regexMatch": {"input": "$t", "regex": "a{1000}b"}},
        {"$regexFind": {"input": "$t", "regex": "[^a]"}}])),
    repeated("$substrCP, $substrBytes and $strLenBytes of 4 MB, again and again", of_text({"$map": {
        "input": {"$range": [0, 10_000]}, "in": {"$strLenBytes": {"$substrBytes": [
            {"$substrCP": ["$t", "$$this", 4_000_000]}, 1, 3_000_000]}}}})),
    repeated("$indexOfBytes in 4 MB, again and again", of_text({"$map": {
        "input": {"$range": [0, 10_000]}, "in": {"$indexOfBytes": ["$t", "aaaaaaab"]}}})),
    repeated("$trim of 4 MB by 20,000 characters", of_text({"$trim": {
        "input": "$t", "chars": "".join(map(chr, range(0x4E00, 0x9C00))) + "a"}})),
    repeated("conversions of 4 MB", of_text([
        {"$convert": {"input": "$t", "to": to, "onError": 0, "format": "base64"}}
        for to in ("int", "long", "double", "decimal", "date", "objectId", "binData", "string")])),
    repeated("numbers of 4 MB of digits", of_text([
        {"$convert": {"to": to, "onError": 0, "input": {
            "$replaceAll": {"input": "$t", "find": "a", "replacement": "7"}}}}
        for to in ("int", "long", "double", "decimal", "date")])),
    repeated("texts of 4 MB compared, again and again", of_text({"$map": {
        "input": {"$range": [0, 10_000]}, "in": {"$cmp": [{"$concat": ["$t", "x"]}, {"$concat": ["$t", "y"]}]}}})),
    _compared("$dateToString of 200,000", {"$map": {"input": {"$range": [0, 200_000]}, "in": {
        "$dateToString": {"timezone": "Europe/Berlin", "date": {
            "$toDate": {"$multiply": ["$$this", Int64(86_400_000)]}}}}}}),
    _compared("$sortArray of 100,000 documents", {"$sortArray": {"input": LARGE, "sortBy": {"b.c": -1, "a": 1}}}),
    _compared("$setUnion and $setDifference of 100,000 documents", {"$setUnion": [
        LARGE, {"$setDifference": [LARGE, [1]]}]}),
    _compared("$setEquals, $setIsSubset and $setIntersection of 1,000,000", {"$concatArrays": [
        [{"$setEquals": [MILLION, MILLION]}, {"$setIsSubset": [MILLION, MILLION]}],
        {"$setIntersection": [MILLION, MILLION]}]}),
    _compared("arrays of 100,000 documents compared", {"$map": {
        "input": {"$range": [0, 100]}, "in": {"$eq": [LARGE, LARGE]}}}),
    _compared("$mergeObjects and $setField of 200,000 fields", {"$objectToArray": {"$mergeObjects": [
        FIELDS, {"$setField": {"field": "x", "input": FIELDS, "value": 1}}, FIELDS]}}),
    repeated("$setField of 200,000 fields, again and again", aggregating(
        {"$documents": [{}]}, {"$project": {"x": FIELDS}}, {"$project": {"y": {"$map": {
            "input": {"$range": [0, 10_000]}, "in": {"$eq": [1, {"$setField": {
                "field": "x", "input": "$x", "value": 1}}]}}}}}, {"$match": {"y": -1}})),
    repeated("$slice of 1,000,000, again and again", aggregating(
        {"$documents": [{}]}, {"$project": {"x": MILLION}}, {"$project": {"y": {"$map": {
            "input": {"$range": [0, 10_000]}, "in": {"$size": {"$slice": ["$x", 900_000]}}}}}}, {"$match": {"y": -1}})),
    repeated("documents of 15 MB compared", aggregating({"$lookup": {"from": "c", "let": {"a": "$a"}, "pipeline": [
        {"$match": {"$expr": {"$lt": ["$a", "$$a"]}}}], "as": "x"}}, {"$match": {"x": 1}}, collection="c"),
        _large_documents),
    repeated("a group by documents of 15 MB", aggregating({"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$match": {
        "n": -1}}, collection="c"), _large_documents),
    repeated("a sort by arrays of 300,000 elements", {"find": "c", "sort": {"a.b": 1, "a.c": -1}}, _large_documents),
    repeated("$elemMatch and $all of 300,000 elements", {"find": "c", "filter": {
        "a": {"$elemMatch": {"b": -1}}, "a.b": {"$all": [-1, -2]}, "a.c": {"$ne": "x"}}}, _large_documents),
    repeated("$bitsAllSet of 300,000 elements", {"find": "c", "filter": {"a.b": {"$bitsAllSet": [40, 50]}}},
             _large_documents),
    Attack("$jsonSchema of 50,000 properties", _schema, _numbers),
    Attack("$in and $nin of 100,000 documents and strings", _hashed_in, _hundred_thousand),
    repeated("$facet of 50 branches", aggregating(over(20_000), {"$facet": {
        f"f{n}": [{"$match": {"i": -1}}] for n in range(50)}})),
    repeated("$unionWith in $unionWith in $unionWith", aggregating({"$unionWith": {"coll": "c", "pipeline": [
        {"$unionWith": {"coll": "c", "pipeline": [{"$unionWith": {"coll": "c", "pipeline": [
            {"$unionWith": "c"}]}}]}}]}}, {"$match": {"x": 1}}, collection="c"), _hundred_thousand),
    repeated("$graphLookup along a chain of 20,000", aggregating({"$match": {"_id": {"$lt": 3}}}, {"$graphLookup": {
        "from": "c", "startWith": "$next", "connectFromField": "next", "connectToField": "_id", "as": "x"}},
        {"$project": {"n": {"$size": "$x"}}}, collection="c"), _chain),
    repeated("$bucket of 200,000 boundaries", aggregating(over(100_000), {"$bucket": {
        "groupBy": "$i", "boundaries": list(range(200_000))}}, {"$match": {"_id": -1}})),
    repeated("$densify of dates into 500,000", aggregating({"$documents": [
        {"t": {"$toDate": Int64(0)}}, {"t": {"$toDate": Int64(499_000_000)}}]}, {"$densify": {
            "field": "t", "range": {"step": 1, "unit": "second", "bounds": "full"}}}, {"$match": {"t": 1}})),
    repeated("$median of 1,000,000", computing([{"$median": {"input": MILLION, "method": "approximate"}}])),
    repeated("window functions over 50,000", aggregating(over(50_000), {"$setWindowFields": {
        "sortBy": {"i": 1}, "output": {
            "a": {"$addToSet": "$i", "window": {"documents": [-50, 50]}}, "d": {"$denseRank": {}},
            "e": {"$expMovingAvg": {"input": "$i", "N": 20}}, "l": {"$linearFill": "$i"},
            "h": {"$shift": {"output": "$i", "by": -1}},
            "m": {"$median": {"input": "$i", "method": "approximate"}, "window": {"documents": [-500, 500]}}}}},
        {"$match": {"i": -1}})),
    repeated("distinct of 100,000 strings", {"distinct": "c", "key": "s"}, _strings),
    repeated("distinct of arrays of 300,000", {"distinct": "c", "key": "a.b"}, _large_documents),
    Attack("cursors over 150,000 groups killed", _killed_cursors),
    _update("$addToSet of 100,000 into an array of 200,000", _each("$addToSet", list(range(199_000, 299_000)))),
    _update("$addToSet of documents into an array of 200,000", {"$addToSet": {"a": {"b": -1, "c": 1}}}),
    _update("$pull by a condition from an array of 200,000", {"$pull": {"a": {"b": {"$lt": -1}}}}),
    _update("$pullAll of 100,000 from an array of 200,000", {"$pullAll": {"n": list(range(-100_000, 0))}}),
    _update("$push of 100,000 in front of an array of 200,000", {"$push": {"n": {
        "$each": list(range(100_000)), "$position": 0, "$slice": 200_000}}}),
    _update("$rename and $unset of an array of 200,000", {"$rename": {"a": "z"}, "$unset": {"n": 1}}, upsert=True),
    _update("an update by a pipeline of an array of 200,000", [{"$set": {"a": {"$map": {
        "input": "$a", "in": {"b": {"$add": ["$$this.b", 1]}}}}}}]),
    _update("$set of 100,000 fields", {"$set": {f"f{key}": key for key in range(100_000)}}),
    _update("a replacement by 1,000,000 elements", {"a": list(range(1_000_000))}),
    Attack("60 unique indexes over 20,000 documents", _indexes, _numbers),
    Attack("plans chosen by documents that take long to look at", _planned, _two_indexes),
    Attack("collMod with a schema of 50,000 properties", _modifications, _numbers),
    Attack("listDatabases of 3,000", lambda attacker: attacker.repeat({"listDatabases": 1}, "admin"), _databases),
    Attack("killCursors of 300,000", _killed_among_many, _numbers),
)  # fmt: skip
