"""A stream's own stages: what they see, when conditions are asked, what they may not change."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.changes.builder import EventBuilder
from headrace.changes.entry import DecodedEntry
from headrace.changes.stream import parse_stream
from headrace.changes.stream_pipeline import StreamPipeline
from headrace.errors import CommandError
from headrace.values.bson import decode
from tests.changes.oplog import (
    Documents,
    command,
    delete,
    documents,
    events_in,
    insert,
    inside,
    replace,
    stream,
    transaction,
    update,
)  # fmt: skip

ENTRIES = [
    insert({"_id": 1, "user": "alice", "n": 5}, increment=1),
    insert({"_id": 2, "user": "bob", "n": 50}, increment=2),
    update(1, {"d": {"tags": False}, "u": {"n": 6}}, increment=3),
    replace({"_id": 2, "user": "bob"}, increment=4),
    delete(2, increment=5),
    transaction(inside("i", {"_id": 3, "user": "alice"}, {"_id": 3}), increment=6),
    command({"drop": "c"}, increment=7),
]
ALL = ["insert", "insert", "update", "replace", "delete", "insert", "drop", "invalidate"]
FILTERS: list[tuple[Any, list[str]]] = [
    ({}, ALL),
    ({"operationType": "insert"}, ["insert", "insert", "insert"]),
    ({"operationType": {"$ne": "insert"}}, ["update", "replace", "delete", "drop", "invalidate"]),
    ({"operationType": {"$in": ["update", "drop"]}}, ["update", "drop"]),
    ({"ns.coll": "c"}, ALL[:-1]),
    ({"ns": {"db": "d", "coll": "c"}}, ALL[:-1]),
    ({"ns.coll": {"$exists": False}}, ["invalidate"]),
    ({"documentKey._id": 2}, ["insert", "replace", "delete"]),
    ({"documentKey._id": {"$gte": 2}, "operationType": "insert"}, ["insert", "insert"]),
    ({"documentKey": {"$exists": False}}, ["drop", "invalidate"]),
    ({"fullDocument.user": "alice"}, ["insert", "insert"]),
    ({"$or": [{"fullDocument.user": "alice"}, {"operationType": "delete"}]}, ["insert", "delete", "insert"]),
    ({"updateDescription.updatedFields.n": {"$exists": True}}, ["update"]),
    ({"updateDescription.removedFields": "tags"}, ["update"]),
    ({"txnNumber": {"$exists": True}}, ["insert"]),
    ({"$expr": {"$gt": ["$fullDocument.n", 10]}}, ["insert"]),
    ({"wallTime": {"$type": "date"}, "clusterTime": {"$type": "timestamp"}}, ALL),
    ({"_id._data": {"$type": "string"}}, ALL),
    ({"operationType": "nosuch"}, []),
    ({"$nor": [{"operationType": "insert"}]}, ["update", "replace", "delete", "drop", "invalidate"]),
]


@pytest.mark.parametrize(("condition", "kinds"), FILTERS)
def test_a_match_selects_what_it_names(condition: Any, kinds: list[str]) -> None:
    result = documents(events_in(stream("collection", {"$match": condition}), *ENTRIES))
    assert [document["operationType"] for document in result] == kinds
    twice = stream("collection", {"$match": {"operationType": {"$exists": True}}}, {"$match": condition})
    assert documents(events_in(twice, *ENTRIES)) == result


@pytest.mark.parametrize(("condition", "kinds"), FILTERS)
def test_a_match_behind_another_stage_selects_the_same(condition: Any, kinds: list[str]) -> None:
    spec = stream("collection", {"$addFields": {"more": 1}}, {"$match": condition})
    assert [document["operationType"] for document in documents(events_in(spec, *ENTRIES))] == kinds


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ({"operationType": "insert", "ns.db": "d"}, "fixed"),
        ({"documentKey._id": 1}, "header"),
        ({"$or": [{"operationType": "x"}, {"documentKey._id": 1}]}, "header"),
        ({"updateDescription.updatedFields.a": 1}, "early"),
        ({"fullDocument.a": 1}, "late"),
        ({"$expr": {"$eq": ["$operationType", "insert"]}}, "fixed"),
    ],
)
def test_conditions_are_asked_as_early_as_they_can_be(condition: Any, where: str) -> None:
    pipeline = StreamPipeline(stream("collection", {"$match": condition}))
    asked = {name: len(getattr(pipeline, name)) for name in ("fixed", "header", "early", "late")}
    assert {name for name, count in asked.items() if count} == {where}
    assert not pipeline.changes


@pytest.mark.parametrize("condition", [{"operationType": "delete"}, {"documentKey._id": 5}, {"updateDescription": 1}])
def test_nothing_is_looked_up_for_an_event_that_is_not_wanted(condition: Any) -> None:
    lookup = Documents({"_id": 1})
    spec = stream("collection", {"$match": condition}, fullDocument="updateLookup")
    assert events_in(spec, update(1, {"u": {"a": 1}}), lookup=lookup) == []
    assert lookup.asked == []


def test_a_condition_on_the_looked_up_document_sees_it() -> None:
    spec = stream("collection", {"$match": {"fullDocument.a": 9}}, fullDocument="updateLookup")
    data = update(1, {"u": {"a": 1}})
    assert len(events_in(spec, data, lookup=Documents({"_id": 1, "a": 9}))) == 1
    assert events_in(spec, data, lookup=Documents({"_id": 1, "a": 8})) == []


def test_streams_with_different_conditions_share_one_event() -> None:
    wrapped = DecodedEntry(insert({"_id": 1, "a": 5}))
    conditions = [{"fullDocument.a": 5}, {"operationType": "insert"}, {"documentKey._id": 1}, {}]
    specs = [stream("collection", {"$match": condition}) for condition in conditions] + [stream("database")]
    result = [EventBuilder(spec, Documents()).build(wrapped)[0] for spec in specs]
    assert all(event is result[0] for event in result)


def test_a_collation_is_that_of_the_stream() -> None:
    stage = {"$match": {"fullDocument.user": "ALICE"}}
    pipeline = [{"$changeStream": {}}, stage]
    assert events_in(parse_stream("d", "c", pipeline), ENTRIES[0]) == []
    spec = parse_stream("d", "c", pipeline, collation={"locale": "en", "strength": 2})
    assert len(events_in(spec, ENTRIES[0])) == 1


CHANGED_IDS: list[tuple[dict[str, Any], str]] = [
    ({"$project": {"_id": 0, "operationType": 1}}, "{}"),
    ({"$project": {"_id": "$operationType"}}, '{ _id: "insert" }'),
    ({"$addFields": {"_id": 5}}, "{ _id: 5 }"),
    ({"$addFields": {"_id.x": 1}}, "x: 1 } }"),
    ({"$unset": "_id._data"}, "{ _id: {} }"),
    ({"$replaceRoot": {"newRoot": {"doc": "$fullDocument"}}}, "{}"),
    ({"$replaceWith": "$fullDocument"}, "{ _id: 1 }"),
]


@pytest.mark.parametrize(("stage", "result"), CHANGED_IDS)
def test_an_event_without_its_id_is_an_error(stage: dict[str, Any], result: str) -> None:
    with pytest.raises(CommandError) as caught:
        events_in(stream("collection", stage), ENTRIES[0])
    error = caught.value
    assert (error.code, error.labels) == (280, ("NonResumableChangeStreamError",))
    assert error.message.startswith(
        "Encountered an event whose _id field, which contains the resume token, was modified"
    )
    assert "Expected: { _id: { _data: " in error.message
    assert error.message.endswith(result)


BEHIND = ["wallTime", "fullDocument", "ns", "documentKey"]
UNCHANGED_IDS: list[tuple[dict[str, Any], list[str]]] = [
    ({"$project": {"operationType": 1}}, ["_id", "operationType"]),
    ({"$project": {"_id": 1, "key": "$documentKey._id"}}, ["_id", "key"]),
    ({"$unset": ["wallTime", "clusterTime"]}, ["_id", "operationType", "fullDocument", "ns", "documentKey"]),
    ({"$replaceWith": {"_id": "$_id", "op": "$operationType"}}, ["_id", "op"]),
    ({"$set": {"_id": "$_id"}}, ["_id", "operationType", "clusterTime", *BEHIND]),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "names"), UNCHANGED_IDS)
def test_an_event_that_keeps_its_id_may_be_changed(stage: dict[str, Any], names: list[str]) -> None:
    (event,) = events_in(stream("collection", stage), ENTRIES[0])
    document = decode(event.document or b"")
    assert list(document) == names
    assert document["_id"] == decode(event.token_document)


def test_an_event_that_a_later_stage_drops_is_not_returned() -> None:
    prune = {"$redact": {"$cond": [{"$eq": ["$operationType", "insert"]}, "$$KEEP", "$$PRUNE"]}}
    events = events_in(stream("collection", prune), *ENTRIES)
    assert [document["operationType"] for document in documents(events)] == ["insert"] * 3
    assert events[-1].closes
    assert events[-1].document is None


def test_a_stage_that_fails_fails_the_stream() -> None:
    with pytest.raises(CommandError) as caught:
        events_in(stream("collection", {"$project": {"a": {"$divide": ["$fullDocument.n", 0]}}}), ENTRIES[0])
    assert caught.value.code in (2, 16608)
