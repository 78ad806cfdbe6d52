"""How long a read may take, and what the server counts of its commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

import headrace
from headrace.clock import SystemClock
from headrace.testing.driven import DrivenServer


class SlowClock(SystemClock):
    """A clock on which every look takes `step_ms`, as if the machine were that slow."""

    step_ms = 0.0
    passed_ms = 0.0

    def monotonic_ms(self) -> float:
        self.passed_ms += self.step_ms
        return self.passed_ms


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=SlowClock()) as server:
        for first in range(0, 3000, 1000):
            batch = [{"_id": number, "x": 1} for number in range(first, first + 1000)]
            server.run("t", {"insert": "c", "documents": batch})
        yield server


def run(server: DrivenServer, command: dict[str, Any], step_ms: float = 10.0) -> Any:
    server.clock.step_ms = step_ms  # type: ignore[attr-defined]
    return server.run("t", command)


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"x": 2}},
        {"find": "c", "sort": {"x": 1}},
        {"find": "c", "filter": {"x": 2}, "sort": {"_id": 1}},
        {"aggregate": "c", "pipeline": [{"$group": {"_id": "$x"}}], "cursor": {}},
        {"count": "c", "query": {"x": 1}},
        {"distinct": "c", "key": "x"},
    ],
)
def test_a_read_that_walks_ends_when_its_time_is_over(server: DrivenServer, command: dict[str, Any]) -> None:
    assert run(server, {**command, "maxTimeMS": 1000})["ok"] == 1.0
    failed = run(server, {**command, "maxTimeMS": 50})
    assert (failed["code"], failed["codeName"]) == (50, "MaxTimeMSExpired")
    assert run(server, {**command, "maxTimeMS": 0})["ok"] == 1.0


def test_the_time_of_a_find_is_that_of_all_its_batches(server: DrivenServer) -> None:
    opened = run(server, {"find": "c", "batchSize": 100, "maxTimeMS": 100})["cursor"]
    more = {"getMore": opened["id"], "collection": "c", "batchSize": 600}
    assert run(server, more)["ok"] == 1.0
    codes = [run(server, more).get("code") for _ in range(4)]
    assert 50 in codes


def test_a_comment_is_taken_by_every_command_that_reads_or_writes(server: DrivenServer) -> None:
    for command in (
        {"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "x"}, {"insert": "c", "documents": [{}]},
        {"update": "c", "updates": [{"q": {}, "u": {"$set": {"y": 1}}}]},
        {"delete": "c", "deletes": [{"q": {}, "limit": 1}]},
        {"aggregate": "c", "pipeline": [], "cursor": {}}, {"findAndModify": "c", "remove": True}, {"create": "d"},
        {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}, {"listIndexes": "c"},
        {"dropIndexes": "c", "index": "x"},
        {"listCollections": 1}, {"collMod": "c"}, {"drop": "d"}, {"ping": 1}, {"dropDatabase": 1},
    ):  # fmt: skip
        assert run(server, {**command, "comment": {"why": "test"}}, 0.0)["ok"] == 1.0, command


def test_server_status_counts_commands_statements_and_bytes() -> None:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"_id": number} for number in range(5)])
        client.t.c.update_many({}, {"$set": {"x": 1}})
        client.t.c.delete_one({"_id": 1})
        client.bulk_write([pymongo.DeleteOne({"_id": 2}, namespace="t.c")])
        assert len(list(client.t.c.find(batch_size=2))) == 3
        with pytest.raises(pymongo.errors.DuplicateKeyError):
            client.t.c.insert_one({"_id": 3})
        with pytest.raises(pymongo.errors.OperationFailure):
            client.t.command({"find": "c", "filter": {"$bad": 1}})
        status = client.admin.command("serverStatus")
        counters = status["opcounters"]
        assert {name: counters[name] for name in ("insert", "query", "update", "delete", "getmore")} == {
            "insert": 6, "query": 2, "update": 1, "delete": 2, "getmore": 1,
        }  # fmt: skip
        assert status["metrics"]["commands"]["find"] == {"total": 2, "failed": 1}
        assert status["metrics"]["commands"]["bulkWrite"] == {"total": 1}
        network = status["network"]
        assert network["bytesIn"] > 500 and network["bytesOut"] > 500 and network["numRequests"] >= 8
        later = client.admin.command("serverStatus")["network"]
        assert later["bytesIn"] > network["bytesIn"] and later["bytesOut"] > network["bytesOut"]


def inserted(server: DrivenServer) -> int:
    return int(server.must("admin", {"serverStatus": 1})["metrics"].get("document", {}).get("inserted", 0))


@pytest.mark.parametrize(("ordered", "count"), [(True, 1), (False, 2)])
def test_only_documents_that_were_inserted_are_counted(ordered: bool, count: int) -> None:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        documents = [{"_id": 2}, {"_id": 1}, {"_id": 3}]
        server.run("t", {"insert": "c", "documents": documents, "ordered": ordered})
        assert inserted(server) == 1 + count
        server.must("t", {"insert": "c", "documents": [{"_id": 4}, {"_id": 5}]})
        operations = [{"insert": 0, "document": {"_id": number}} for number in (5, 6)]
        server.run("admin", {"bulkWrite": 1, "ops": operations, "nsInfo": [{"ns": "t.c"}], "ordered": ordered})
        assert inserted(server) == 3 + count + (not ordered)
