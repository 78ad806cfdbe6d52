"""Time series: what `create` and collMod take, how they are listed, and what is refused on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Document = dict[str, Any]
NOW = 1_700_000_000_000


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock(NOW)) as server:
        yield server


def code(at: DrivenServer, body: Document, database: str = "t") -> int:
    with pytest.raises(CommandError) as refused:
        at.must(database, body)
    return refused.value.code


def listed(at: DrivenServer, name: str) -> Document:
    found = at.must("t", {"listCollections": 1, "filter": {"name": name}})["cursor"]["firstBatch"]
    return found[0] if found else {}


@pytest.mark.parametrize(
    ("option", "stored"),
    [
        ({}, {"granularity": "seconds", "bucketMaxSpanSeconds": 3600}),
        ({"granularity": None, "bucketMaxSpanSeconds": None}, {"granularity": "seconds", "bucketMaxSpanSeconds": 3600}),
        ({"granularity": "minutes"}, {"granularity": "minutes", "bucketMaxSpanSeconds": 86_400}),
        ({"granularity": "hours", "bucketMaxSpanSeconds": 2_592_000},
         {"granularity": "hours", "bucketMaxSpanSeconds": 2_592_000}),
        ({"metaField": "m", "bucketMaxSpanSeconds": 300, "bucketRoundingSeconds": 300.0},
         {"metaField": "m", "bucketMaxSpanSeconds": 300, "bucketRoundingSeconds": 300}),
    ],
)  # fmt: skip
def test_the_option_is_listed_with_its_defaults(at: DrivenServer, option: Document, stored: Document) -> None:
    at.must("t", {"create": "c", "timeseries": {"timeField": "at", **option}})
    shown = listed(at, "c")
    assert shown["type"] == "timeseries" and shown["info"] == {"readOnly": False}
    assert shown["options"] == {"timeseries": {"timeField": "at", **stored}}
    buckets = listed(at, "system.buckets.c")
    assert buckets["type"] == "collection" and buckets["options"]["clusteredIndex"] is True
    at.must("t", {"create": "c", "timeseries": {"timeField": "at", **option}})
    assert code(at, {"create": "c", "timeseries": {"timeField": "other"}}) == 48
    assert code(at, {"create": "c"}) == 48


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("c", 14), ({}, 40414), ({"timeField": None}, 40414), ({"timeField": 5}, 14), ({"timeField": "a.b"}, 72),
        ({"timeField": "a\0b"}, 2), ({"timeField": "a", "metaField": 5}, 14),
        ({"timeField": "a", "metaField": "a"}, 72),
        ({"timeField": "a", "metaField": "_id"}, 72), ({"timeField": "a", "metaField": "x.y"}, 72),
        ({"timeField": "a", "metaField": "x\0"}, 2), ({"timeField": "a", "granularity": "days"}, 2),
        ({"timeField": "a", "granularity": 5}, 14), ({"timeField": "a", "bucketMaxSpanSeconds": "5"}, 14),
        ({"timeField": "a", "bucketMaxSpanSeconds": 300}, 72), ({"timeField": "a", "bucketRoundingSeconds": 300}, 72),
        ({"timeField": "a", "bucketMaxSpanSeconds": 300, "bucketRoundingSeconds": 600}, 72),
        ({"timeField": "a", "bucketMaxSpanSeconds": 0, "bucketRoundingSeconds": 0}, 2),
        ({"timeField": "a", "bucketMaxSpanSeconds": float("nan"), "bucketRoundingSeconds": 1}, 2),
        ({"timeField": "a", "bucketMaxSpanSeconds": 31_536_001, "bucketRoundingSeconds": 31_536_001}, 2),
        ({"timeField": "a", "bucketMaxSpanSeconds": 300, "granularity": "seconds"}, 72),
        ({"timeField": "a", "bucketRoundingSeconds": 60, "granularity": "seconds"}, 72),
        ({"timeField": "a", "other": 1}, 40415),
    ],
)  # fmt: skip
def test_other_options_are_refused(at: DrivenServer, option: Any, expected: int) -> None:
    assert code(at, {"create": "c", "timeseries": option}) == expected
    assert not listed(at, "c") and not listed(at, "system.buckets.c")


@pytest.mark.parametrize(
    "more",
    [
        {"capped": True, "size": 1000}, {"viewOn": "x"}, {"validator": {"a": 1}}, {"expireAfterSeconds": -1},
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}, {"idIndex": {"key": {"_id": 1}, "name": "_id_"}},
        {"changeStreamPreAndPostImages": {"enabled": True}}, {"validationLevel": "off"},
    ],
)  # fmt: skip
def test_options_of_other_collections_are_refused(at: DrivenServer, more: Document) -> None:
    assert code(at, {"create": "c", "timeseries": {"timeField": "t"}, **more}) == 72


@pytest.fixture
def made(at: DrivenServer) -> DrivenServer:
    at.must("t", {"create": "c", "timeseries": {"timeField": "at", "metaField": "m"}, "expireAfterSeconds": 60})
    documents = [{"_id": number, "at": DatetimeMS(NOW + number * 1000), "m": number % 2} for number in range(10)]
    assert at.must("t", {"insert": "c", "documents": documents})["n"] == 10
    return at


def test_names_of_buckets_are_their_own(at: DrivenServer) -> None:
    assert code(at, {"create": "system.buckets.c"}) == 73
    assert code(at, {"create": "system.x", "timeseries": {"timeField": "t"}}) == 73
    assert at.run("t", {"insert": "system.buckets.c", "documents": [{}]})["writeErrors"][0]["code"] == 73
    assert code(at, {"createIndexes": "system.buckets.c", "indexes": [{"key": {"a": 1}, "name": "a"}]}) == 73


def test_what_no_time_series_takes_is_refused(made: DrivenServer) -> None:
    assert code(made, {"renameCollection": "t.c", "to": "t.d"}, "admin") == 20
    assert code(made, {"renameCollection": "t.system.buckets.c", "to": "t.d"}, "admin") == 20
    assert code(made, {"convertToCapped": "c", "size": 1000}) == 166
    assert code(made, {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": 1000}) == 166
    assert code(made, {"findAndModify": "c", "query": {}, "update": {"$set": {"m": 1}}}) == 72
    assert code(made, {"findAndModify": "c", "query": {}, "remove": True, "sort": {"m": 1}}) == 72
    watch = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    assert code(made, watch) == 166
    assert code(made, {"aggregate": "c", "pipeline": [{"$merge": "c"}], "cursor": {}}) == 166
    bucket = {"insert": "system.buckets.c", "documents": [{"control": {"version": 1}}]}
    assert code(made, bucket) == 121


def test_its_age_and_the_length_of_its_buckets_can_be_changed(made: DrivenServer) -> None:
    made.must("t", {"collMod": "c", "timeseries": {"granularity": "minutes"}, "expireAfterSeconds": 3600})
    option = {"timeField": "at", "metaField": "m", "granularity": "minutes", "bucketMaxSpanSeconds": 86_400}
    assert listed(made, "c")["options"] == {"expireAfterSeconds": Int64(3600), "timeseries": option}
    assert code(made, {"collMod": "c", "timeseries": {"granularity": "seconds"}}) == 72
    assert code(made, {"collMod": "c", "timeseries": {"bucketMaxSpanSeconds": 300, "bucketRoundingSeconds": 300}}) == 72
    custom = {"bucketMaxSpanSeconds": 100_000, "bucketRoundingSeconds": 100_000}
    made.must("t", {"collMod": "c", "timeseries": custom, "expireAfterSeconds": "off"})
    assert listed(made, "c")["options"] == {"timeseries": {"timeField": "at", "metaField": "m", **custom}}
    assert code(made, {"collMod": "c", "validator": {}}) == 72
    assert code(made, {"collMod": "c", "viewOn": "d", "pipeline": []}) == 72
    made.must("t", {"create": "plain"})
    assert code(made, {"collMod": "plain", "timeseries": {"granularity": "hours"}}) == 72
    assert code(made, {"collMod": "plain", "timeseriesBucketsMayHaveMixedSchemaData": True}) == 72
    made.must("t", {"collMod": "c", "timeseriesBucketsMayHaveMixedSchemaData": True})
    made.must("t", {"insert": "c", "documents": [{"at": DatetimeMS(NOW + 90_000_000), "m": 1}]})
    assert len(made.must("t", {"find": "c", "filter": {"at": {"$gt": DatetimeMS(NOW)}}})["cursor"]["firstBatch"]) == 10


def test_dropping_it_drops_its_buckets(made: DrivenServer) -> None:
    assert made.must("t", {"drop": "c"}) == made.must("t", {"drop": "x"}) | {"ns": "t.c", "nIndexesWas": 1}
    assert not listed(made, "c") and not listed(made, "system.buckets.c")
    made.must("t", {"create": "d", "timeseries": {"timeField": "at"}})
    made.must("t", {"drop": "system.buckets.d"})
    assert not listed(made, "d") and not listed(made, "system.buckets.d")
    made.must("t", {"create": "d", "timeseries": {"timeField": "at"}})
    made.must("t", {"dropDatabase": 1})
    assert not listed(made, "d") and not listed(made, "system.buckets.d")


def test_it_survives_a_restart(tmp_path: Path) -> None:
    with DrivenServer(tmp_path / "data") as at:
        at.must("t", {"create": "c", "timeseries": {"timeField": "at"}})
        at.must("t", {"insert": "c", "documents": [{"at": DatetimeMS(NOW + number)} for number in range(50)]})
        at.restart()
        assert listed(at, "c")["type"] == "timeseries"
        at.must("t", {"insert": "c", "documents": [{"at": DatetimeMS(NOW)}]})
        assert at.must("t", {"count": "c"})["n"] == 51
        assert at.must("t", {"count": "system.buckets.c"})["n"] == 1


def test_its_sizes_are_those_of_its_buckets(made: DrivenServer) -> None:
    stats = made.must("t", {"collStats": "c"})
    assert stats["ns"] == "t.c" and stats["timeseries"]["bucketsNs"] == "t.system.buckets.c"
    assert stats["timeseries"]["bucketCount"] == 2 and "count" not in stats
    pipeline = [{"$collStats": {"storageStats": {}}}]
    shown = made.must("t", {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]["firstBatch"][0]
    assert shown["storageStats"]["timeseries"] == stats["timeseries"]
    assert made.must("t", {"validate": "c"})["valid"]


def test_indexes_have_the_names_of_its_fields(made: DrivenServer) -> None:
    wanted = [
        {"key": {"m.x": 1, "at": -1}, "name": "a"}, {"key": {"at": 1}, "name": "b"}, {"key": {"v": -1}, "name": "c"},
        {"key": {"m.place": "2dsphere"}, "name": "d"}, {"key": {"m": "hashed"}, "name": "e"},
    ]  # fmt: skip
    made.must("t", {"createIndexes": "c", "indexes": wanted})
    shown = made.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [(spec["name"], spec["key"]) for spec in shown] == [
        ("m_1_at_1", {"m": 1, "at": 1}), *((spec["name"], spec["key"]) for spec in wanted)
    ]  # fmt: skip
    of_buckets = made.must("t", {"listIndexes": "system.buckets.c"})["cursor"]["firstBatch"]
    keys = {spec["name"]: list(spec["key"].items()) for spec in of_buckets}
    assert keys["m_1_at_1"] == [("meta", 1), ("control.min.at", 1), ("control.max.at", 1)]
    assert keys["a"] == [("meta.x", 1), ("control.max.at", -1), ("control.min.at", -1)]
    made.must("t", {"dropIndexes": "c", "index": {"at": 1}})
    made.must("t", {"dropIndexes": "c", "index": "c"})
    assert code(made, {"dropIndexes": "c", "index": {"x": 1}}) == 27
    made.must("t", {"dropIndexes": "c", "index": "*"})
    assert made.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"] == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"key": {"m": 1}, "unique": True}, 72), ({"key": {"m": "text"}}, 72), ({"key": {"v": 1}, "sparse": True}, 72),
        ({"key": {"$**": 1}}, 7246201), ({"key": {"at": 1}, "expireAfterSeconds": 5}, 72),
        ({"key": {"v": "2dsphere"}}, 72), ({"key": {"_id": 1}}, 72), ({"key": {"v": "hashed"}}, 67),
        ({"key": {"v": "2d"}}, 67), ({"key": {"m": 1}, "partialFilterExpression": {"v": 1}}, 72),
        ({"key": {"m": 1}, "partialFilterExpression": {"m": 1}, "collation": {"locale": "en"}}, 85),
        ({"key": {"m": 1}, "partialFilterExpression": {"$and": [{"m": 1}, {"at": {"$gt": DatetimeMS(0)}}]}}, 72),
    ],
)  # fmt: skip
def test_other_indexes_are_refused(made: DrivenServer, spec: Document, expected: int) -> None:
    assert code(made, {"createIndexes": "c", "indexes": [{"name": "x", **spec}]}) == expected


def test_a_partial_index_covers_sources(made: DrivenServer) -> None:
    covered: Document = {"$or": [{"m.x": {"$gt": 2}}, {"m": "a"}]}
    spec = {"key": {"at": 1}, "name": "p", "partialFilterExpression": covered}
    for _ in range(2):
        made.must("t", {"createIndexes": "c", "indexes": [spec]})
    assert made.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"][-1] == {"v": 2, **spec}
    stored = made.must("t", {"listIndexes": "system.buckets.c"})["cursor"]["firstBatch"][-1]
    assert stored["partialFilterExpression"] == {"$or": [{"meta.x": {"$gt": 2}}, {"meta": "a"}]}
    documents = [{"_id": n, "at": DatetimeMS(NOW + n), "m": {"x": n % 6}} for n in range(60)]
    made.must("t", {"insert": "c", "documents": [*documents, {"_id": 60, "at": DatetimeMS(NOW), "m": "a"}]})
    found = made.must("t", {"find": "c", "filter": {"m.x": {"$gte": 3}}, "hint": "p"})["cursor"]["firstBatch"]
    assert sorted(item["_id"] for item in found) == [n for n in range(60) if n % 6 >= 3]
    assert code(made, {"find": "c", "filter": {"m.x": 1}, "hint": "p"}) == 291
    made.must("t", {"collMod": "c", "index": {"name": "p", "hidden": True}})
    assert made.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"][-1] == {"v": 2, **spec, "hidden": True}
    assert made.must("t", {"validate": "system.buckets.c"})["valid"]


@pytest.mark.parametrize("pause", range(1, 6))
@pytest.mark.parametrize("ordered", [True, False])
def test_an_insert_whose_collection_becomes_a_time_series_in_a_pause_inserts_measurements(
    at: DrivenServer, ordered: bool, pause: int
) -> None:
    def between(pauses: int) -> None:
        if pauses == pause and not listed(at, "s"):
            at.must("t", {"create": "s", "timeseries": {"timeField": "t"}})

    documents = [{"_id": number, "t": DatetimeMS(NOW + number)} for number in range(3)]
    reply, _ = at.in_turns("t", {"insert": "s", "documents": documents, "ordered": ordered}, between)
    assert reply["n"] == 3 and "writeErrors" not in reply
    assert len(at.must("t", {"find": "s"})["cursor"]["firstBatch"]) == 3
    is_series = listed(at, "s")["type"] == "timeseries"
    assert at.must("t", {"count": "system.buckets.s"})["n"] == (1 if is_series else 0)


@pytest.mark.parametrize("pause", range(1, 6))
@pytest.mark.parametrize(
    "body",
    [
        {"insert": "s", "documents": [{"_id": 1}, {"_id": 2}]},
        {"update": "s", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": True}] * 2},
        {"findAndModify": "s", "query": {"_id": 1}, "update": {"$set": {"a": 1}}, "upsert": True},
    ],
    ids=["insert", "update", "findAndModify"],
)
def test_a_write_whose_collection_becomes_a_view_in_a_pause_stores_nothing(
    at: DrivenServer, body: Document, pause: int
) -> None:
    made: list[int] = []

    def between(pauses: int) -> None:
        if pauses == pause and not listed(at, "s"):
            at.must("t", {"create": "s", "viewOn": "other"})
            made.append(at.store.last_position)

    reply, _ = at.in_turns("t", body, between)
    if made:
        codes = [reply["code"]] if "code" in reply else [error["code"] for error in reply["writeErrors"]]
        assert len(codes) == 1 and codes[0] in (166, 175), reply
        assert at.store.last_position == made[0]
