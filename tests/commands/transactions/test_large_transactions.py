"""A large transaction is a chain of oplog entries, and has limits, since its commit writes all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode

COUNT = 30


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as made:
        made.must("d", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
        made.must("d", {"create": "c2", "changeStreamPreAndPostImages": {"enabled": True}})
        made.must("d", {"insert": "c2", "documents": [{"_id": key} for key in range(COUNT)]})
        yield made


def part_of(number: int = 1, *, first: bool = False) -> dict[str, Any]:
    begin = {"startTransaction": True} if first else {}
    return {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(number), "autocommit": False, **begin}


def test_its_events_come_once_and_in_order(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_ENTRY_BYTES", 300)
    stream = {"aggregate": 1, "pipeline": [{"$changeStream": {"fullDocumentBeforeChange": "whenAvailable"}}]}
    cursor = server.must("d", {**stream, "cursor": {"batchSize": 0}})["cursor"]["id"]
    server.must("d", {"insert": "c", "documents": [{"_id": n} for n in range(COUNT)], **part_of(first=True)})
    server.must("d", {"update": "c2", "updates": [{"q": {}, "u": {"$set": {"b": 1}}, "multi": True}], **part_of()})
    server.must("d", {"delete": "c", "deletes": [{"q": {"_id": {"$lt": 5}}, "limit": 0}], **part_of()})
    server.must("admin", {"commitTransaction": 1, **part_of()})
    with server.store.reading() as view:
        assert sum("partialTxn" in decode(entry)["o"] for _, entry in view.entries(0)) > 10
    seen = server.must("d", {"getMore": cursor, "collection": "$cmd.aggregate", "batchSize": 1000})
    events = seen["cursor"]["nextBatch"]
    kinds = [event["operationType"] for event in events]
    assert kinds == ["insert"] * COUNT + ["update"] * COUNT + ["delete"] * 5
    assert len({event["clusterTime"] for event in events}) == 1
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(set(tokens))
    images = [event["fullDocumentBeforeChange"] for event in events if event["ns"]["coll"] == "c2"]
    assert images == [{"_id": key} for key in range(COUNT)]


@pytest.mark.parametrize(("name", "limit"), [("TRANSACTION_KEY_COUNT_MAX", 31), ("TRANSACTION_BYTES_MAX", 2000)])
def test_it_is_aborted_where_it_becomes_too_large(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(limits, name, limit)
    server.must("d", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(10)], **part_of(first=True)})
    documents = [{"_id": n, "a": "x" * 300} for n in range(10, 20)]
    reply = server.run("d", {"insert": "c", "documents": documents, **part_of()})
    assert isinstance(reply, dict) and reply["writeErrors"][0]["code"] == 257
    reply = server.run("admin", {"commitTransaction": 1, **part_of()})
    assert isinstance(reply, dict) and reply["code"] == 251
    assert server.must("d", {"count": "c"})["n"] == 0
    server.must("d", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(10)], **part_of(2, first=True)})
    assert server.must("admin", {"commitTransaction": 1, **part_of(2)})["ok"] == 1.0
    assert server.must("d", {"count": "c"})["n"] == 10


def test_config_transactions_says_where_a_dump_of_the_oplog_begins(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_ENTRY_BYTES", 300)
    query = {"find": "transactions", "filter": {"state": {"$in": ["prepared", "inProgress"]}}, "limit": 1}
    server.must("d", {"insert": "c", "documents": [{"_id": n} for n in range(COUNT)], **part_of(first=True)})
    starts = []

    def between(stage: str) -> None:
        (row,) = server.must("config", {**query, "sort": {"startOpTime": 1}})["cursor"]["firstBatch"]
        starts.append(row["startOpTime"]["ts"])

    server.between = between
    server.must("admin", {"commitTransaction": 1, **part_of()})
    server.between = lambda stage: None
    chain = server.must("local", {"find": "oplog.rs", "filter": {"o.applyOps": {"$exists": True}}})["cursor"]
    assert len(starts) == 2 and all(ts <= chain["firstBatch"][0]["ts"] for ts in starts)
    assert server.must("config", query)["cursor"]["firstBatch"] == []
    refused = server.run("config", {"insert": "transactions", "documents": [{}]})
    assert isinstance(refused, dict) and refused["code"] == 13
