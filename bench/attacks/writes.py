"""Attacks with commands that write."""

from __future__ import annotations

from typing import Any

from attacks.attacker import DATABASE, Attack, Attacker, aggregating, nested, repeated
from attacks.patterns import BOMB, VICTIM


def _numbers(attacker: Attacker) -> None:
    attacker.fill(20_000)


def _hundred_thousand(attacker: Attacker) -> None:
    attacker.fill(100_000)


def _updates_without_index(attacker: Attacker) -> None:
    updates = [{"q": {"n": -key - 1}, "u": {"$inc": {"x": 1}}} for key in range(100_000)]
    attacker.repeat({"update": "c", "ordered": False}, updates=updates)


def _updates_by_id(attacker: Attacker) -> None:
    updates = [{"q": {"_id": key % 20_000}, "u": {"$inc": {"x": 1}}} for key in range(100_000)]
    attacker.repeat({"update": "c", "ordered": False}, updates=updates)


def _deletes_without_index(attacker: Attacker) -> None:
    attacker.repeat({"delete": "c", "ordered": False}, deletes=[{"q": {"n": -1}, "limit": 0} for _ in range(100_000)])


def _inserts(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        attacker.ask({"insert": "many"}, documents=[{"_id": key + number * 100_000} for key in range(100_000)])


def _duplicates(attacker: Attacker) -> None:
    attacker.repeat({"insert": "c", "ordered": False}, documents=[{"_id": key % 20_000} for key in range(100_000)])


def _large_inserts(attacker: Attacker) -> None:
    attacker.repeat({"insert": "large"}, documents=[{"note": "x" * 15_000_000} for _ in range(3)])


def _indexed_arrays(attacker: Attacker) -> None:
    attacker.ask({"createIndexes": "keys", "indexes": [{"key": {"n": 1}, "name": "n"}]})


def _many_keys(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        keys = range(number, 100_000 + number)
        attacker.ask({"insert": "keys"}, documents=[{"_id": number, "n": list(keys)}])
        replaced = [{"q": {"_id": number}, "u": {"n": [-key for key in keys]}}]
        attacker.ask({"update": "keys"}, updates=replaced)
        attacker.ask({"delete": "keys"}, deletes=[{"q": {"_id": number}, "limit": 1}])


def _bulk_write(attacker: Attacker) -> None:
    ops = [{"update": 0, "filter": {"n": -key - 1}, "updateMods": {"$set": {"x": 1}}} for key in range(100_000)]
    attacker.repeat({"bulkWrite": 1, "nsInfo": [{"ns": "attacked.c"}], "ordered": False}, "admin", ops=ops)


def _unique_index(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        attacker.ask({"createIndexes": "c", "indexes": [{"key": {"n": 1, "note": 1}, "name": "u", "unique": True}]})
        attacker.ask({"dropIndexes": "c", "index": "u"})


def _drop(attacker: Attacker) -> None:
    for key in range(4):
        attacker.fill(50_000, collection=f"c{key}")


def _drops(attacker: Attacker) -> None:
    attacker.ask({"renameCollection": "attacked.c0", "to": "attacked.c1", "dropTarget": True}, "admin")
    attacker.ask({"drop": "c1"})
    attacker.ask({"dropDatabase": 1})
    while attacker.seconds_left > 0:
        attacker.ask({"create": "c"})
        attacker.ask({"drop": "c"})


def _moved(attacker: Attacker) -> None:
    here, there = f"{DATABASE}.c", f"{DATABASE}2.c"
    while attacker.seconds_left > 0:
        attacker.ask({"renameCollection": here, "to": there}, "admin")
        here, there = there, here


def _thousands_of_collections(attacker: Attacker) -> None:
    for key in range(3000):
        attacker.ask({"create": f"c{key}"})


def _drop_thousands(attacker: Attacker) -> None:
    attacker.ask({"dropDatabase": 1})


def _expiring(attacker: Attacker) -> None:
    from datetime import UTC, datetime

    attacker.ask({"createIndexes": "c", "indexes": [{"key": {"at": 1}, "name": "t", "expireAfterSeconds": 3600}]})
    for start in range(0, 100_000, 10_000):
        attacker.insert([{"_id": key, "at": datetime(2020, 1, 1, tzinfo=UTC)} for key in range(start, start + 10_000)])


def _expire(attacker: Attacker) -> None:
    attacker.ask({"setParameter": 1, "ttlMonitorSleepSecs": 1}, "admin")
    attacker.ask({"collMod": "c", "index": {"name": "t", "expireAfterSeconds": 1}})
    while attacker.seconds_left > 0:
        attacker.ask({"count": "c"})


def _validated(attacker: Attacker) -> None:
    attacker.ask({"create": "c", "validator": {"$expr": {"$lt": [-1, {"$size": {
        "$filter": {"input": {"$range": [0, 100_000]}, "cond": {"$eq": ["$$this", "$n"]}}}}]}}})  # fmt: skip


def _inserts_validated(attacker: Attacker) -> None:
    attacker.repeat({"insert": "c"}, documents=[{"n": key} for key in range(1000)])


def _array_filters(attacker: Attacker) -> None:
    attacker.insert([{"_id": 1, "a": [{"b": key} for key in range(200_000)]}])


def _failing_inside(attacker: Attacker) -> None:
    value = nested(1200, "$add", array=True)
    attacker.repeat({"update": "c"}, updates=[{"q": {}, "u": [{"$set": {"x": value}}], "multi": True}])


def _update(name: str, change: Any, spec: Any = None) -> Attack:
    return repeated(
        name, {"update": "c", "updates": [{"q": spec or {}, "u": change, "multi": True}]}, _hundred_thousand
    )


ATTACKS = (
    Attack("100,000 updates in a message, without an index", _updates_without_index, _numbers),
    Attack("100,000 updates in a message, by _id", _updates_by_id, _numbers),
    Attack("100,000 deletes in a message, without an index", _deletes_without_index, _numbers),
    Attack("100,000 statements of bulkWrite, without an index", _bulk_write, _numbers),
    Attack("100,000 inserts in a message", _inserts),
    Attack("100,000 duplicate keys in a message", _duplicates, _numbers),
    Attack("inserts of 45 MB in a message", _large_inserts),
    Attack("100,000 keys of a document inserted, replaced and deleted", _many_keys, _indexed_arrays),
    _update("an update of 100,000 documents", {"$inc": {"x": 1}}),
    _update("an update of 100,000 documents by a pipeline", [{"$set": {"x": {"$add": ["$n", 1]}}}]),
    _update("an update with a pattern of nested repetition", {"$set": {"x": 1}}, {
        "$expr": {"$regexMatch": {"input": VICTIM, "regex": BOMB}}}),
    repeated("findAndModify without an index", {
        "findAndModify": "c", "query": {"note": "none"}, "update": {"$set": {"x": 1}}}, _hundred_thousand),
    repeated("findAndModify sorted without an index", {
        "findAndModify": "c", "query": {}, "sort": {"note": 1, "n": -1}, "update": {"$inc": {"x": 1}}},
        _hundred_thousand),
    repeated("an update of 200,000 elements by array filters", {"update": "c", "updates": [{
        "q": {"_id": 1}, "u": {"$inc": {"a.$[e].b": 1}}, "arrayFilters": [{"e.b": {"$gte": 0}}]}]}, _array_filters),
    repeated("$push with $sort into an array of 200,000", {"update": "c", "updates": [{
        "q": {"_id": 1}, "u": {"$push": {"a": {"$each": [{"b": -1}], "$sort": {"b": 1}}}}}]}, _array_filters),
    Attack("updates that fail inside", _failing_inside, _numbers),
    Attack("a validator of 100,000 steps", _inserts_validated, _validated),
    Attack("a unique index built over 100,000 documents", _unique_index, _hundred_thousand),
    Attack("large collections renamed and dropped", _drops, _drop),
    Attack("100,000 documents renamed into another database", _moved, _hundred_thousand),
    Attack("a database of 3,000 collections dropped", _drop_thousands, _thousands_of_collections),
    Attack("100,000 documents expire at once", _expire, _expiring),
    repeated("an update of a document of 16 MB", aggregating({"$match": {"_id": 1}}, {"$merge": "d"}, collection="c"),
             _array_filters),
)  # fmt: skip
