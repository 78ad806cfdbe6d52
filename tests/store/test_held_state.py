"""A read holds one published state from its first look to its end, whatever is committed in its pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.errors import Interrupted
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns
from headrace.values.bson import decode
from tests.store.test_published_state import READS, WRITES

COUNT = 300
LONG_READS: dict[str, dict[str, Any]] = {
    **{name: read for name, read in READS.items() if name not in ("collections", "indexes", "plan", "size")},
    "find and sort": {"find": "c", "sort": {"n": -1}, "batchSize": 1000},
    "facet": {"aggregate": "c", "cursor": {}, "pipeline": [{"$facet": {
        "a": [{"$group": {"_id": "$x", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "b": [{"$count": "n"}]}}]},
}  # fmt: skip
MORE_WRITES: dict[str, dict[str, Any]] = {
    "insert before the end": {"insert": "c", "documents": [{"_id": 10_000, "x": 3, "y": 1, "n": 5}]},
    "update of all": {"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 3, "y": 1, "n": 0}}, "multi": True}]},
    "delete of all": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    **{name: WRITES[name] for name in ("dropIndexes", "drop", "renameCollection", "dropDatabase", "collMod of a view")},
}


@pytest.fixture(name="at")
def _at(monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenServer]:
    monkeypatch.setattr(limits, "VIEW_CHUNK_COUNT", 16)
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y_1"}]})
        at.must("t", {"insert": "c", "documents": [{"_id": n, "x": n % 4, "y": n % 3, "n": n} for n in range(COUNT)]})
        at.must("t", {"insert": "other", "documents": [{"_id": n} for n in range(4)]})
        at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"x": 3}}]})
        yield at


def read_in_turns(at: DrivenServer, body: dict[str, Any], between: Callable[[], object]) -> tuple[dict[str, Any], int]:
    """Return the reply to a read that pauses at each tick, and how often it did after its first look.

    `between` is called in each of these pauses.
    """
    turns, request, pauses, has_looked = Turns(seconds=0.0), at.request("t", body), 0, False
    at.store.forget_read()
    answer = turns.run(at.engine.run_read, at.engine.command(request), request)
    while isinstance(answer, Turn):
        has_looked = has_looked or at.store._published is not None
        if has_looked:
            pauses += 1
            between()
        answer = turns.resume(answer)
    reply = decode(answer)
    reply.get("cursor", {}).pop("id", None)
    return {key: value for key, value in reply.items() if key not in ("$clusterTime", "operationTime")}, pauses


@pytest.mark.parametrize("write", MORE_WRITES)
def test_what_is_committed_in_its_pauses_is_not_seen(at: DrivenServer, write: str) -> None:
    for name, read in LONG_READS.items():
        before, _ = read_in_turns(at, read, lambda: None)
        assert before["ok"] == 1.0, before
        left = [MORE_WRITES[write], {"insert": "c", "documents": [{"_id": -1, "x": 3, "y": 1, "n": 1}]}]

        def change(left: list[dict[str, Any]] = left) -> None:
            if left:
                at.run("admin" if "renameCollection" in left[0] else "t", left.pop(0))

        during, pauses = read_in_turns(at, read, change)
        assert during == before, name
        assert pauses or name in ("by _id", "count"), name
        at.must("t", {"dropDatabase": 1})
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y_1"}]})
        documents = [{"_id": n, "x": n % 4, "y": n % 3, "n": n} for n in range(COUNT)]
        at.must("t", {"insert": "c", "documents": documents})
        at.must("t", {"insert": "other", "documents": [{"_id": n} for n in range(4)]})
        at.must("t", {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"x": 3}}]})


@pytest.mark.long
def test_thousands_of_commits_leave_the_pages_of_a_read_alone(at: DrivenServer) -> None:
    """LMDB uses the pages that a commit has freed again, but not those that an older read transaction can reach."""
    each = {"$set": {"m": "$n"}}  # a group alone reads many documents at once
    read = {"aggregate": "c", "pipeline": [each, {"$group": {"_id": None, "n": {"$sum": "$m"}}}], "cursor": {}}

    def change() -> None:
        for number in range(0, COUNT, 30):
            at.must("t", {"update": "c", "updates": [{"q": {"_id": number}, "u": {"$inc": {"n": 1}}}]})

    reply, pauses = read_in_turns(at, read, change)
    assert reply["cursor"]["firstBatch"] == [{"_id": None, "n": sum(range(COUNT))}] and pauses > 100


def test_a_getmore_holds_one_state_too_and_the_next_one_has_a_newer(at: DrivenServer) -> None:
    opened = at.must("t", {"find": "c", "batchSize": 0, "sort": {"_id": 1}})
    cursor = opened["cursor"]["id"]

    def add() -> None:
        at.run("t", {"update": "c", "updates": [{"q": {"n": {"$gte": 0}}, "u": {"$set": {"n": -1}}, "multi": True}]})

    more = {"getMore": Int64(cursor), "collection": "c", "batchSize": 250}
    reply, pauses = read_in_turns(at, more, add)
    assert [document["n"] for document in reply["cursor"]["nextBatch"]] == list(range(250)) and pauses
    reply, _ = read_in_turns(at, more, lambda: None)
    # The rest of the chunk that was read last is of the older state.
    assert {document["n"] for document in reply["cursor"]["nextBatch"][limits.VIEW_CHUNK_COUNT :]} == {-1}


def test_a_transaction_reads_one_state(at: DrivenServer) -> None:
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    update = {"q": {"_id": 1}, "u": {"$set": {"n": 1000}}}
    at.must("t", {"update": "c", "updates": [update], **session, "startTransaction": True})
    read = {"aggregate": "c", "pipeline": [{"$group": {"_id": None, "n": {"$sum": "$n"}}}], "cursor": {}, **session}
    number = [10_000]

    def add() -> None:
        number[0] += 1
        at.must("t", {"insert": "c", "documents": [{"_id": number[0], "n": 1}]})
        at.must("t", {"delete": "c", "deletes": [{"q": {"_id": number[0] - 9900}, "limit": 1}]})

    reply, pauses = read_in_turns(at, read, add)
    assert reply["cursor"]["firstBatch"] == [{"_id": None, "n": sum(range(COUNT)) - 1 + 1000}] and pauses > 3


@pytest.mark.parametrize(("limit", "value"), [("SNAPSHOT_SECONDS_MAX", 10), ("SNAPSHOT_GROWTH_BYTES_MAX", 4_000_000)])
def test_a_read_that_holds_its_state_for_too_long_ends(
    at: DrivenServer, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(limits, limit, value)
    assert isinstance(at.clock, FakeClock)
    clock = at.clock

    def change() -> None:
        clock.advance(1000 if limit == "SNAPSHOT_SECONDS_MAX" else 1)
        at.must("t", {"insert": "other", "documents": [{"text": "x" * 1_000_000}]})

    with pytest.raises(Interrupted) as raised:
        turns, request = Turns(seconds=0.0), at.request("t", {"count": "c", "query": {"n": {"$gte": 0}}})
        answer = turns.run(at.engine.run_read, at.engine.command(request), request)
        while isinstance(answer, Turn):
            change()
            answer = turns.resume(answer)
        reply = decode(answer)
        raise Interrupted(reply["code"], reply["errmsg"])
    assert raised.value.code == 239
