"""Attacks with commands that read, and with commands of the server."""

from __future__ import annotations

from typing import Any

from bson import Int64

from attacks.attacker import Attack, Attacker, repeated


def _hundred_thousand(attacker: Attacker) -> None:
    attacker.fill(100_000)


def _large(attacker: Attacker) -> None:
    for key in range(20):
        attacker.insert([{"_id": key, "note": "x" * 15_000_000}])


def _wide(attacker: Attacker) -> None:
    attacker.insert([{"_id": key, "a": list(range(1_000_000))} for key in range(2)])


def _collections(attacker: Attacker) -> None:
    for key in range(3000):
        attacker.ask({"create": f"c{key}"})


def _views(attacker: Attacker) -> None:
    attacker.fill(5000)
    for key in range(18):
        attacker.ask({"create": f"v{key}", "viewOn": f"v{key - 1}" if key else "c", "pipeline": [
            {"$set": {f"f{key}": {"$add": ["$n", key]}}}]})  # fmt: skip


def _cursors_read(attacker: Attacker) -> None:
    cursor: Any = 0
    while attacker.seconds_left > 0:
        body = (
            {"getMore": Int64(cursor), "collection": "c", "batchSize": 1} if cursor else {"find": "c", "batchSize": 1}
        )
        cursor = attacker.ask_message(attacker_message(body))["cursor"]["id"]


def attacker_message(body: dict[str, Any]) -> bytes:
    from messages import command

    from attacks.attacker import DATABASE

    return command(body, DATABASE)


def _alternating(*bodies: dict[str, Any], database: str = "admin") -> Any:
    def run(attacker: Attacker) -> None:
        while attacker.seconds_left > 0:
            for body in bodies:
                attacker.ask(body, database)

    return run


NONE = {"note": {"$regex": "none"}}
ATTACKS = (
    repeated("a find that matches nothing of 100,000", {"find": "c", "filter": NONE}, _hundred_thousand, processes=4),
    repeated("batches of 16 MB", {"find": "c", "batchSize": 100_000}, _hundred_thousand),
    repeated("documents of 15 MB", {"find": "c", "filter": {"x": 1}}, _large),
    repeated("documents of 1,000,000 elements", {"find": "c", "filter": {"a": -1}}, _wide),
    repeated("a projection of documents of 1,000,000 elements", {
        "find": "c", "projection": {"a": {"$slice": -500_000}}}, _wide),
    repeated("distinct of 100,000 values", {"distinct": "c", "key": "n"}, _hundred_thousand),
    repeated("count of 100,000 by a filter", {"count": "c", "query": NONE}, _hundred_thousand),
    repeated("count over a view over 18 views", {"count": "v17"}, _views),
    repeated("validate of 100,000 documents", {"validate": "c"}, _hundred_thousand),
    Attack("a cursor of 100,000 read one by one", _cursors_read, _hundred_thousand),
    repeated("listCollections of 3,000", {"listCollections": 1, "cursor": {"batchSize": 10_000}}, _collections),
    Attack("dbStats and listDatabases over 3,000 collections", _alternating(
        {"dbStats": 1}, database="attacked"), _collections),
    Attack("serverStatus, currentOp, getLog, getParameter", _alternating(
        {"serverStatus": 1}, {"currentOp": 1}, {"getLog": "global"}, {"getParameter": "*"}, {"listDatabases": 1})),
    repeated("$where and $text", {"find": "c", "filter": {"$where": "while (true) {}"}}, _hundred_thousand),
)  # fmt: skip
