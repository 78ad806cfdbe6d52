"""Unique indexes are built while others write, and hold what the collection holds in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.dispatch.engine import Engine
from headrace.store.check.directory import check

from .raw import RawClient

INDEX = {"key": {"n": 1}, "name": "u", "unique": True}
BUILD = {"createIndexes": "c", "indexes": [INDEX, {"key": {"x": 1}, "name": "x"}]}
COUNT = 1000


def fill(client: RawClient) -> None:
    documents = [{"_id": key, "n": key} for key in range(COUNT)]
    assert client.ask({"insert": "c", "documents": documents})["n"] == COUNT


def names(client: RawClient) -> list[str]:
    return [index["name"] for index in client.ask({"listIndexes": "c"})["cursor"]["firstBatch"]]


def begin_build(server: headrace.Server, client: RawClient) -> None:
    """Send the command, and return when it has looked at some documents."""
    client.send(BUILD)
    while not server._running.store.building:
        pass


def test_an_index_is_built_while_others_write(tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        server._running.scheduler.turns.seconds = 0.0
        begin_build(server, builder)
        for key in range(0, COUNT, 100):
            other.send({"insert": "c", "documents": [{"_id": COUNT + key, "n": COUNT + key}]})
            other.receive()
            other.ask({"update": "c", "updates": [{"q": {"_id": key + 7}, "u": {"$set": {"n": -key - 1}}}]})
            other.ask({"delete": "c", "deletes": [{"q": {"_id": key + 8}, "limit": 1}]})
        assert builder.receive()[1]["numIndexesAfter"] == 3
        assert names(other) == ["_id_", "u", "x"]
        refused = other.ask({"insert": "c", "documents": [{"_id": -1, "n": 5}]})
        assert refused["writeErrors"][0]["code"] == 11000
        assert other.ask({"insert": "c", "documents": [{"_id": -1, "n": 8}]})["n"] == 1  # that of a deleted one
    assert check(tmp_path).problems == []


@pytest.mark.parametrize("how", ["a duplicate", "killOp", "drop"])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, how: str) -> None:
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        if how == "a duplicate":
            other.ask({"insert": "c", "documents": [{"_id": "last", "n": 3}]})
        server._running.scheduler.turns.seconds = 0.0
        begin_build(server, builder)
        if how == "killOp":
            shown = other.ask({"currentOp": 1}, "admin")["inprog"]
            number = next(item["opid"] for item in shown if "createIndexes" in item.get("command", {}))
            other.ask({"killOp": 1, "op": number}, "admin")
        if how == "drop":
            other.ask({"drop": "c"})
        code = builder.receive()[1]["code"]
        assert code == {"a duplicate": 11000, "killOp": 11601, "drop": 175}[how]
        assert not server._running.store.building
        if how != "drop":
            assert names(other) == ["_id_"]
            assert other.ask({"insert": "c", "documents": [{"_id": "more", "n": 3}]})["n"] == 1
    assert check(tmp_path).problems == []


def test_a_build_begins_anew_when_another_write_fails_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Engine.run_write

    def run_write(self: Engine, command: Any, request: Any, txn: Any) -> Any:
        answer = original(self, command, request, txn)
        if request.body.get("documents") == [{"_id": "fails"}]:
            raise MemoryError("injected")
        return answer

    monkeypatch.setattr(Engine, "run_write", run_write)
    with headrace.Server(tmp_path) as server, RawClient(server.address) as builder, RawClient(server.address) as other:
        fill(other)
        server._running.scheduler.turns.seconds = 0.0
        begin_build(server, builder)
        numbers = set(server._running.store.building)
        assert other.ask({"insert": "d", "documents": [{"_id": "fails"}]})["code"] == 1
        while server._running.store.building == numbers:
            pass
        assert other.ask({"insert": "c", "documents": [{"_id": "a", "n": "a"}]})["n"] == 1
        assert builder.receive()[1]["numIndexesAfter"] == 3
        assert not server._running.store.building
        assert names(other) == ["_id_", "u", "x"]
    assert check(tmp_path).problems == []
