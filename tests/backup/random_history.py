"""A random history of a driven server: documents, transactions, catalog; and what can be seen of it at a moment."""

from __future__ import annotations

import random
from typing import Any

from bson import Binary, Int64

from headrace.dispatch.wait import Wait
from headrace.store.view import View
from headrace.testing.driven import DrivenServer

DATABASES = ("shop", "plant")
NAMES = ("a", "b", "c")


class RandomHistory:
    """Sends random commands. Refused ones are part of it."""

    def __init__(self, server: DrivenServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.seed = seed
        self._number = 0

    def step(self) -> None:
        """Send one command, or one transaction."""
        draw = self.random.random()
        if draw < 0.65:
            self._send(*self._write())
        elif draw < 0.8:
            self._transaction()
        else:
            self._send(*self._catalog())

    def _send(self, database: str, body: dict[str, Any]) -> Any:
        answer = self.server.run(database, body)
        while isinstance(answer, Wait):
            self._build()
            answer = self.server.run(database, body)
        return answer

    def _build(self) -> None:
        from headrace.store.indexes import index_builds

        store = self.server.store
        for uuid in list(store.catalog.builds):
            txn = store.begin()
            index_builds.resume(txn, uuid)
            store.commit(txn)

    def _write(self) -> tuple[str, dict[str, Any]]:
        draw, database, name = self.random, self.random.choice(DATABASES), self.random.choice(NAMES)
        key = draw.randrange(40)
        kind = draw.randrange(6)
        if kind == 0:
            self._number += 1
            documents = [self._document(draw.randrange(40)) for _ in range(draw.randrange(1, 6))]
            return database, {"insert": name, "documents": documents, "ordered": False}
        if kind == 1:
            change = draw.choice([
                {"$inc": {"n": 1}}, {"$push": {"list": draw.randrange(9)}}, {"$set": {"deep.x": draw.random()}},
                {"$unset": {"n": 1}}, {"$rename": {"n": "m"}}, {"$pull": {"list": draw.randrange(9)}},
                {"$set": {"list.0": "first"}}, {"$currentDate": {"at": True, "ts": {"$type": "timestamp"}}},
            ])  # fmt: skip
            return database, {"update": name, "updates": [{"q": {"g": key % 5}, "u": change, "multi": True}]}
        if kind == 2:
            return database, {
                "update": name, "updates": [{"q": {"_id": key}, "u": self._document(key), "upsert": True}],
            }  # fmt: skip
        if kind == 3:
            return database, {"delete": name, "deletes": [{"q": {"_id": {"$gt": key}}, "limit": draw.randrange(2)}]}
        if kind == 4:
            return database, {
                "findAndModify": name, "query": {"g": key % 5}, "update": [{"$set": {"sum": {"$add": ["$n", 1]}}}],
                "sort": {"_id": -1},
            }  # fmt: skip
        return database, {"insert": "capped", "documents": [{"n": draw.random(), "s": "x" * draw.randrange(300)}]}

    def _document(self, key: int) -> dict[str, Any]:
        draw = self.random
        return {
            "_id": key, "g": key % 5, "n": draw.randrange(100), "list": [draw.randrange(9) for _ in range(3)],
            "deep": {"x": draw.random(), "y": {"z": "é" * draw.randrange(20)}},
        }  # fmt: skip

    def _transaction(self) -> None:
        self._number += 1
        session = {"id": Binary(self.seed.to_bytes(8, "big") + self._number.to_bytes(8, "big"), 4)}
        generic: dict[str, Any] = {"lsid": session, "txnNumber": Int64(1), "autocommit": False}
        started = False
        for _ in range(self.random.randrange(1, 5)):
            database, body = self._write()
            if next(iter(body.values())) == "capped":
                continue
            answer = self.server.run(database, {**body, **generic, **({} if started else {"startTransaction": True})})
            if isinstance(answer, Wait) or not answer["ok"]:
                return
            started = True
        if started:
            end = "commitTransaction" if self.random.random() < 0.8 else "abortTransaction"
            self.server.run("admin", {end: 1, **generic})

    def _catalog(self) -> tuple[str, dict[str, Any]]:
        draw, database, name = self.random, self.random.choice(DATABASES), self.random.choice(NAMES)
        field = draw.choice(["n", "g", "list", "deep.x", "deep.$**"])
        ttl = {"key": {"at": 1}, "name": "ttl", "expireAfterSeconds": 99}
        hiding = {"name": draw.choice([field, "ttl"]), "hidden": draw.random() < 0.5}
        made: list[tuple[str, dict[str, Any]]] = [
            (database, {"create": name, "changeStreamPreAndPostImages": {"enabled": True}}),
            (database, {"create": "capped", "capped": True, "size": 4096, "max": 7}),
            (database, {"create": name, "collation": {"locale": "en", "strength": 2}}),
            (database, {"create": name, "validator": {"n": {"$exists": True}}, "validationLevel": "moderate"}),
            (database, {"createIndexes": name, "indexes": [{"key": {field: 1}, "name": field}]}),
            (database, {"createIndexes": name, "indexes": [
                {"key": {"n": -1, "g": 1}, "name": "two", "unique": True, "sparse": True},
                {"key": {"g": 1}, "name": "partial", "partialFilterExpression": {"n": {"$gt": 5}}},
            ]}),
            (database, {"createIndexes": name, "indexes": [ttl]}),
            (database, {"dropIndexes": name, "index": draw.choice([field, "two", "*"])}),
            (database, {"collMod": name, "index": hiding}),
            (database, {"collMod": name, "index": {"name": "ttl", "expireAfterSeconds": draw.randrange(1, 999)}}),
            (database, {"collMod": name, "validator": {"g": {"$type": "number"}}, "validationAction": "warn"}),
            (database, {"collMod": name, "changeStreamPreAndPostImages": {"enabled": draw.random() < 0.5}}),
            (database, {"drop": draw.choice([*NAMES, "capped", "view"])}),
            ("admin", {"renameCollection": f"{database}.{name}", "to": f"{database}.{draw.choice(NAMES)}",
                       "dropTarget": draw.random() < 0.5}),
            ("admin", {"renameCollection": f"{database}.{name}", "to": f"{draw.choice(DATABASES)}.{draw.choice(NAMES)}",
                       "dropTarget": True}),
            (database, {"create": "view", "viewOn": name, "pipeline": [{"$match": {"n": {"$gt": 3}}}]}),
            (database, {"collMod": "view", "viewOn": name, "pipeline": []}),
            (database, {"convertToCapped": name, "size": 8192}),
            ("admin", {"createUser": f"user{draw.randrange(3)}", "pwd": "secret", "roles": ["read"]}),
        ]  # fmt: skip
        if draw.random() < 0.01:
            return database, {"dropDatabase": 1}
        return draw.choice(made)

    def long_transaction(self) -> None:
        """Commit a transaction of over 16 MiB, whose entry is a chain."""
        self._number += 1
        session = {"id": Binary(self.seed.to_bytes(8, "big") + self._number.to_bytes(8, "big"), 4)}
        generic: dict[str, Any] = {"lsid": session, "txnNumber": Int64(1), "autocommit": False}
        for number in range(3):
            body = {"insert": "long", "documents": [{"_id": number, "text": "x" * (9 << 20)}]}
            self.server.must("shop", {**body, **generic, **({} if number else {"startTransaction": True})})
        self.server.must("admin", {"commitTransaction": 1, **generic})


def seen(server: DrivenServer) -> dict[str, Any]:
    """All that clients can see: collections with options and UUIDs, indexes, documents in natural order, images, and
    the oplog's end with the topics under which its entries are found."""
    state: dict[str, Any] = {}
    for item in server.must("admin", {"listDatabases": 1})["databases"]:
        database = item["name"]
        if database == "local":
            continue
        listed = server.must(database, {"listCollections": 1, "cursor": {"batchSize": 1000}})
        for about in listed["cursor"]["firstBatch"]:
            name = about["name"]
            namespace = f"{database}.{name}"
            state[namespace] = about
            if about["type"] == "view" or name == "system.views":
                continue
            indexes = server.must(database, {"listIndexes": name, "cursor": {"batchSize": 1000}})
            state[f"{namespace} indexes"] = indexes["cursor"]["firstBatch"]
            found = server.must(database, {"find": name, "batchSize": 100_000})
            state[f"{namespace} documents"] = found["cursor"]["firstBatch"]
    store = server.store
    with store.reading() as view:
        tables = store.tables
        for table in ("oplog", "images"):
            state[table] = list(view.kv.cursor(tables[table]).iternext())
        state["found"] = _found(view)
    return state


def _found(view: View) -> dict[str, list[int]]:
    """The positions that the oplog's index has for each topic."""
    return {
        name: [position for position, _ in view.entries_of([number], 0)]
        for name, number in sorted(view.catalog.topics.items())
        if any(True for _ in view.entries_of([number], 0))
    }
