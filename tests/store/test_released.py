"""A directory that each release has written is opened with all it has, by a server, a check, a backup and `compact`.

`released/VERSION.mdb.zst` is the data file of that version: `shop` with a collection with indexes and pre-images that
was updated, a capped one and a view.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zstandard
from bson import ObjectId

from headrace.backup.archive import BackupArchive, Sealer
from headrace.backup.places import Folder
from headrace.backup.restore import problems, restore
from headrace.hashing import sha256
from headrace.store.check.directory import check
from headrace.store.compaction import compact
from headrace.testing.driven import DrivenServer
from tests.backup.test_moments import ship

RELEASED = sorted((Path(__file__).parent / "released").iterdir())
LAST_INSERT = (
    "826B08A4FD000000CD2B042C0100296E5A10045CF84B75841543F0972F036EBF731E2C463C6F7065726174696F6E54797065003C696E73657274"
    "0046646F63756D656E744B657900461E5F6964002C018E000004"
)


@pytest.fixture(params=RELEASED, ids=lambda path: path.name.removesuffix(".mdb.zst"))
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.mdb").write_bytes(zstandard.decompress(request.param.read_bytes()))
    return tmp_path / "data"


def test_a_directory_of_a_release_has_its_documents_indexes_and_history(data: Path) -> None:
    with DrivenServer(data) as server:
        orders = server.must("shop", {"find": "orders", "batchSize": 1000})["cursor"]["firstBatch"]
        assert [item["_id"] for item in orders] == list(range(199))
        assert all(
            item.get("changed", False) is (item["n"] == 3) and item["text"] == "x" * item["_id"] for item in orders
        )
        plan = server.must("shop", {"explain": {"find": "orders", "filter": {"n": 3}}, "verbosity": "executionStats"})
        assert plan["executionStats"]["totalDocsExamined"] == plan["executionStats"]["nReturned"] == 28
        refused = server.run("shop", {"insert": "orders", "documents": [{"_id": 1000, "key": "k1"}]})
        assert isinstance(refused, dict) and refused["writeErrors"][0]["code"] == 11000
        assert server.must("shop", {"count": "threes"})["n"] == 28
        assert server.must("shop", {"collStats": "log"})["capped"]
        stage = {"resumeAfter": {"_data": LAST_INSERT}, "fullDocumentBeforeChange": "required"}
        aggregate = {"aggregate": "orders", "pipeline": [{"$changeStream": stage}], "cursor": {"batchSize": 1000}}
        events = server.must("shop", aggregate)["cursor"]["firstBatch"]
        assert [event["operationType"] for event in events] == [*["update"] * 29, "delete"]
        assert events[-1]["fullDocumentBeforeChange"]["text"] == "x" * 199
        assert server.must("shop", {"validate": "orders", "full": True})["valid"]
    assert check(data).problems == []


def test_a_directory_of_0_1_0_keeps_the_id_of_its_replica_set_when_it_moves(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.mdb").write_bytes(zstandard.decompress(RELEASED[0].read_bytes()))
    with DrivenServer(tmp_path / "data") as server:
        first = set_id(server)
        assert first == ObjectId(sha256(f"rs0\0{tmp_path / 'data'}".encode())[:12])
    (tmp_path / "data").rename(tmp_path / "moved")
    with DrivenServer(tmp_path / "moved") as server:
        assert set_id(server) == first


def set_id(server: DrivenServer) -> Any:
    return server.must("admin", {"replSetGetConfig": 1})["config"]["settings"]["replicaSetId"]


def test_a_directory_of_a_release_is_backed_up_and_compacted(data: Path, tmp_path: Path) -> None:
    assert check(data).problems == []
    compact(data)
    archive = BackupArchive(Folder(tmp_path / "archive"), Sealer())
    with DrivenServer(data) as server:
        server.must("shop", {"insert": "orders", "documents": [{"_id": 500, "key": "new"}]})
    ship(data, archive)
    with DrivenServer(data) as server:
        server.must("shop", {"insert": "orders", "documents": [{"_id": 501, "key": "newer"}]})
    ship(data, archive)
    assert list(problems(archive)) == []
    restore(archive, tmp_path / "restored")
    with DrivenServer(tmp_path / "restored") as server:
        assert server.must("shop", {"count": "orders"})["n"] == 201
