"""Top-level timestamps of 0 become the time of the write, unless `bypassEmptyTsReplacement` keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

EMPTY = Timestamp(0, 0)
BYPASS = {"bypassEmptyTsReplacement": True}
SESSION = {"lsid": {"id": Binary(b"s" * 16, 4)}, "txnNumber": Int64(1)}
LONG = "x" * (3 << 20)

WRITES: dict[str, dict[str, Any]] = {
    "aggregate": {"aggregate": "old", "pipeline": [{"$merge": {"into": "c"}}], "cursor": {}},
    "bulkWrite": {
        "bulkWrite": 1, "nsInfo": [{"ns": "t.c"}],
        "ops": [
            {"insert": 0, "document": {"_id": 1, "t": EMPTY}},
            {"update": 0, "filter": {"_id": 2}, "updateMods": {"t": EMPTY}, "upsert": True},
        ],
    },
    "findAndModify": {"findAndModify": "c", "query": {"_id": 0}, "update": {"t": EMPTY}},
    "findAndModify, upsert": {"findAndModify": "c", "query": {"_id": 1}, "update": {"t": EMPTY}, "upsert": True},
    "insert": {"insert": "c", "documents": [{"_id": 1, "t": EMPTY}]},
    "insert, into a new collection": {"insert": "new", "documents": [{"_id": 1, "t": EMPTY}]},
    "insert, long": {"insert": "c", "documents": [{"_id": 1, "t": EMPTY, "l": LONG}]},
    "insert, many": {"insert": "c", "documents": [{"_id": 1, "t": EMPTY}, {"_id": 2, "t": EMPTY}]},
    "update": {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"t": EMPTY}}]},
    "update, upsert": {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"t": EMPTY}, "upsert": True}]},
}  # fmt: skip


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 0}]})
        server.must("t", {"insert": "old", "documents": [{"_id": 5, "t": EMPTY}], **BYPASS})
        yield server


def times(at: DrivenServer) -> list[Any]:
    """The timestamps in the collections that the writes write to."""
    found = [at.must("t", {"find": name, "filter": {"t": {"$exists": True}}}) for name in ("c", "new")]
    return [document["t"] for reply in found for document in reply["cursor"]["firstBatch"]]


def run(at: DrivenServer, name: str, **more: Any) -> None:
    assert at.run("admin" if "bulkWrite" in WRITES[name] else "t", {**WRITES[name], **more})["ok"] == 1.0  # type: ignore[index]


@pytest.mark.parametrize("name", WRITES)
def test_an_empty_timestamp_becomes_the_time_of_the_write(at: DrivenServer, name: str) -> None:
    run(at, name)
    assert times(at) and EMPTY not in times(at)


@pytest.mark.parametrize("name", WRITES)
def test_it_stays_where_the_client_says_so(at: DrivenServer, name: str) -> None:
    run(at, name, **BYPASS)
    assert times(at) and set(times(at)) == {EMPTY}
    (entry,) = at.must("local", {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1})["cursor"]["firstBatch"]
    assert entry["o"]["t"] == EMPTY


@pytest.mark.parametrize("name", sorted(WRITES.keys() - {"aggregate", "insert, long"}))
def test_it_stays_in_a_transaction(at: DrivenServer, name: str) -> None:
    run(at, name, **BYPASS, **SESSION, autocommit=False, startTransaction=True)
    at.must("admin", {"commitTransaction": 1, **SESSION, "autocommit": False})
    assert times(at) and set(times(at)) == {EMPTY}


def test_the_current_date_is_the_current_date(at: DrivenServer) -> None:
    change = {"$currentDate": {"t": {"$type": "timestamp"}}}
    at.must("t", {"update": "c", "updates": [{"q": {}, "u": change}], **BYPASS})
    assert EMPTY not in times(at)
