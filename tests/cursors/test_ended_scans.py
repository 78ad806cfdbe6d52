"""What a getMore says whose collection or index is no longer there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace.testing.driven import DrivenServer

BEGIN = "Executor error during getMore :: caused by :: "
READS: list[dict[str, Any]] = [
    {"hint": {"$natural": 1}}, {"hint": "_id_", "filter": {}}, {"hint": "a_1", "filter": {"a": {"$gte": 0}}},
]  # fmt: skip


@pytest.mark.parametrize("read", READS, ids=str)
@pytest.mark.parametrize("change", ["drop", "renameCollection", "dropIndexes"])
def test_a_getmore_says_what_ended_its_scan(read: dict[str, Any], change: str) -> None:
    pad = "x" * 100_000  # more documents than a scan reads at once
    with DrivenServer() as server:
        server.must(
            "t", {"insert": "c", "documents": [{"_id": number, "a": number, "pad": pad} for number in range(90)]}
        )
        server.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
        (info,) = server.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
        uuid = UUID(bytes=bytes(info["info"]["uuid"]))
        cursor = server.must("t", {"find": "c", "batchSize": 2, **read})["cursor"]["id"]
        if change == "renameCollection":
            server.must("admin", {change: "t.c", "to": "t.d"})
            expected = f"collection renamed from 't.c' to 't.d'. UUID {uuid}"
        elif change == "drop":
            server.must("t", {change: "c"})
            expected = f"collection dropped. UUID {uuid}"
        else:
            server.must("t", {change: "c", "index": "a_1"})
            expected = "query plan killed :: index 'a_1' dropped" if read["hint"] == "a_1" else ""
        reply = server.run("t", {"getMore": cursor, "collection": "c", "batchSize": 80})
        assert isinstance(reply, dict)
        assert (reply.get("code"), reply.get("errmsg")) == ((175, BEGIN + expected) if expected else (None, None))


def test_a_tailable_cursor_says_that_its_collection_was_renamed() -> None:
    with DrivenServer() as server:
        server.must("t", {"create": "c", "capped": True, "size": 4096})
        server.must("t", {"insert": "c", "documents": [{"a": 1}]})
        cursor = server.must("t", {"find": "c", "tailable": True})["cursor"]["id"]
        server.must("admin", {"renameCollection": "t.c", "to": "t.d"})
        reply = server.run("t", {"getMore": cursor, "collection": "c"})
        assert isinstance(reply, dict)
        assert reply["code"] == 175
        assert "collection renamed from 't.c' to 't.d'. UUID " in reply["errmsg"]
