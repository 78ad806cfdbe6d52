"""`$merge` into a collection that has the documents already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import decode, encode

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

MODES: tuple[Any, ...] = ("merge", "replace", [{"$replaceWith": "$$new"}])


def entry_count(at: DrivenServer) -> int:
    """How many entries the oplog has."""
    with at.store.reading() as view:
        return sum(1 for _ in view.entries(0))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("value", [1.0, True], ids=repr)
def test_a_value_that_is_equal_but_of_another_type_is_written(tmp_path: Path, mode: Any, value: Any) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        at.must("t", {"insert": "s", "documents": [{"_id": 1, "a": value}]})
        merge = {"aggregate": "s", "pipeline": [{"$merge": {"into": "c", "whenMatched": mode}}], "cursor": {}}
        at.must("t", merge)
        (stored,) = at.must("t", {"find": "c"})["cursor"]["firstBatch"]
        assert encode(stored) == encode({"_id": 1, "a": value})
        before = entry_count(at)
        at.must("t", merge)
        assert entry_count(at) == before


@pytest.mark.parametrize("options", [{"viewOn": "s", "pipeline": []}, {"timeseries": {"timeField": "t"}}], ids=str)
def test_nothing_is_written_under_the_name_of_a_view_that_is_made_meanwhile(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    merge = {"aggregate": "s", "pipeline": [{"$match": {"a": {"$gte": 0}}}, {"$merge": {"into": "c"}}], "cursor": {}}
    codes = []
    for pause in range(1, 12):
        with DrivenServer(tmp_path / str(pause), clock=FakeClock()) as at:
            at.must("t", {"insert": "s", "documents": [{"_id": n, "a": n} for n in range(3)]})
            made: list[int] = []

            def between(count: int, at: DrivenServer = at, pause: int = pause, made: list[int] = made) -> None:
                if count == pause and at.run("t", {"create": "c", **options})["ok"] == 1.0:
                    made.append(at.store.last_position)

            reply, _ = at.in_turns("t", merge, between)
            codes.append(reply.get("code"))
            with at.store.reading() as view:
                written = [decode(raw) for _, raw in view.entries(made[0] + 1)] if made else []
            assert not written, (pause, written)
    assert 166 in codes
