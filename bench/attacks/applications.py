"""The long commands of applications, beside which others may wait for 20 ms at the 99th percentile."""

from __future__ import annotations

from itertools import count
from typing import Any

from bson import Int64

from attacks.attacker import Attack, Attacker, aggregating, repeated

NONE: dict[str, Any] = {"$match": {"n": -1}}
GROUP: dict[str, Any] = {"$group": {"_id": {"$mod": ["$n", 1000]}, "sum": {"$sum": "$n"}, "last": {"$max": "$note"}}}
JOIN: dict[str, Any] = {"$lookup": {"from": "c", "localField": "n", "foreignField": "_id", "as": "same"}}


def _documents(attacker: Attacker) -> None:
    attacker.fill(100_000, 200)


def _megabytes(attacker: Attacker) -> None:
    attacker.fill(50, 1_000_000)


def _arrays(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "n": key, "a": list(range(key, key + 10_000))} for key in range(100)])


def _update_all(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        attacker.ask({"update": "c"}, updates=[{"q": {}, "u": {"$inc": {"x": 1}}, "multi": True}])


def _insert_and_delete(attacker: Attacker) -> None:
    for number in count():
        if attacker.seconds_left <= 0:
            return
        documents = [{"_id": f"{number} {key}", "note": "x" * 200} for key in range(10_000)]
        attacker.ask({"insert": "d"}, documents=documents)
        attacker.ask({"delete": "d"}, deletes=[{"q": {}, "limit": 0}])


def _build(attacker: Attacker) -> None:
    index = {"key": {"n": 1, "note": 1}, "name": "n"}
    while attacker.seconds_left > 0:
        attacker.ask({"createIndexes": "c", "indexes": [index]})
        attacker.ask({"dropIndexes": "c", "index": "n"})


def _build_over_arrays(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        attacker.ask({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
        attacker.ask({"dropIndexes": "c", "index": "a"})


def _transactions(attacker: Attacker) -> None:
    session = attacker.ask({"startSession": 1}, "admin")["id"]
    for number in count(1):
        if attacker.seconds_left <= 0:
            return
        fields = {"lsid": session, "autocommit": False, "txnNumber": Int64(number)}
        documents = [{"_id": f"{number} {key}", "n": key} for key in range(1000)]
        attacker.ask({"insert": "t", **fields, "startTransaction": True}, documents=documents)
        attacker.ask({"commitTransaction": 1, **fields}, "admin")


ATTACKS = (
    repeated("a scan of 100,000 documents", {"find": "c", "filter": {"n": -1}}, _documents),
    repeated("a scan of documents of 1 MB", {"find": "c", "filter": {"n": -1}}, _megabytes),
    repeated("a scan of arrays of 10,000", {"find": "c", "filter": {"a": -1}}, _arrays),
    repeated("a sort of 100,000", aggregating({"$sort": {"note": 1, "n": -1}}, NONE, collection="c"), _documents),
    repeated("a group of 100,000", aggregating(GROUP, NONE, collection="c"), _documents),
    repeated("a join of 100,000", aggregating(JOIN, NONE, collection="c"), _documents),
    repeated("$unwind of arrays of 10,000", aggregating({"$unwind": "$a"}, {"$match": {"a": -1}}, collection="c"),
             _arrays),
    Attack("updates of 100,000 documents", _update_all, _documents),
    Attack("inserts and deletes of 10,000 documents", _insert_and_delete),
    Attack("builds of an index over 100,000 documents", _build, _documents),
    Attack("builds of an index over arrays of 10,000", _build_over_arrays, _arrays),
    Attack("transactions of 1,000 inserts", _transactions),
)  # fmt: skip
