"""How often collections were used, and for how long: `top` and `$collStats`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import limits
from headrace.dispatch.profiling.usage import INSERT, Usage
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

FIELDS = ["total", "readLock", "writeLock", "queries", "getmore", "insert", "update", "remove", "commands"]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def counts(at: DrivenServer, namespace: str = "t.c") -> dict[str, int]:
    """How often each kind of command has used a collection; those that have not are left out."""
    totals = at.must("admin", {"top": 1})["totals"]
    assert totals["note"] == "all times in microseconds"
    fields = totals.get(namespace, {})
    assert list(fields) in ([], FIELDS)
    assert all((item["time"] > 0) <= (item["count"] > 0) for item in fields.values())
    return {name: item["count"] for name, item in fields.items() if item["count"]}


def latencies(at: DrivenServer, **options: Any) -> dict[str, Any]:
    pipeline = [{"$collStats": {"latencyStats": options}}]
    [stats] = at.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"]
    made: dict[str, Any] = stats["latencyStats"]
    return made


def test_each_command_is_counted_where_mongodb_counts_it(at: DrivenServer) -> None:
    at.must("t", {"insert": "c", "documents": [{"_id": n} for n in range(5)]})
    cursor = at.must("t", {"find": "c", "batchSize": 1})["cursor"]["id"]
    at.must("t", {"getMore": cursor, "collection": "c"})
    at.must("t", {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]})
    at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    for command in ({"count": "c"}, {"distinct": "c", "key": "a"}, {"aggregate": "c", "pipeline": [], "cursor": {}}):
        at.must("t", command)
    at.must("t", {"findAndModify": "c", "query": {"_id": 2}, "remove": True})
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    assert counts(at) == {
        "total": 10, "readLock": 5, "writeLock": 5, "queries": 1, "getmore": 1, "insert": 1, "update": 1, "remove": 1,
        "commands": 5,
    }  # fmt: skip
    assert {name: item["ops"] for name, item in latencies(at).items()} == {
        "reads": 5, "writes": 4, "commands": 1, "transactions": 0,
    }  # fmt: skip


def test_a_failed_command_counts_and_one_without_a_collection_does_not(at: DrivenServer) -> None:
    at.run("t", {"find": "c", "filter": {"$none": 1}})
    at.must("t", {"ping": 1})
    at.must("t", {"aggregate": 1, "pipeline": [{"$documents": [{}]}], "cursor": {}})
    assert counts(at) == {"total": 1, "readLock": 1, "queries": 1}
    assert list(at.must("admin", {"top": 1})["totals"]) == ["note", "t.c"]


def test_a_getmore_that_waits_counts_when_it_is_answered(at: DrivenServer) -> None:
    at.must("t", {"create": "c"})
    pipeline: list[Any] = [{"$changeStream": {}}]
    cursor = at.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["id"]
    at.run("t", {"getMore": cursor, "collection": "c"})
    assert "getmore" not in counts(at)
    at.must("t", {"insert": "c", "documents": [{"_id": 1}]})
    at.must("t", {"getMore": cursor, "collection": "c"})
    assert counts(at)["getmore"] == 1


@pytest.mark.parametrize(
    ("database", "command"),
    [("t", {"drop": "c"}), ("t", {"dropDatabase": 1}), ("admin", {"renameCollection": "t.c", "to": "t.d"})],
)
def test_a_collection_that_has_gone_has_no_numbers(at: DrivenServer, database: str, command: dict[str, Any]) -> None:
    at.must("t", {"insert": "c", "documents": [{}]})
    at.must(database, command)
    assert set(counts(at)) <= {"total", "writeLock", "commands"}


def test_a_histogram_has_the_ranges_that_occurred(at: DrivenServer) -> None:
    for seconds in (0.0, 1e-6, 3e-6, 2.5e-3, 3.5e-3, 3.6e-3, 1.6, 70.0):
        at.engine.usage.note_key((INSERT, "t", "c"), seconds)
    assert latencies(at, histograms=True)["writes"] == {
        "histogram": [
            {"micros": micros, "count": count}
            for micros, count in ((0, 2), (2, 1), (2048, 1), (3072, 2), (1572864, 1), (67108864, 1))
        ],
        "latency": 71609604, "ops": 8,
    }  # fmt: skip
    assert "histogram" not in latencies(at)["writes"]
    reply = at.run(
        "t", {"aggregate": "c", "pipeline": [{"$collStats": {"latencyStats": {"histograms": 1}}}], "cursor": {}}
    )
    assert isinstance(reply, dict) and reply["code"] == 14


def test_many_names_are_forgotten_before_collections_are(at: DrivenServer) -> None:
    usage = Usage(lambda namespace: namespace == "t.c")
    usage.note_key((INSERT, "t", "c"), 1.0)
    for number in range(limits.USAGE_COUNT_MAX + 5):
        usage.note_key((INSERT, "t", f"none{number}"), 1.0)
    assert len(usage.totals()) <= 7
    assert usage.totals()["t.c"]["insert"]["count"] == 1


@pytest.mark.parametrize("name", [{}, [], 5, None, {"a": 1}])
def test_what_is_no_name_is_refused_and_counted_nowhere(at: DrivenServer, name: object) -> None:
    for body in (
        {"aggregate": name, "pipeline": [], "cursor": {}}, {"count": name}, {"delete": name, "deletes": []},
        {"distinct": name, "key": "a"}, {"drop": name}, {"find": name}, {"insert": name, "documents": [{}]},
        {"update": name, "updates": []}, {"validate": name},
    ):  # fmt: skip
        reply = at.run("t", body)
        assert isinstance(reply, dict) and reply["ok"] == 0.0 and reply["code"] not in (1, 8), (body, reply)
    assert set(at.must("admin", {"top": 1})["totals"]) <= {"note", "t.c"}
