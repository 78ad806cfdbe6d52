"""Attacks on what the server holds for a client: connections, cursors, sessions, transactions, streams, history."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from bson import Binary, Int64
from messages import command, reply_document
from target import receive

from attacks.attacker import DATABASE, Attack, Attacker, aggregating
from attacks.wire import exchange


def _session() -> dict[str, Any]:
    return {"id": Binary(os.urandom(16), 4)}


def _connections(attacker: Attacker) -> None:
    connections: list[socket.socket] = []
    ping = command({"ping": 1}, "admin")
    while attacker.seconds_left > 0:
        try:
            connections.append(attacker.connect())
            connections[-1].sendall(ping)
            attacker.count(receive(connections[-1]))
        except OSError as error:
            attacker.answers[type(error).__name__] += 1
            time.sleep(0.1)
        if len(connections) >= 900:
            for connection in connections:
                connection.close()
            connections.clear()


def _cursors(attacker: Attacker) -> None:
    attacker.repeat({"find": "c", "batchSize": 1})


def _snapshot_cursors(attacker: Attacker) -> None:
    attacker.repeat({"find": "c", "batchSize": 1, "readConcern": {"level": "snapshot"}})


def _stream_cursors(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        stages = [{"$changeStream": {}}, {"$match": {"fullDocument.n": number}}]
        attacker.ask({"aggregate": "c", "pipeline": stages, "cursor": {}})


def _sessions(attacker: Attacker) -> None:
    number = 0
    while attacker.seconds_left > 0:
        number += 1
        attacker.ask({"update": "c", "updates": [{"q": {"_id": number % 1000}, "u": {"$inc": {"x": 1}}}],
                      "lsid": _session(), "txnNumber": Int64(1)})  # fmt: skip


def _ended_sessions(attacker: Attacker) -> None:
    attacker.repeat({"endSessions": [_session() for _ in range(10_000)]}, "admin")


def _transaction(session: dict[str, Any], *, first: bool) -> dict[str, Any]:
    begun = {"startTransaction": True} if first else {}
    return {"lsid": session, "txnNumber": Int64(1), "autocommit": False, **begun}


def _transactions(attacker: Attacker) -> None:
    number = 10_000
    while attacker.seconds_left > 0:
        number += 1
        attacker.ask({"insert": "c", **_transaction(_session(), first=True)}, documents=[{"_id": number}])


def _large_transactions(attacker: Attacker) -> None:
    session: dict[str, Any] = _session()
    begun = statements = 0
    while attacker.seconds_left > 0:
        reply = attacker.ask(
            {"insert": "t", **_transaction(session, first=not statements)},
            documents=[{"note": "x" * 10_000_000} for _ in range(4)],
        )
        statements += 1
        if reply.get("ok") != 1.0 or statements == 20:
            if reply.get("ok") == 1.0 and begun % 2:
                attacker.ask({"commitTransaction": 1, **_transaction(session, first=False)}, "admin")
            session, statements, begun = _session(), 0, begun + 1


def _many_statements(attacker: Attacker) -> None:
    while attacker.seconds_left > 0:
        session, first = _session(), True
        for _ in range(5):
            attacker.ask({"insert": "t", **_transaction(session, first=first)}, documents=[{"x": 1}] * 20_000)
            first = False
        attacker.ask({"find": "t", "filter": {"x": 2}, **_transaction(session, first=False)})
        attacker.ask({"commitTransaction": 1, **_transaction(session, first=False)}, "admin")


def _fixed_session(number: int) -> dict[str, Any]:
    return {"id": Binary(bytes([number]) * 16, 4)}


def _large_open_transactions(attacker: Attacker) -> None:
    attacker.fill(10, 10, "t")
    for number in range(2):
        for statement in range(5):
            attacker.ask({"insert": "t", **_transaction(_fixed_session(number), first=not statement)},
                         documents=[{"x": 1}] * 20_000)  # fmt: skip


def _large_commits(attacker: Attacker) -> None:
    for number in range(2):
        attacker.ask_message(
            command({"commitTransaction": 1, **_transaction(_fixed_session(number), first=False)}, "admin")
        )
    while attacker.seconds_left > 0:
        time.sleep(0.05)


def _idle_reader(attacker: Attacker) -> None:
    attacker.ask({"find": "c", "batchSize": 1, **_transaction(_session(), first=True)})
    update = {"q": {}, "u": [{"$set": {"note": {"$concat": ["$note", "x"]}}}], "multi": True}
    attacker.repeat({"update": "c", "updates": [update]})


def _watchers(attacker: Attacker) -> None:
    opening = command({"aggregate": "w", "pipeline": [{"$changeStream": {}}], "cursor": {}}, DATABASE)
    connections = [attacker.connect() for _ in range(800)]
    for connection in connections:
        connection.sendall(opening)
        cursor = Int64(reply_document(receive(connection))["cursor"]["id"])
        connection.sendall(command({"getMore": cursor, "collection": "w"}, DATABASE))
    while attacker.seconds_left > 0:
        attacker.ask({"insert": "w"}, documents=[{"note": "x" * 1000} for _ in range(10)])
        time.sleep(0.05)
    for connection in connections:
        receive(connection)
        attacker.answers["watcher ok"] += 1


def _wide_watchers(attacker: Attacker) -> None:
    connections = [attacker.connect() for _ in range(400)]
    for number, connection in enumerate(connections):
        stages = [{"$changeStream": {"fullDocument": "updateLookup"}},
                  {"$match": {"$expr": {"$ne": [{"$size": {"$range": [0, 2000]}}, number]}}},
                  {"$set": {"x": number}}]  # fmt: skip
        connection.sendall(command({"aggregate": "w", "pipeline": stages, "cursor": {}}, DATABASE))
        cursor = Int64(reply_document(receive(connection))["cursor"]["id"])
        connection.sendall(command({"getMore": cursor, "collection": "w"}, DATABASE))
    while attacker.seconds_left > 0:
        attacker.ask({"insert": "w"}, documents=[{"note": "x" * 100} for _ in range(100)])
        time.sleep(0.2)


def _backlog(attacker: Attacker) -> None:
    attacker.fill(100_000)
    attacker.fill(10, 10_000_000, "large")


def _from_the_beginning(stages: list[dict[str, Any]], collection: str = "c") -> Any:
    def run(attacker: Attacker) -> None:
        first = attacker.ask({"find": "oplog.rs", "limit": 1}, "local")["cursor"]["firstBatch"][0]["ts"]
        opening = [{"$changeStream": {"startAtOperationTime": first}}, *stages]
        while attacker.seconds_left > 0:
            cursor = attacker.ask({"aggregate": collection, "pipeline": opening, "cursor": {}})["cursor"]["id"]
            while attacker.seconds_left > 0:
                body = {"getMore": Int64(cursor), "collection": collection, "batchSize": 100_000, "maxTimeMS": 1}
                document = attacker.ask_message(command(body, DATABASE))
                if document.get("ok") != 1.0 or not document["cursor"]["nextBatch"]:
                    break

    return run


def _get_mores(attacker: Attacker) -> None:
    block = command({"getMore": Int64(12345), "collection": "c"}, DATABASE) * 1000
    while attacker.seconds_left > 0:
        exchange(attacker, block, 1000)


def _old_reader(attacker: Attacker) -> None:
    session, first = _fixed_session(1), True
    reads: list[dict[str, Any]] = [
        {"find": "t", "filter": {"n": {"$gte": 0}}}, {"find": "t", "filter": {"_id": {"$gte": 0}}}, {"find": "t"},
        {"find": "t", "sort": {"n": -1}, "hint": "n_1"}, {"distinct": "t", "key": "n"},
        {"aggregate": "t", "pipeline": [{"$count": "n"}], "cursor": {}},
    ]  # fmt: skip
    while attacker.seconds_left > 0:
        for read in reads:
            attacker.ask({**read, **_transaction(session, first=first)})
            if first:
                for start in range(0, 100_000, 10_000):
                    attacker.ask({"insert": "t"}, documents=[
                        {"_id": 1000 + start + number, "n": start + number} for number in range(10_000)])  # fmt: skip
            first = False


def _indexed(attacker: Attacker) -> None:
    attacker.fill(10, 10, "t")
    attacker.ask({"createIndexes": "t", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})


def _many(attacker: Attacker) -> None:
    attacker.fill(1000)


def _on_connections(count: int, body: dict[str, Any]) -> Any:
    """A run that sends the command on `count` connections at once, again and again."""

    def run(attacker: Attacker) -> None:
        connections = [attacker.connect() for _ in range(count)]
        while attacker.seconds_left > 0:
            attacker.send_all(connections, body)

    return run


def _computing(expression: Any) -> dict[str, Any]:
    """An aggregate that computes one number for each document and returns their sum."""
    return aggregating({"$group": {"_id": None, "x": {"$sum": expression}}}, collection="c")


RANGE = {"$range": [0, 3_900_000]}
_THREE_RANGES = {"$let": {
    "vars": {"a": RANGE, "b": RANGE, "c": RANGE},
    "in": {"$add": [{"$sum": "$$a"}, {"$sum": "$$b"}, {"$sum": "$$c"}]},
}}  # fmt: skip
_TEXTS = {"$size": {"$map": {"input": {"$range": [0, 1_000_000]}, "in": {"$toString": "$$this"}}}}
_IN_DOCUMENTS = {"find": "c", "filter": {"n": {"$in": [{"a": number} for number in range(150_000)]}}}


def _few(attacker: Attacker) -> None:
    attacker.fill(300)


def _transactions_of_15_mb(attacker: Attacker) -> None:
    for number in range(60):
        attacker.ask({"insert": "t", **_transaction(_fixed_session(number), first=True)},
                     documents=[{"note": "x" * 15_000_000}])  # fmt: skip
    while attacker.seconds_left > 0:
        time.sleep(0.05)


def _views_of_14_mb(attacker: Attacker) -> None:
    pipeline = [{"$match": {"n": {"$in": ["x" * 1000 + str(number) for number in range(14_000)]}}}]
    for number in range(60):
        attacker.ask({"create": f"v{number}", "viewOn": "c", "pipeline": pipeline})
    attacker.close()
    while attacker.seconds_left > 0:
        time.sleep(0.05)


ATTACKS = (
    Attack("connections opened by the hundred", _connections),
    Attack("cursors opened and left", _cursors, _many),
    Attack("cursors at snapshots opened and left", _snapshot_cursors, _many),
    Attack("change streams opened and left", _stream_cursors, _many),
    Attack("retryable writes of sessions used once", _sessions, _many),
    Attack("endSessions of 10,000", _ended_sessions),
    Attack("transactions opened and left", _transactions, _many),
    Attack("transactions of 800 MB", _large_transactions),
    Attack("commits of transactions of 100,000 documents", _large_commits, _large_open_transactions),
    Attack("transactions of 100,000 documents", _many_statements, lambda attacker: attacker.fill(10, 10, "t")),
    Attack("an idle transaction beside updates of everything", _idle_reader, lambda attacker: attacker.fill(
        1000, 10_000)),
    Attack("a transaction that walks over 100,000 documents which came later", _old_reader, _indexed),
    Attack("800 watchers of one collection", _watchers),
    Attack("400 watchers with filters of 2,000 steps", _wide_watchers),
    Attack("a stream 100,000 events behind", _from_the_beginning([]), _backlog),
    Attack("a stream behind that matches nothing", _from_the_beginning([{"$match": {"fullDocument.note": "none"}}]),
           _backlog),
    Attack("a stream of events of 10 MB", _from_the_beginning([], "large"), _backlog),
    Attack("getMores of a cursor that does not exist", _get_mores),
    Attack("30 aggregates of ranges of 3,900,000", _on_connections(30, _computing({"$sum": RANGE})), _few),
    Attack("60 aggregates of three such ranges in a $let", _on_connections(60, _computing(_THREE_RANGES)), _few),
    Attack("40 aggregates of arrays of 1,000,000 texts", _on_connections(40, _computing(_TEXTS)), _few),
    Attack("60 open transactions of 15 MB", _transactions_of_15_mb, lambda attacker: attacker.fill(10, 10, "t")),
    Attack("60 views with pipelines of 14 MB", _views_of_14_mb, _few),
    Attack("40 filters with $in of 150,000 documents", _on_connections(40, _IN_DOCUMENTS), _few),
)  # fmt: skip
