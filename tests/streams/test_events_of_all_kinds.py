"""Streams carry places, words and time: indexes of their kinds with their options, geometry, and no buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Json = dict[str, Any]
POINT = {"type": "Point", "coordinates": [13.4, 52.5]}
RING = {"type": "Polygon", "coordinates": [[[0, 0], [2.5, 0], [2, 2], [0, 0]]]}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock(1_700_000_000_000)) as server:
        server.must("t", {"create": "before"})
        yield server


class Watcher:
    """A stream of a whole database, with or without the expanded events."""

    def __init__(self, at: DrivenServer, *, expanded: bool, **options: Any) -> None:
        self.at = at
        stream = {"$changeStream": {"showExpandedEvents": expanded, **options}}
        cursor = at.must("t", {"aggregate": 1, "pipeline": [stream], "cursor": {}})["cursor"]
        self.cursor = Int64(cursor["id"])

    def events(self) -> list[Json]:
        """All events since the last call."""
        got: list[Json] = []
        get_more = {"getMore": self.cursor, "collection": "$cmd.aggregate"}
        while isinstance(reply := self.at.run("t", get_more), dict):  # and no wait
            got += reply["cursor"]["nextBatch"]
        return got


INDEXES: list[tuple[Json, Json]] = [
    ({"key": {"at": "2dsphere", "a": -1}, "name": "s"}, {"2dsphereIndexVersion": 3}),
    ({"key": {"b.at": "2dsphere"}, "name": "v1", "2dsphereIndexVersion": 1}, {}),
    ({"key": {"xy": "2d"}, "name": "f", "bits": 20, "min": -10.5, "max": 10}, {}),
    (
        {"key": {"a": 1, "words": "text"}, "name": "w", "weights": {"words": 5}, "default_language": "fr"},
        {
            "key": {"a": 1, "_fts": "text", "_ftsx": 1}, "weights": {"words": 5}, "default_language": "fr",
            "language_override": "language", "textIndexVersion": 3,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize(("asked", "stored"), INDEXES)
def test_an_index_is_shown_with_all_its_options(at: DrivenServer, asked: Json, stored: Json, is_filled: bool) -> None:
    if is_filled:
        document = {"_id": 1, "a": 1, "at": POINT, "xy": [1, 2], "b": {"at": [1, 2]}, "words": "le chat"}
        at.must("t", {"insert": "c", "documents": [document]})
    else:
        at.must("t", {"create": "c"})
    plain, expanded = Watcher(at, expanded=False), Watcher(at, expanded=True)
    at.must("t", {"createIndexes": "c", "indexes": [asked]})
    at.must("t", {"collMod": "c", "index": {"name": asked["name"], "hidden": True}})
    at.must("t", {"dropIndexes": "c", "index": asked["name"]})
    assert plain.events() == []
    created, modified, dropped = expanded.events()
    spec = {"v": 2, **asked, **stored}
    assert (created["operationType"], created["operationDescription"]) == ("createIndexes", {"indexes": [spec]})
    assert modified["operationDescription"] == {"index": {"name": asked["name"], "hidden": True}}
    hidden = {**spec, "hidden": True}
    assert (dropped["operationType"], dropped["operationDescription"]) == ("dropIndexes", {"indexes": [hidden]})


def test_a_clustered_collection_is_shown_with_its_option(at: DrivenServer) -> None:
    stream = Watcher(at, expanded=True)
    clustered = {"key": {"_id": 1}, "unique": True, "name": "by id"}
    at.must("t", {"create": "c", "clusteredIndex": clustered, "expireAfterSeconds": 60})
    (event,) = stream.events()
    description = event["operationDescription"]
    assert description["clusteredIndex"] == {"v": 2, **clustered} and description["expireAfterSeconds"] == 60


def test_documents_with_geometry_and_text_are_as_they_were_written(at: DrivenServer) -> None:
    indexes = [{"key": {"at": "2dsphere"}, "name": "at"}, {"key": {"$**": "text"}, "name": "words"}]
    at.must("t", {"createIndexes": "c", "indexes": indexes})
    at.must("t", {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    stream = Watcher(at, expanded=False, fullDocument="required", fullDocumentBeforeChange="required")
    old = {"_id": 1, "at": RING, "words": "le chat", "pair": [1, 2.5]}
    at.must("t", {"insert": "c", "documents": [old]})
    within = {"at": {"$geoWithin": {"$centerSphere": [[1, 1], 0.1]}}, "$text": {"$search": "chat"}}
    change = {"$set": {"at": POINT, "words": "le chien"}}
    at.must("t", {"update": "c", "updates": [{"q": within, "u": change}]})
    near = {"at": {"$near": {"$geometry": POINT, "$maxDistance": 1}}}
    at.must("t", {"delete": "c", "deletes": [{"q": near, "limit": 1}]})
    inserted, updated, deleted = stream.events()
    assert inserted["fullDocument"] == old
    assert updated["updateDescription"]["updatedFields"] == change["$set"]
    assert (updated["fullDocumentBeforeChange"], updated["fullDocument"]) == (old, {**old, **change["$set"]})
    assert deleted["fullDocumentBeforeChange"] == {**old, **change["$set"]}


def test_a_time_series_has_no_events_of_its_buckets(at: DrivenServer) -> None:
    plain, expanded = Watcher(at, expanded=False), Watcher(at, expanded=True)
    option = {"timeField": "t", "metaField": "m"}
    at.must("t", {"create": "c", "timeseries": option})
    (created,) = expanded.events()
    assert (created["operationType"], created["nsType"]) == ("create", "timeseries")
    assert created["ns"] == {"db": "t", "coll": "c"}
    measurements = [{"_id": n, "t": DatetimeMS(1_700_000_000_000 + 1000 * n), "m": n % 2} for n in range(40)]
    at.must("t", {"insert": "c", "documents": measurements})
    at.must("t", {"insert": "c", "documents": measurements[:1]})
    at.must("t", {"delete": "c", "deletes": [{"q": {"m": 1}, "limit": 0}]})
    at.must("t", {"update": "c", "updates": [{"q": {"m": 0}, "u": {"$set": {"m": 7}}, "multi": True}]})
    out = [{"$match": {}}, {"$out": {"db": "t", "coll": "d", "timeseries": {"timeField": "t"}}}]
    at.must("t", {"aggregate": "c", "pipeline": out, "cursor": {}})
    assert not any(event["operationType"] in ("insert", "update", "replace", "delete") for event in expanded.events())
    at.must("t", {"drop": "c"})
    assert not any("system." in str(event.get("ns", {}).get("coll")) for event in expanded.events())
    assert plain.events() == []
    reply = at.run("t", {"aggregate": "d", "pipeline": [{"$changeStream": {}}], "cursor": {}})
    assert isinstance(reply, dict) and reply["code"] == 166
