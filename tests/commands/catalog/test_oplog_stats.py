"""The oplog as a shell shows it: its size, its bound and its window, as `rs.printReplicationInfo()` reads them."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

import headrace


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.insert_many([{"text": "x" * 1000} for _ in range(100)])
        yield client


def test_the_oplogs_stats_have_what_the_shell_needs(client: Any) -> None:
    stats = client.local.command("collStats", "oplog.rs")
    count = client.local["oplog.rs"].count_documents({})
    assert stats["ns"] == "local.oplog.rs" and stats["capped"] is True and stats["count"] == count >= 100
    assert 100_000 < stats["size"] < stats["maxSize"] and stats["max"] == 0
    (staged,) = client.local["oplog.rs"].aggregate([{"$collStats": {"storageStats": {"scale": 1024}}}])
    assert staged["storageStats"]["maxSize"] == stats["maxSize"] // 1024
    assert client.local.command("dbStats")["objects"] == count


def test_the_size_in_force_is_shown_everywhere(client: Any) -> None:
    size = client.local.command("collStats", "oplog.rs")["maxSize"]
    assert client.admin.command("getParameter", 1, oplogSizeMB=1)["oplogSizeMB"] == size / 1024**2
    (listed,) = client.local.list_collections(filter={"name": "oplog.rs"})
    assert listed["options"]["size"] == size
    databases = {item["name"]: item["sizeOnDisk"] for item in client.list_databases()}
    assert databases["local"] >= 100_000


def test_a_capped_collections_stats_have_its_bounds(client: Any) -> None:
    client.t.create_collection("capped", capped=True, size=8192, max=5)
    stats = client.t.command("collStats", "capped", scale=1024)
    assert (stats["capped"], stats["max"], stats["maxSize"]) == (True, 5, 8)
    plain = client.t.command("collStats", "c")
    assert plain["capped"] is False and "maxSize" not in plain


def test_the_oplog_cannot_be_dropped_or_validated(client: Any) -> None:
    with pytest.raises(OperationFailure) as raised:
        client.local.command("validate", "oplog.rs")
    assert raised.value.code == 26
