"""`$out` with `timeseries`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

START = 1_700_000_000_000


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        documents = [{"_id": number, "t": DatetimeMS(START + 1000 * number), "m": number % 3} for number in range(700)]
        server.must("t", {"insert": "plain", "documents": documents})
        yield server


def write(at: DrivenServer, coll: str, series: Any = ..., match: Any = None) -> None:
    spec = {"db": "t", "coll": coll} | ({} if series is ... else {"timeseries": series})
    at.must("t", {"aggregate": "plain", "pipeline": [{"$match": match or {}}, {"$out": spec}], "cursor": {}})


def ids(at: DrivenServer, coll: str = "c") -> list[int]:
    found = at.must("t", {"find": coll, "batchSize": 1000})["cursor"]["firstBatch"]
    return sorted(item["_id"] for item in found)


def test_it_makes_a_time_series_and_replaces_it(at: DrivenServer) -> None:
    opened = at.must("t", {"aggregate": 1, "pipeline": [{"$changeStream": {"showExpandedEvents": True}}], "cursor": {}})
    write(at, "c", {"timeField": "t", "metaField": "m"})
    assert ids(at) == list(range(700))
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"t": 1}, "name": "own"}]})
    write(at, "c", match={"_id": {"$lt": 10}})
    assert ids(at) == list(range(10))
    write(at, "c", {"timeField": "t", "metaField": "m", "granularity": "seconds"}, {"_id": {"$lt": 5}})
    assert ids(at) == list(range(5))
    shown = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [spec["name"] for spec in shown] == ["m_1_t_1", "own"]
    names = at.must("t", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"]
    assert sorted(item["name"] for item in names) == ["c", "plain", "system.buckets.c", "system.views"]
    more = {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate"}
    events: list[Any] = []
    for _ in range(4):
        reply = at.run("t", more, time_is_up=True)
        assert isinstance(reply, dict)
        events += reply["cursor"]["nextBatch"]
    assert [(item["operationType"], item["ns"]["coll"]) for item in events] == [("create", "c")]


@pytest.mark.parametrize(
    ("coll", "series", "code"),
    [
        ("plain", {"timeField": "t"}, 7268700), ("c", {"timeField": "t"}, 7406103), ("c", 5, 14), ("c", {}, 40414),
        ("d", {"timeField": "x"}, 2), ("d", {"timeField": "t", "granularity": "days"}, 2),
    ],
)  # fmt: skip
def test_other_targets_and_options_are_refused(at: DrivenServer, coll: str, series: Any, code: int) -> None:
    write(at, "c", {"timeField": "t", "metaField": "m"})
    with pytest.raises(CommandError) as refused:
        write(at, coll, series)
    assert refused.value.code == code
    assert ids(at) == ids(at, "plain") == list(range(700))
    names = at.must("t", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"]
    assert sorted(item["name"] for item in names) == ["c", "plain", "system.buckets.c", "system.views"]
