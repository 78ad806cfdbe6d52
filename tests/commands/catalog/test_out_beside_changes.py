"""`$out` beside changes of the collection that it replaces: no acknowledged change of the catalog is undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

OUT = {"aggregate": "source", "pipeline": [{"$match": {}}, {"$out": "goal"}], "cursor": {}}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        for name in ("source", "goal"):
            server.must("t", {"insert": name, "documents": [{"_id": number, "a": number % 4} for number in range(20)]})
        yield server


def out_beside(at: DrivenServer, *commands: dict[str, Any], pause: int) -> dict[str, Any]:
    """Run the `$out`, and other commands in one of its pauses."""

    def between(count: int) -> None:
        if count == pause:
            for command in commands:
                at.must("t", command)

    return at.in_turns("t", OUT, between)[0]


CHANGES: list[dict[str, Any]] = [
    {"createIndexes": "goal", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    {"collMod": "goal", "validator": {"a": {"$lt": 10}}},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_out_ends_with_an_error_if_the_goal_was_changed_meanwhile(at: DrivenServer, change: dict[str, Any]) -> None:
    reply = out_beside(at, change, pause=12)
    assert (reply["ok"], reply.get("code")) == (0.0, 125), reply
    shown = at.must("t", {"listCollections": 1})["cursor"]["firstBatch"]
    indexes = at.must("t", {"listIndexes": "goal"})["cursor"]["firstBatch"]
    assert sorted(item["name"] for item in shown) == ["goal", "source"]
    if "validator" in change:
        assert any(item["options"].get("validator") for item in shown)
    else:
        assert [item["name"] for item in indexes] == ["_id_", "a_1"]


def test_out_replaces_a_goal_that_was_dropped_or_written_meanwhile(at: DrivenServer) -> None:
    reply = out_beside(at, {"insert": "goal", "documents": [{"_id": 99}]}, {"drop": "goal"}, pause=12)
    assert reply["ok"] == 1.0
    assert at.must("t", {"count": "goal"})["n"] == 20
