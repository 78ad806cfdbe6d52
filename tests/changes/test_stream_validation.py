"""Refusals of `$changeStream`, row by row as the project's reference lists it (sections 2.1 to 2.3)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, DBRef, Int64, ObjectId, Regex, Timestamp

from headrace.changes.stream import parse_stream
from headrace.errors import CommandError
from headrace.values.token import high_water_mark, make_event_token
from tests.changes.oplog import UUID, at, events_in, insert, stream

EVENT = make_event_token(at(1), 0, UUID, "insert", b"\x0e\0\0\0\x10_id\0\x01\0\0\0\0", None)[0]
INVALIDATE = make_event_token(at(1), 0, UUID, "drop", None, None, from_invalidate=True)[0]
WITHOUT_UUID = make_event_token(at(1), 0, None, "dropDatabase", None, None)[0]
MARK = high_water_mark(at(1))
TOKEN = {"_data": EVENT}
TIME = Timestamp(1, 1)


def failure(spec: Any, *stages: Any, db: str = "d", coll: str | None = "c", **more: Any) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        parse_stream(db, coll, [{"$changeStream": spec}, *stages], **more)
    return caught.value.code, caught.value.message


def wrong_type(name: str, result: str, wanted: str) -> str:
    return f"BSON field '$changeStream.{name}' is the wrong type '{result}', expected type '{wanted}'"


@pytest.mark.parametrize("spec", [5, None, "x", [], [{}], True, 1.5, ObjectId(), b""])
def test_the_argument_is_an_object(spec: Any) -> None:
    code, message = failure(spec)
    assert code == 6188500
    assert message.startswith("$changeStream must take a nested object but found: $changeStream: ")


@pytest.mark.parametrize(
    "name", ["unknown", "FullDocument", " fullDocument", "fullDocument ", "fulldocument", "", "resumeafter", "$ref"]
)
def test_an_unknown_option_is_refused(name: str) -> None:
    assert failure({name: 1}) == (40415, f"BSON field '$changeStream.{name}' is an unknown field.")


OF_TYPE = {
    "allChangesForCluster": "bool",
    "fullDocument": "string",
    "fullDocumentBeforeChange": "string",
    "resumeAfter": "object",
    "showExpandedEvents": "bool",
    "showMigrationEvents": "bool",
    "showRawUpdateDescription": "bool",
    "showSystemEvents": "bool",
    "startAfter": "object",
    "startAtOperationTime": "timestamp",
}
SAMPLES: dict[str, Any] = {
    "array": ["default"], "binData": b"x", "bool": True, "double": 1.0, "int": 1, "long": Int64(1), "null": None,
    "object": {"a": 1}, "objectId": ObjectId(), "regex": Regex("a"), "string": "default", "timestamp": TIME,
}  # fmt: skip
NULL_ACCEPTED = {"fullDocument", "fullDocumentBeforeChange", "resumeAfter", "startAfter", "startAtOperationTime"}


@pytest.mark.parametrize("name", OF_TYPE)
@pytest.mark.parametrize("result", SAMPLES)
def test_an_option_of_another_type_is_refused_and_never_coerced(name: str, result: str) -> None:
    wanted = OF_TYPE[name]
    if result == wanted:
        return
    if result == "null" and name in NULL_ACCEPTED:
        parse_stream("d", "c", [{"$changeStream": {name: None}}])
        return
    assert failure({name: SAMPLES[result]}) == (14, wrong_type(name, result, wanted))


def test_a_dbref_and_an_expression_are_objects_like_any_other() -> None:
    assert failure({"fullDocument": DBRef("c", 1).as_doc().to_dict()})[0] == 14
    assert failure({"fullDocument": {"$concat": ["def", "ault"]}})[0] == 14
    assert failure({"resumeAfter": {"$ref": "c", "$id": 1}})[0] == 40647


@pytest.mark.parametrize(
    "value", ["", "Default", "DEFAULT", " default", "default ", "updatelookup", "default\0", "defaulт"]
)
def test_a_bad_full_document_is_compared_exactly(value: str) -> None:
    message = f"Enumeration value '{value}' for field '$changeStream.fullDocument' is not a valid value."
    assert failure({"fullDocument": value}) == (2, message)


@pytest.mark.parametrize("value", ["", "on", "OFF", "default", "updateLookup", "Required"])
def test_a_bad_full_document_before_change_is_compared_exactly(value: str) -> None:
    assert failure({"fullDocumentBeforeChange": value})[0] == 2


@pytest.mark.parametrize("value", ["default", "updateLookup", "whenAvailable", "required"])
def test_a_good_full_document_is_accepted(value: str) -> None:
    assert stream(fullDocument=value).shape.full_document == value


@pytest.mark.parametrize("value", ["off", "whenAvailable", "required"])
def test_a_good_full_document_before_change_is_accepted(value: str) -> None:
    assert stream(fullDocumentBeforeChange=value).shape.before_change == value


def test_the_first_option_that_is_wrong_is_reported() -> None:
    assert failure({"unknown": 1, "fullDocument": 5})[0] == 40415
    assert failure({"fullDocument": 5, "unknown": 1})[0] == 14


BAD_TOKENS = [
    ({}, 40647), ({"_data": 5}, 40647), ({"_data": None}, 40647), ({"_data": True}, 40647), ({"_data": b"x"}, 40647),
    ({"_data": ["82"]}, 40647), ({"_data": {}}, 40647), ({"data": "82"}, 40647),
    ({"_data": EVENT, "_typeBits": 1}, 40648), ({"_data": "zz", "_typeBits": "x"}, 40648),
    ({"_data": EVENT, "_typeBits": Binary(b"\0", 4)}, 40648),
    ({"_data": ""}, 40649), ({"_data": "zz"}, 9), ({"_data": "820"}, 9), ({"_data": "00"}, 50811),
    ({"_data": EVENT[:-4]}, 15),
]  # fmt: skip


@pytest.mark.parametrize("name", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize(("token", "code"), BAD_TOKENS)
def test_a_malformed_token_is_refused(name: str, token: dict[str, Any], code: int) -> None:
    assert failure({name: token})[0] == code


GOOD_TOKENS = [
    {"_data": EVENT}, {"_data": EVENT.lower()}, {"_data": EVENT[:-2]}, {"_data": EVENT + "FF00FF"},
    {"_data": EVENT, "more": 1}, {"_data": EVENT, "_typeBits": b"\0"}, {"_data": MARK},
]  # fmt: skip


@pytest.mark.parametrize("name", ["resumeAfter", "startAfter"])
@pytest.mark.parametrize("token", GOOD_TOKENS)
def test_a_token_a_client_may_hold_is_accepted(name: str, token: dict[str, Any]) -> None:
    spec = stream(**{name: token})
    assert spec.start == at(1)
    assert spec.start_after is (name == "startAfter")


def test_resume_options_exclude_each_other() -> None:
    both = failure({"resumeAfter": TOKEN, "startAfter": TOKEN})
    assert both == (50865, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage")
    for name in ("resumeAfter", "startAfter"):
        code, message = failure({name: TOKEN, "startAtOperationTime": TIME})
        assert (code, message) == (40674, "Only one type of resume option is allowed, but multiple were found.")
    parse_stream(
        "d", "c", [{"$changeStream": {"resumeAfter": None, "startAfter": TOKEN, "startAtOperationTime": None}}]
    )


def test_resume_after_an_invalidate_is_refused_and_start_after_is_not() -> None:
    assert failure({"resumeAfter": {"_data": INVALIDATE}}) == (
        260,
        "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.",
    )
    assert stream(startAfter={"_data": INVALIDATE}).start_after


def test_a_collections_stream_needs_a_token_with_a_uuid() -> None:
    code, message = failure({"resumeAfter": {"_data": WITHOUT_UUID}})
    assert code == 260
    assert message.startswith("Attempted to resume a single-collection stream, but the resume token does not include")
    stream("database", resumeAfter={"_data": WITHOUT_UUID})
    stream(resumeAfter={"_data": MARK})


@pytest.mark.parametrize(
    ("db", "coll", "result"),
    [
        ("d", "c", "d.c"), ("d", None, "d.$cmd.aggregate"), ("admin", "x", "admin.x"),
        ("local", None, "local.$cmd.aggregate"),
    ],
)  # fmt: skip
def test_the_deployment_is_watched_from_admin_only(db: str, coll: str | None, result: str) -> None:
    assert failure({"allChangesForCluster": True}, db=db, coll=coll) == (
        72,
        "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no "
        f"collection name; found {result}",
    )


@pytest.mark.parametrize("db", ["admin", "config", "local"])
@pytest.mark.parametrize("coll", [None, "x"])
def test_internal_databases_are_not_watched(db: str, coll: str | None) -> None:
    assert failure({}, db=db, coll=coll) == (73, f"$changeStream may not be opened on the internal {db} database")


def test_config_is_watched_when_allowed() -> None:
    parse_stream("config", "x", [{"$changeStream": {"allowToRunOnConfigDB": True}}])


@pytest.mark.parametrize("coll", ["system.x", "system.views", "system."])
def test_internal_collections_are_not_watched(coll: str) -> None:
    message = f"$changeStream may not be opened on the internal d.{coll} collection"
    assert failure({}, coll=coll) == (73, message)
    parse_stream("d", coll, [{"$changeStream": {"allowToRunOnSystemNS": True}}])


@pytest.mark.parametrize("coll", ["systemindexes", "system_users", "a$b", "$cmd", "x.system.y"])
def test_names_that_only_look_internal_are_watched(coll: str) -> None:
    assert parse_stream("d", coll, [{"$changeStream": {}}]).scope.cursor_namespace == f"d.{coll}"


def test_cursors_are_named_after_their_scope() -> None:
    names = {scope: stream(scope).scope.cursor_namespace for scope in ("collection", "database", "deployment")}
    assert names == {"collection": "d.c", "database": "d.$cmd.aggregate", "deployment": "admin.$cmd.aggregate"}


@pytest.mark.parametrize("name", ["showExpandedEvents", "showRawUpdateDescription", "showSystemEvents"])
@pytest.mark.parametrize("value", [True, False])
def test_the_strict_api_knows_fewer_options(name: str, value: bool) -> None:
    message = f"The '{name}' parameter to $changeStream is not supported in API Version 1"
    assert failure({name: value}, api_strict=True) == (323, message)
    assert parse_stream("d", "c", [{"$changeStream": {"fullDocument": "updateLookup"}}], api_strict=True)


ALLOWED: list[dict[str, Any]] = [
    {"$match": {"operationType": "insert"}}, {"$project": {"ns": 1}}, {"$addFields": {"a": 1}}, {"$set": {"a": 1}},
    {"$unset": "ns"}, {"$replaceRoot": {"newRoot": {"_id": "$_id"}}}, {"$replaceWith": {"_id": "$_id"}},
    {"$redact": "$$KEEP"}, {"$changeStreamSplitLargeEvent": {}}, {"$fill": {"output": {"a": {"value": 1}}}},
]  # fmt: skip
REFUSED: list[dict[str, Any]] = [
    {"$group": {"_id": "$operationType"}}, {"$sort": {"_id": 1}}, {"$skip": 1}, {"$limit": 1}, {"$sample": {"size": 1}},
    {"$unwind": "$a"}, {"$count": "n"}, {"$sortByCount": "$a"}, {"$bucket": {"groupBy": "$a", "boundaries": [0, 1]}},
    {"$lookup": {"from": "x", "localField": "a", "foreignField": "a", "as": "b"}}, {"$facet": {"a": []}},
    {"$graphLookup": {"from": "d", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x"}},
    {"$out": "x"}, {"$merge": {"into": "x"}}, {"$collStats": {}}, {"$indexStats": {}},
    {"$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}},
    {"$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}}},
    {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"b": {"$sum": "$a"}}}},
]  # fmt: skip


@pytest.mark.parametrize("stage", ALLOWED, ids=lambda stage: next(iter(stage)))
def test_stages_that_change_one_event_are_allowed(stage: dict[str, Any]) -> None:
    assert len(events_in(stream("collection", stage), insert({"_id": 1}))) == 1


@pytest.mark.parametrize("stage", REFUSED, ids=lambda stage: next(iter(stage)))
def test_stages_that_look_at_several_events_or_elsewhere_are_refused(stage: dict[str, Any]) -> None:
    code, message = failure({}, stage)
    assert code == 20
    assert message.endswith("is not permitted in a $changeStream pipeline")


SPLIT = {"$changeStreamSplitLargeEvent": {}}


@pytest.mark.parametrize(
    ("stages", "code"),
    [
        ([{"$changeStream": {}}], 40602),
        ([{"$nope": 1}], 40324),
        ([5], 14),
        ([{"$match": {"a": {"$nope": 1}}}], 2),
        ([{"$match": {"$where": "true"}}], 2),
        ([{"$project": {"a": {"$nope": 1}}}], 31325),
        ([{"$changeStreamSplitLargeEvent": {"a": 1}}], 7182800),
        ([SPLIT, {"$match": {}}], 7182802),
        ([SPLIT, SPLIT], 7183900),
    ],
)
def test_a_wrong_stage_is_refused_when_the_stream_is_opened(stages: list[Any], code: int) -> None:
    assert failure({}, *stages)[0] == code


def test_streams_share_when_all_but_their_resume_points_is_the_same() -> None:
    same = [
        stream(), stream(resumeAfter=TOKEN), stream(startAtOperationTime=TIME), stream(fullDocument="default"),
        stream(fullDocument=None, showExpandedEvents=False),
    ]  # fmt: skip
    different = [
        stream(), stream("database"), stream("deployment"), stream(fullDocument="updateLookup"),
        stream(fullDocumentBeforeChange="required"), stream(showExpandedEvents=True), stream("collection", SPLIT),
        stream("collection", {"$match": {"a": 1}}), stream("collection", {"$match": {"a": Int64(1)}}),
        parse_stream("d", "x", [{"$changeStream": {}}]),
        parse_stream("d", "c", [{"$changeStream": {}}], collation={"locale": "en"}),
    ]  # fmt: skip
    assert len({spec.share_key for spec in same}) == 1
    assert len({spec.share_key for spec in different}) == len(different)
