"""An interruption ends a command at whichever of its ticks it comes: no clause takes it for the error of a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace.errors import CommandError, Interrupted
from headrace.execution.writes.updates import Applier
from headrace.testing.driven import DrivenServer
from headrace.time_limit import TookTooLong
from headrace.turns import Turn, Turns
from headrace.values.bson import decode

LOOKUP = {"$lookup": {"from": "other", "localField": "_id", "foreignField": "n", "as": "x"}}
FILTER = {"$expr": {"$gt": [{"$sum": {"$range": [0, 200]}}, 5]}, "text": {"$regex": "a+b"}}
STATEMENTS: dict[str, dict[str, Any]] = {
    "$merge": {"aggregate": "c", "pipeline": [LOOKUP, {"$merge": "goal"}], "cursor": {}},
    "$out": {"aggregate": "c", "pipeline": [LOOKUP, {"$out": "goal"}], "cursor": {}},
    "bulkWrite": {
        "bulkWrite": 1, "nsInfo": [{"ns": "t.c"}], "ordered": False,
        "ops": [
            {"insert": 0, "document": {"_id": 1}}, {"update": 0, "filter": FILTER, "updateMods": {"$set": {"a": 1}}},
            {"delete": 0, "filter": FILTER, "multi": True},
        ],
    },
    "createIndexes": {
        "createIndexes": "c", "indexes": [{"name": "n", "key": {"n": 1}, "unique": True}],
    },
    "delete": {"delete": "c", "deletes": [{"q": FILTER, "limit": 0}, {"q": {"n": 1}, "limit": 1}], "ordered": False},
    "explain": {"explain": {"find": "c", "filter": FILTER, "sort": {"n": -1}}, "verbosity": "executionStats"},
    "findAndModify": {"findAndModify": "c", "query": {"n": 500}, "update": {"$set": {"a": 1}}, "upsert": True},
    "insert": {"insert": "checked", "documents": [{"_id": n, "a": list(range(200))} for n in range(4)]},
    "retryable update": {
        "update": "c", "updates": [{"q": {"n": n}, "u": [{"$set": {"s": {"$sum": {"$range": [0, 200]}}}}]}
                                   for n in range(3)],
        "lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1),
    },
    "update": {
        "update": "c", "ordered": False,
        "updates": [{"q": FILTER, "u": {"$set": {"a": 1}}, "multi": True}, {"q": {"_id": 1}, "u": {"$inc": {"b": 1}}}],
    },
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        documents = [{"_id": n, "n": n, "text": "a" * 40 + "b" * (n % 2)} for n in range(40)]
        for name in ("c", "other"):
            server.must("t", {"insert": name, "documents": documents})
        validator = {"$expr": {"$gt": [{"$size": {"$filter": {"input": "$a", "cond": True}}}, 0]}}
        server.must("t", {"create": "checked", "validator": validator})
        # A client's transaction that is open makes writes try first what they change.
        opened = {"lsid": {"id": Binary(bytes([9] * 16), 4)}, "txnNumber": Int64(1), "autocommit": False}
        documents = [{"_id": 1}]
        server.must("t", {"insert": "locked", "documents": documents, **opened, "startTransaction": True})
        yield server


def interrupted_at(server: DrivenServer, database: str, body: dict[str, Any], at: int) -> dict[str, Any]:
    """The reply of a command that pauses at each of its ticks, and is interrupted at the one of this number."""
    turns, engine = Turns(seconds=0.0), server.engine
    request = server.request(database, body)
    command = engine.command(request)
    if command.writes and (command.writes is True or command.writes(request)):
        txn = server.store.begin()
        answer = turns.run(engine.run_write, command, request, txn)
    else:
        txn = None
        answer = turns.run(engine.run_read, command, request)
    count = 0
    while isinstance(answer, Turn):
        if count == at:
            answer.interruption = Interrupted(11601, "operation was interrupted")
        count += 1
        answer = turns.resume(answer, txn)
    if txn is not None:
        server.store.abandon(txn)
    assert isinstance(answer, bytes)
    return {**decode(answer), "pauses": count}


@pytest.mark.parametrize("name", STATEMENTS)
def test_an_interruption_at_any_tick_is_what_the_command_answers(server: DrivenServer, name: str) -> None:
    body = STATEMENTS[name]
    database = "admin" if name == "bulkWrite" else "t"
    complete = interrupted_at(server, database, body, -1)
    assert complete["ok"] == 1 and complete["pauses"] > 1, complete
    for at in range(0, complete["pauses"], max(1, complete["pauses"] // 50)):
        reply = interrupted_at(server, database, body, at)
        if reply["pauses"] <= at:  # what was parsed once need not be parsed again
            break
        assert (reply["ok"], reply.get("code")) == (0, 11601), (at, reply)


def test_a_command_that_fails_is_answered_wherever_the_interruption_comes(server: DrivenServer) -> None:
    server.must("t", {"insert": "c", "documents": [{"n": n, "big": ["x" * 1000] * 3000} for n in (1, 100)]})
    body = {"createIndexes": "c", "indexes": [{"name": "n", "key": {"n": 1}, "unique": True}]}
    count = interrupted_at(server, "t", body, -1)["pauses"]
    codes = {interrupted_at(server, "t", body, at)["code"] for at in range(count)}
    assert codes <= {11000, 11601}


def test_an_interruption_is_no_error_of_a_command() -> None:
    assert not issubclass(Interrupted, CommandError)


def test_an_update_of_one_document_that_takes_too_long_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def change(self: Applier, matched: object) -> None:
        calls.append(matched)
        raise TookTooLong

    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        monkeypatch.setattr(Applier, "change", change)
        reply: Any = server.run("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]})
    assert (reply["n"], reply["writeErrors"][0]["code"], len(calls)) == (0, 50, 1)
