"""What a transaction does not see, as it came later, is stepped over in pieces: others have their turn in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import limits
from headrace.store.overlay_cursor import Item, OverlayCursor
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.commands.transactions.test_transaction_statements import Session

COUNT = 3000
RANGE = {"a": {"$gte": 0}}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("d", {"insert": "c", "documents": [{"_id": -1, "a": -1, "b": 0}]})
        indexes = [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1, "a": 1}, "name": "ba"}]
        unique = {"key": {"u": 1}, "name": "u", "unique": True, "partialFilterExpression": {"a": {"$gte": 0}}}
        server.must("d", {"createIndexes": "c", "indexes": [*indexes, unique]})
        yield server


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each walk of a cursor has come to."""
    counted: list[int] = []
    walk = OverlayCursor.walk

    def counting(cursor: OverlayCursor, start: bytes | None, *, backward: bool = False) -> Iterator[Item]:
        counted.append(0)
        number = len(counted) - 1
        for item in walk(cursor, start, backward=backward):
            counted[number] += 1
            yield item

    monkeypatch.setattr(OverlayCursor, "walk", counting)
    return counted


@pytest.mark.parametrize(
    "statement",
    [
        {"find": "c", "filter": {"x": {"$exists": False}}},
        {"find": "c", "sort": {"$natural": -1}},
        {"find": "c", "filter": RANGE, "hint": "a"},
        {"find": "c", "filter": RANGE, "hint": "a", "sort": {"a": -1}},
        {"find": "c", "filter": {"b": {"$in": [0, 2]}, "a": {"$lt": 10**6, "$mod": [2, 0]}}, "hint": "ba"},
        {"find": "c", "filter": {**RANGE, "u": {"$gte": 0}}, "hint": "u"},
        {"find": "c", "filter": {"_id": {"$gte": 0}}},
        {"find": "c", "filter": {"_id": {"$gte": 0}}, "sort": {"_id": -1}},
        {"find": "c", "filter": {"_id": {"$gte": 0}}, "projection": {"_id": 1}, "hint": "_id_"},
        {"distinct": "c", "key": "a", "query": RANGE},
        {"aggregate": "c", "pipeline": [{"$match": RANGE}, {"$count": "n"}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$match": {"_id": {"$gte": 0}}}, {"$count": "n"}], "cursor": {}},
        {"update": "c", "updates": [{"q": RANGE, "u": {"$set": {"x": 1}}, "multi": True}]},
        {"update": "c", "updates": [{"q": {"x": 5}, "u": {"$set": {"x": 1}}, "multi": True}]},
        {"delete": "c", "deletes": [{"q": {"_id": {"$gte": 0}}, "limit": 0}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("gone", [False, True])
def test_documents_that_came_later_are_stepped_over_in_pieces(
    at: DrivenServer, steps: list[int], statement: dict[str, Any], gone: bool
) -> None:
    """Those that are there now, and those that have gone again."""
    session = Session(at, 1).begin()
    assert [document["_id"] for document in session.find()] == [-1]
    at.must("d", {"insert": "c", "documents": [{"_id": n, "a": n, "b": n % 3, "u": n} for n in range(COUNT)]})
    if gone:
        at.must("d", {"delete": "c", "deletes": [{"q": RANGE, "limit": 0}]})
    steps.clear()
    reply = session.run(statement)
    assert reply["ok"] == 1.0 and reply.get("n", 0) == 0 and not reply.get("values")
    shown = [document["_id"] for document in reply.get("cursor", {}).get("firstBatch", []) if "n" not in document]
    assert shown == ([-1] if "$natural" in str(statement) or "$exists" in str(statement) else [])
    assert sum(steps) >= COUNT // 2 and max(steps) <= limits.TRANSACTION_COUNT_COUNT + 1


def test_all_documents_are_counted_in_pieces(at: DrivenServer, steps: list[int]) -> None:
    session = Session(at, 1).begin()
    session.insert(-3, -2)
    at.must("d", {"insert": "c", "documents": [{"_id": n, "u": n} for n in range(COUNT)]})
    steps.clear()
    reply = session.run({"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}})
    assert reply["cursor"]["firstBatch"] == [{"n": 3}]
    assert sum(steps) >= COUNT // 2 and max(steps) <= limits.TRANSACTION_COUNT_COUNT + 1
    assert at.must("d", {"count": "c"})["n"] == COUNT + 1
