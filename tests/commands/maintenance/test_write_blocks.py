"""Writes that wait for `fsyncUnlock`, and writes of users that `setUserWriteBlockMode` refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        yield server


WRITES: list[dict[str, Any]] = [
    {"insert": "c", "documents": [{"_id": 2}, {"_id": 3}]},
    {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
    {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
    {"findAndModify": "c", "query": {}, "update": {"$set": {"a": 1}}},
    {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}},
    {"aggregate": "c", "pipeline": [{"$merge": "d"}], "cursor": {}},
    {"create": "d"},
    {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    {"dropIndexes": "c", "index": "*"},
    {"collMod": "c", "validator": {"a": 1}},
    {"convertToCapped": "c", "size": 4096},
    {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": 4096},
    {"drop": "c"},
    {"dropDatabase": 1},
]
READS: list[dict[str, Any]] = [
    {"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "_id"}, {"aggregate": "c", "pipeline": [], "cursor": {}},
    {"listCollections": 1}, {"listIndexes": "c"},
]  # fmt: skip
EVERYWHERE: list[dict[str, Any]] = [
    {"renameCollection": "t.c", "to": "t.d"},
    {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "t.c"}]},
    {"applyOps": [{"op": "i", "ns": "t.c", "o": {"_id": 9}}]},
]


def state(server: DrivenServer) -> Any:
    return server.must("t", {"find": "c"})["cursor"]["firstBatch"]


# fsync


@pytest.mark.parametrize(
    "lock", [True, 1, Int64(2), 0.5, -1.5, math.nan, math.inf, Decimal128("NaN"), Decimal128("-1.5")]
)
def test_every_number_but_zero_locks(server: DrivenServer, lock: Any) -> None:
    reply = server.must("admin", {"fsync": 1, "lock": lock, "fsyncLockAcquisitionTimeoutMillis": 5})
    assert (reply["lockCount"], type(reply["lockCount"]), "numFiles" in reply) == (1, Int64, False)


@pytest.mark.parametrize("lock", [False, 0, Int64(0), 0.0, -0.0, Decimal128("0"), Decimal128("-0"), None])
def test_without_a_lock_nothing_is_to_be_done(server: DrivenServer, lock: Any) -> None:
    assert server.must("admin", {"fsync": 1, "lock": lock})["numFiles"] == 1
    assert server.run("admin", {"fsyncUnlock": 1})["code"] == 20


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lock": "x"}, 14), ({"lock": {}}, 14), ({"nope": 1}, 40415), ({"Lock": True}, 40415),
        ({"fsyncLockAcquisitionTimeoutMillis": Int64(1)}, 14), ({"fsyncLockAcquisitionTimeoutMillis": 1.5}, 14),
        ({"writeConcern": {"w": 1}}, 72), ({"apiVersion": "1", "apiStrict": True}, 323),
    ],
)  # fmt: skip
def test_what_is_wrong_with_fsync_is_refused(server: DrivenServer, fields: dict[str, Any], code: int) -> None:
    assert server.run("admin", {"fsync": 1, **fields})["code"] == code


def test_locks_are_counted(server: DrivenServer) -> None:
    for count in (1, 2, 3):
        assert server.must("admin", {"fsync": 1, "lock": True})["lockCount"] == count
    for count in (2, 1, 0):
        assert server.must("admin", {"fsyncUnlock": "x", "nope": 1})["lockCount"] == count
    assert server.run("admin", {"fsyncUnlock": 1})["code"] == 20
    assert server.run("t", {"fsyncUnlock": 1})["code"] == 13


def test_writes_wait_and_reads_go_on(server: DrivenServer) -> None:
    server.must("admin", {"fsync": 1, "lock": True})
    before = state(server)
    for write in WRITES:
        waits = server.run("t", write)
        assert isinstance(waits, Wait) and waits.over is not None and not waits.over(), write
    for write in EVERYWHERE:
        assert isinstance(server.run("admin", write), Wait), write
    for read in READS:
        assert server.must("t", read)["ok"] == 1.0
    failed = server.run("t", {**WRITES[0], "maxTimeMS": 5}, time_is_up=True)
    assert isinstance(failed, dict) and failed["code"] == 50
    assert state(server) == before
    server.must("admin", {"fsyncUnlock": 1})
    assert waits.over()
    assert server.must("t", WRITES[0])["n"] == 2


def test_a_transaction_is_committed_after_the_lock(server: DrivenServer) -> None:
    session = {"lsid": {"id": server_uuid()}, "txnNumber": Int64(1), "autocommit": False}
    server.must("t", {"insert": "c", "documents": [{"_id": 7}], "startTransaction": True, **session})
    server.must("admin", {"fsync": 1, "lock": True})
    assert isinstance(server.run("admin", {"commitTransaction": 1, **session}), Wait)
    server.must("admin", {"fsyncUnlock": 1})
    server.must("admin", {"commitTransaction": 1, **session})
    assert {"_id": 7} in state(server)


def server_uuid() -> Any:
    from bson import Binary

    return Binary(b"\7" * 16, 4)


# setUserWriteBlockMode


def test_writes_of_users_are_refused_and_reads_are_not(server: DrivenServer) -> None:
    server.must("admin", {"setUserWriteBlockMode": 1, "global": True})
    before = state(server)
    for write in WRITES:
        failed = server.run("t", write)
        assert isinstance(failed, dict)
        code = failed["writeErrors"][0]["code"] if "writeErrors" in failed else failed["code"]
        assert code == 371, write
    for write in EVERYWHERE:
        assert server.run("admin", write)["code"] == 371
    for read in READS:
        assert server.must("t", read)["ok"] == 1.0
    assert state(server) == before
    for database in ("admin", "config", "local"):
        assert server.must(database, {"insert": "c", "documents": [{}]})["n"] == 1
    server.must("admin", {"setUserWriteBlockMode": 1, "global": False})
    assert server.must("t", WRITES[0])["n"] == 2


@pytest.mark.parametrize(("ordered", "count"), [(True, 1), (False, 2)])
def test_each_statement_of_an_unordered_write_has_the_error(server: DrivenServer, ordered: bool, count: int) -> None:
    server.must("admin", {"setUserWriteBlockMode": 1, "global": True})
    reply = server.run("t", {**WRITES[0], "ordered": ordered})
    assert isinstance(reply, dict)
    assert reply["n"] == 0
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(n, 371) for n in range(count)]


def test_the_block_has_one_reason(server: DrivenServer) -> None:
    migration = {"reason": "ClusterToClusterMigrationInProgress"}
    for _ in range(2):
        server.must("admin", {"setUserWriteBlockMode": 1, "global": True, "reason": None})
    for wanted in (True, False):
        assert server.run("admin", {"setUserWriteBlockMode": 1, "global": wanted, **migration})["code"] == 20
    for _ in range(2):
        server.must("admin", {"setUserWriteBlockMode": 1, "global": False})
    server.must("admin", {"setUserWriteBlockMode": 1, "global": True, **migration})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        *(({"global": value}, 14) for value in (1, 0, 1.0, -0.0, math.nan, Int64(1), Decimal128("1"), "true", [], {})),
        ({}, 40414), ({"global": None}, 40414), ({"global": False, "nope": 1}, 40415),
        *(({"global": True, "reason": value}, 14) for value in (1, True, [], {})),
        ({"global": True, "reason": "InvalidReason"}, 2), ({"global": True, "reason": ""}, 2),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_block_is_refused(server: DrivenServer, fields: dict[str, Any], code: int) -> None:
    assert server.run("admin", {"setUserWriteBlockMode": 1, **fields})["code"] == code
    assert server.must("t", WRITES[0])["n"] == 2


def test_the_block_outlives_the_server_and_needs_an_oplog(tmp_path: Path) -> None:
    with DrivenServer(tmp_path) as server:
        server.must("admin", {"setUserWriteBlockMode": 1, "global": True})
        server.restart()
        assert server.run("t", {"create": "c"})["code"] == 371
    with DrivenServer(oplog=False) as standalone:
        assert standalone.run("admin", {"setUserWriteBlockMode": 1, "global": True})["code"] == 20
