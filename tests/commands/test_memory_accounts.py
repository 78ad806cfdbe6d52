"""Every account of memory and every stage that holds documents: what it holds is counted, refused where it is too much,
and given back when its client has gone. Both lists are taken from the code: a new one needs its line here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace import limits
from headrace.execution.command_memory import _PARAMETERS
from headrace.testing.driven import DrivenServer

MEGABYTE = 1024 * 1024
PACKAGE = Path(headrace.__file__).parent


def calls_of(method: str, receiver: str) -> set[str]:
    """The files in which a method is called on something of a name."""
    files = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
                owner = ast.unparse(node.func.value).partition("(")[0]
                if owner.rpartition(".")[2] == receiver or owner == f"{receiver}_of":
                    files.add(path.relative_to(PACKAGE).as_posix())
    return files


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(memory_bytes_max=10 * MEGABYTE) as made:
        made.must("t", {"insert": "c", "documents": [{"_id": n, "b": Binary(bytes(1000))} for n in range(1000)]})
        assert made.engine.memory.used == 0
        yield made


def begun(server: DrivenServer, command: dict[str, Any], *, first: bool = False) -> Any:
    fields = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    return server.run("t", {**command, **fields, **({"startTransaction": True} if first else {})})


def insert_large(server: DrivenServer, count: int) -> None:
    for _ in range(count):
        server.must("t", {"insert": "c", "documents": [{"b": Binary(bytes(MEGABYTE))}]})


def streams(server: DrivenServer) -> Any:
    """Two streams, of which one reads: what the other has not read is dropped, and read from the oplog."""
    cursors = []
    for label in range(2):
        stages = [{"$changeStream": {}}, {"$match": {"documentKey._id": {"$ne": label}}}]
        opened = server.must("t", {"aggregate": "c", "pipeline": stages, "cursor": {"batchSize": 0}})
        cursors.append(opened["cursor"]["id"])
    more = {"collection": "c", "batchSize": 1, "maxTimeMS": 1}
    insert_large(server, 3)
    for cursor in cursors:
        server.must("t", {"getMore": cursor, **more})
    yield server.engine.memory.used > 4 * MEGABYTE
    insert_large(server, 12)
    for cursor in cursors:
        server.must("t", {"getMore": cursor, **more})
    yield server.engine.memory.used <= 10 * MEGABYTE and server.engine.memory.released
    server.must("t", {"killCursors": "c", "cursors": cursors})


def open_cursors(server: DrivenServer) -> Any:
    find = {"find": "c", "batchSize": 2}
    ids = [server.must("t", find)["cursor"]["id"] for _ in range(10)]
    yield server.engine.memory.used >= 10 * limits.CURSOR_BYTES
    ids += [server.must("t", find)["cursor"]["id"] for _ in range(600)]
    yield server.run("t", {"getMore": ids[0], "collection": "c"})["code"] == 43  # type: ignore[index]
    server.engine.end_sessions(None)
    server.must("t", {"killCursors": "c", "cursors": ids})


def operations(server: DrivenServer) -> Any:
    sort = {"find": "c", "sort": {"b": 1}, "batchSize": 1}
    cursor = server.must("t", sort)["cursor"]["id"]
    yield server.engine.memory.used > MEGABYTE // 2
    server.engine.memory.bytes_max = MEGABYTE // 2
    yield server.run("t", sort)["code"] == 146  # type: ignore[index]
    server.run("t", {"killCursors": "c", "cursors": [cursor]})


def transactions(server: DrivenServer) -> Any:
    large = {"insert": "c", "documents": [{"b": Binary(bytes(3 * MEGABYTE))}]}
    assert begun(server, large, first=True)["ok"] == 1
    yield server.engine.memory.used > 3 * MEGABYTE
    yield begun(server, large)["writeErrors"][0]["code"] == 257


def written_keys(server: DrivenServer) -> Any:
    assert begun(server, {"find": "c", "limit": 1}, first=True)["ok"] == 1
    update = {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]}
    for _ in range(4):
        server.must("t", update)
    yield server.engine.memory.used > 4 * 256
    while (reply := begun(server, {"find": "c", "limit": 1}))["ok"] == 1:
        for _ in range(20):
            server.must("t", update)
    yield reply["code"] == 251 and server.engine.memory.used < MEGABYTE


ACCOUNTS: dict[str, Callable[[DrivenServer], Any] | None] = {
    "cursors/feed.py": streams,
    "cursors/registry.py": open_cursors,
    "execution/command_memory.py": operations,
    "server/peer.py": None,  # test_memory_budget_sockets.py
    "store/client_transaction.py": transactions,
    "store/transaction_registry.py": written_keys,
}


@pytest.mark.long
def test_every_account_is_in_the_table() -> None:
    assert calls_of("account", "memory") | calls_of("account", "_memory") == set(ACCOUNTS)


@pytest.mark.parametrize("file", [file for file, scenario in ACCOUNTS.items() if scenario is not None])
def test_an_account_counts_is_bounded_and_is_given_back(server: DrivenServer, file: str) -> None:
    scenario = ACCOUNTS[file]
    assert scenario is not None
    assert all(scenario(server))
    server.engine.end_sessions(None)
    assert server.engine.memory.used == 0


STAGES: list[tuple[str, dict[str, Any], int]] = [
    ("bucket.py", {"$bucketAuto": {"groupBy": "$_id", "buckets": 5}}, 292),
    ("densify.py", {"$densify": {"field": "_id", "range": {"step": 1, "bounds": "full"}}}, 6007200),
    ("facet.py", {"$facet": {"a": [{"$match": {}}], "b": [{"$match": {}}]}}, 292),
    ("fusion.py", {"$score": {"score": "$_id", "normalization": "minMaxScaler"}}, 292),
    ("group.py", {"$group": {"_id": "$_id", "b": {"$first": "$b"}}}, 292),
    (
        "joins.py",
        {"$graphLookup": {
            "from": "c", "startWith": "$_id", "connectFromField": "next", "connectToField": "_id", "as": "x",
        }},
        40099,
    ),
    ("joins.py", {"$lookup": {"from": "c", "localField": "no", "foreignField": "no", "as": "x"}}, 4568),
    ("sort_stage.py", {"$sample": {"size": 2000}}, 292),
    ("joins.py", {"$lookup": {"from": "c", "pipeline": [], "as": "x"}}, 4568),
    ("sort_stage.py", {"$sort": {"b": 1}}, 292),
    ("window.py", {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": {"$sum": "$_id"}}}}, 292),
]  # fmt: skip


@pytest.mark.long
def test_every_stage_that_holds_documents_is_in_the_table() -> None:
    files = {Path(file).name for file in calls_of("stage", "memory") if file.startswith("query/stages/")}
    assert files == {file for file, _, _ in STAGES}


@pytest.mark.parametrize(("file", "stage", "code"), STAGES)
def test_a_stage_counts_is_refused_and_gives_back(
    server: DrivenServer, file: str, stage: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.must("t", {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"next": {"$add": ["$_id", 1]}}}],
                                                  "multi": True}]})  # fmt: skip
    aggregate = {"aggregate": "c", "pipeline": [stage], "cursor": {"batchSize": 1}, "allowDiskUse": False}
    memory = server.engine.memory
    cursor = server.must("t", {**aggregate, "pipeline": [{"$limit": 50}, stage]})["cursor"]["id"]
    assert not cursor or memory.used > limits.CURSOR_BYTES + 10_000
    server.run("t", {"killCursors": "c", "cursors": [cursor]})
    assert memory.used == 0
    memory.bytes_max = 60_000
    assert server.run("t", aggregate)["code"] == 146  # type: ignore[index]
    assert memory.used == 0
    memory.bytes_max = 100 * MEGABYTE
    for name in ("STAGE_BYTES_MAX", "LOOKUP_BYTES_MAX"):
        monkeypatch.setattr(limits, name, 30_000)
    for parameter in _PARAMETERS.values():
        server.engine.parameters[parameter] = 30_000
    assert server.run("t", aggregate)["code"] == code  # type: ignore[index]
    assert memory.used == 0


def test_documents_that_wait_in_a_search_by_distance_are_counted_until_they_are_returned(server: DrivenServer) -> None:
    at = {"type": "Point", "coordinates": [1, 2]}
    documents = [{"_id": number, "at": at, "b": Binary(bytes(1000))} for number in range(200)]
    server.must("t", {"insert": "places", "documents": documents})
    server.must("t", {"createIndexes": "places", "indexes": [{"key": {"at": "2dsphere"}, "name": "at_2dsphere"}]})
    found = {"find": "places", "filter": {"at": {"$near": {"$geometry": at}}}, "batchSize": 1}
    cursor = server.must("t", found)["cursor"]["id"]
    held = server.engine.memory.used
    assert held > 200_000
    more = {"getMore": cursor, "collection": "places", "batchSize": 100}
    assert len(server.must("t", more)["cursor"]["nextBatch"]) == 100
    assert server.engine.memory.used < held - 100_000
    assert len(server.must("t", more)["cursor"]["nextBatch"]) == 99
    assert server.engine.memory.used == 0
