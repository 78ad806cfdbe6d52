"""Refusals to open and read a stream, with codes, names, labels and messages (reference, 2.2, 2.3)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.values.token import high_water_mark
from tests.server.raw import RawClient
from tests.streams.serving import SESSION, Served, kinds, serving

MARK = {"_data": high_water_mark(1)}
SAMPLES: dict[str, tuple[Any, str]] = {
    "an array": (["default"], "array"),
    "binary": (b"x", "binData"),
    "a boolean": (True, "bool"),
    "a date": (DatetimeMS(1), "date"),
    "a decimal": (Decimal128("1"), "decimal"),
    "a double": (1.0, "double"),
    "a long": (Int64(1), "long"),
    "a reference": (DBRef("c", 1).as_doc().to_dict(), "object"),
    "a regular expression": (Regex("default"), "regex"),
    "a text": ("default", "string"),
    "a timestamp": (Timestamp(1, 1), "timestamp"),
    "an expression": ({"$concat": ["up", "dateLookup"]}, "object"),
    "an int": (1, "int"),
    "an object": ({"a": 1}, "object"),
    "an object id": (ObjectId(), "objectId"),
    "code": (Code("default"), "javascript"),
    "max key": (MaxKey(), "maxKey"),
    "min key": (MinKey(), "minKey"),
    "null": (None, "null"),
    "uuid": (Binary(bytes(16), 4), "binData"),
    "zero": (0, "int"),
}
TYPES: dict[str, str] = {
    "allChangesForCluster": "bool",
    "fullDocument": "string",
    "fullDocumentBeforeChange": "string",
    "resumeAfter": "object",
    "showExpandedEvents": "bool",
    "startAfter": "object",
    "startAtOperationTime": "timestamp",
}
CODE_NAMES = {
    2: "BadValue", 9: "FailedToParse", 14: "TypeMismatch", 15: "Overflow", 20: "IllegalOperation",
    72: "InvalidOptions", 73: "InvalidNamespace", 166: "CommandNotSupportedOnView", 167: "OptionNotSupportedOnView",
    260: "InvalidResumeToken", 263: "OperationNotSupportedInTransaction", 323: "APIStrictError",
}  # fmt: skip


def refusal(at: Served, body: dict[str, Any], database: str = "t") -> tuple[int, str]:
    """(code, message) of a command that fails, whose codeName is looked at too, and which has no label."""
    reply = at.ask(body, database)
    assert reply["ok"] == 0.0, reply
    assert reply["codeName"] == CODE_NAMES.get(reply["code"], f"Location{reply['code']}")
    assert "errorLabels" not in reply
    return reply["code"], reply["errmsg"]


# The options, one by one.


@pytest.mark.parametrize("sample", [name for name, (_, kind) in SAMPLES.items() if kind != "object"])
def test_the_argument_is_an_object(at: Served, sample: str) -> None:
    pipeline = [{"$changeStream": SAMPLES[sample][0]}]
    code, message = refusal(at, {"aggregate": "c", "pipeline": pipeline, "cursor": {}})
    assert code == 6188500
    assert message.startswith("$changeStream must take a nested object but found: $changeStream: ")


@pytest.mark.parametrize("option", TYPES)
@pytest.mark.parametrize("sample", [name for name in SAMPLES if name != "null"])
def test_an_option_has_its_type_and_nothing_is_turned_into_it(at: Served, option: str, sample: str) -> None:
    value, kind = SAMPLES[sample]
    body = at.opening("c", **{option: value})
    if kind != TYPES[option]:
        message = f"BSON field '$changeStream.{option}' is the wrong type '{kind}', expected type '{TYPES[option]}'"
        assert refusal(at, body) == (14, message)
    elif kind == "object":
        assert refusal(at, body)[0] == 40647


@pytest.mark.parametrize("option", TYPES)
def test_null_is_no_option_but_it_is_no_boolean_either(at: Served, option: str) -> None:
    body = at.opening("c", **{option: None})
    if TYPES[option] == "bool":
        message = f"BSON field '$changeStream.{option}' is the wrong type 'null', expected type 'bool'"
        assert refusal(at, body) == (14, message)
    else:
        at.must(body)


UNKNOWN = (
    " fullDocument", "", "$ref", "FullDocument", "allchangesforcluster", "batchSize", "fullDocument ", "fullDocument.a",
    "fullDocumentbeforechange", "resumeafter", "showExpandedevents", "startAtoperationTime", "unknown",
)  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_option_is_refused(at: Served, name: str) -> None:
    message = f"BSON field '$changeStream.{name}' is an unknown field."
    assert refusal(at, at.opening("c", **{name: 1})) == (40415, message)


VALUES: dict[str, list[str]] = {
    "fullDocument": ["default", "required", "updateLookup", "whenAvailable"],
    "fullDocumentBeforeChange": ["off", "required", "whenAvailable"],
}
WRONG_VALUES = (
    "", " default", "Default", "UPDATELOOKUP", "default ", "off\0", "requi\u0301red", "updateLookup,default",
    "updatelookup", "when available", "ｒequired", "ﬀ",
)  # fmt: skip


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("value", WRONG_VALUES, ids=ascii)
def test_a_value_is_one_of_a_few_words_letter_by_letter(at: Served, option: str, value: str) -> None:
    message = f"Enumeration value '{value}' for field '$changeStream.{option}' is not a valid value."
    assert refusal(at, at.opening("c", **{option: value})) == (2, message)


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, words in VALUES.items() for value in words])
def test_those_words_are_accepted_and_those_of_the_other_option_are_not(at: Served, option: str, value: str) -> None:
    at.must(at.opening("c", **{option: value}))
    for other, words in VALUES.items():
        assert (at.code(at.opening("c", **{other: value})) == 2) == (value not in words)


def test_of_several_wrong_options_the_first_is_reported(at: Served) -> None:
    assert refusal(at, at.opening("c", fullDocument=1, unknown=1))[0] == 14
    assert refusal(at, at.opening("c", unknown=1, fullDocument=1))[0] == 40415
    assert refusal(at, at.opening("c", resumeAfter={}, fullDocument="x"))[0] == 40647


# Where a stream may be opened.

CHANGES: list[dict[str, Any]] = [{"$changeStream": {}}]
ALL: list[dict[str, Any]] = [{"$changeStream": {"allChangesForCluster": True}}]
STAGE_ORDERS: dict[str, tuple[Any, str, list[dict[str, Any]], int, str]] = {
    "a collection of admin": (
        "c", "admin", CHANGES, 73, "$changeStream may not be opened on the internal admin database",
    ),
    "a collection of config": (
        "c", "config", CHANGES, 73, "$changeStream may not be opened on the internal config database",
    ),
    "a collection named as what has none": (
        "$cmd.aggregate", "t", CHANGES, 73, "Invalid namespace specified 't.$cmd.aggregate'",
    ),
    "a collection of admin named as what has none": (
        "$cmd.aggregate", "admin", ALL, 73, "Invalid namespace specified 'admin.$cmd.aggregate'",
    ),
    "a collection of local": (
        "c", "local", CHANGES, 73, "$changeStream may not be opened on the internal local database",
    ),
    "a system collection": (
        "system.users", "t", CHANGES, 73, "$changeStream may not be opened on the internal t.system.users collection",
    ),
    "admin": (1, "admin", CHANGES, 73, "$changeStream may not be opened on the internal admin database"),
    "config": (1, "config", CHANGES, 73, "$changeStream may not be opened on the internal config database"),
    "everything from a collection": (
        "c", "admin", ALL, 72,
        "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no "
        "collection name; found admin.c",
    ),
    "everything from another database": (
        1, "t", ALL, 72,
        "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no "
        "collection name; found t.$cmd.aggregate",
    ),
    "everything from another database's collection": (
        "c", "t", ALL, 72,
        "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no "
        "collection name; found t.c",
    ),
    "local": (1, "local", CHANGES, 73, "$changeStream may not be opened on the internal local database"),
    "system.views": (
        "system.views", "t", CHANGES, 73, "$changeStream may not be opened on the internal t.system.views collection",
    ),
    "the oplog": ("oplog.rs", "local", CHANGES, 73, "$changeStream may not be opened on the internal local database"),
    "the pre-images": (
        "system.preimages", "config", CHANGES, 73, "$changeStream may not be opened on the internal config database",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", STAGE_ORDERS)
def test_a_stream_is_not_opened_on_internal_namespaces(at: Served, row: str) -> None:
    where, db, pipeline, code, message = STAGE_ORDERS[row]
    assert refusal(at, {"aggregate": where, "pipeline": pipeline, "cursor": {}}, db) == (code, message)


@pytest.mark.parametrize("name", ["systemindexes", "system_users", "system", "xsystem.users"])
def test_names_that_only_look_internal_are_watched(at: Served, name: str) -> None:
    stream = at.watch(name)
    at.insert(name, {"x": 1})
    assert kinds(stream.read()) == ["insert"] and stream.namespace == f"t.{name}"


def test_a_view_is_not_watched(at: Served) -> None:
    view = at.name()
    at.must({"create": view, "viewOn": "c", "pipeline": []})
    assert refusal(at, at.opening(view))[0] == 166


def test_a_view_is_not_defined_by_a_stream(at: Served) -> None:
    assert refusal(at, {"create": at.name(), "viewOn": "c", "pipeline": CHANGES})[0] == 167
    view = at.name()
    at.must({"create": view, "viewOn": "c", "pipeline": []})
    assert refusal(at, {"collMod": view, "viewOn": "c", "pipeline": CHANGES})[0] == 167


SURROUNDINGS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "behind another stage": ([{"$match": {}}, *CHANGES], 40602),
    "in $facet": ([{"$facet": {"a": CHANGES}}], 40600),
    "in $lookup": ([{"$lookup": {"from": "c", "as": "a", "pipeline": CHANGES}}], 51047),
    "in $unionWith": ([{"$unionWith": {"coll": "c", "pipeline": CHANGES}}], 31441),
    "twice": ([*CHANGES, *CHANGES], 40602),
}


@pytest.mark.parametrize("row", SURROUNDINGS)
def test_the_stage_is_the_first_of_an_aggregations_pipeline(at: Served, row: str) -> None:
    at.insert("facts", {"x": 1})
    pipeline, code = SURROUNDINGS[row]
    assert refusal(at, {"aggregate": "facts", "pipeline": pipeline, "cursor": {}})[0] == code


def test_a_stream_needs_the_oplog() -> None:
    with serving(oplog=False) as standalone:
        message = "The $changeStream stage is only supported on replica sets"
        assert refusal(standalone, standalone.opening("c")) == (40573, message)


def test_a_stream_needs_a_cursor(at: Served) -> None:
    assert refusal(at, {"aggregate": "c", "pipeline": CHANGES})[0] == 9


@pytest.mark.parametrize("level", ["available", "linearizable", "local", "snapshot"])
def test_a_stream_reads_what_a_majority_has(at: Served, level: str) -> None:
    code, message = refusal(at, {**at.opening("c"), "readConcern": {"level": level}})
    assert code == 72
    assert message == (
        "Aggregation stage $changeStream cannot run with a readConcern other than 'majority'. Current readConcern: "
        f"{level}"
    )


@pytest.mark.parametrize("concern", [{}, {"level": "majority"}], ids=str)
def test_that_can_be_said_or_left_out(at: Served, concern: dict[str, Any]) -> None:
    at.must({**at.opening("c"), "readConcern": concern})


def test_a_stream_is_not_opened_in_a_transaction(at: Served) -> None:
    more = {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    reply = at.ask({**at.opening("c"), **more})
    assert (reply["code"], reply["codeName"]) == (263, "OperationNotSupportedInTransaction")


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("option", ["showExpandedEvents", "showRawUpdateDescription", "showSystemEvents"])
def test_the_strict_stable_api_does_not_know_the_newer_options(at: Served, option: str, value: bool) -> None:
    body = {**at.opening("c", **{option: value}), "apiVersion": "1", "apiStrict": True}
    message = f"The '{option}' parameter to $changeStream is not supported in API Version 1"
    assert refusal(at, body) == (323, message)
    at.must({**body, "apiStrict": False})


def test_the_strict_stable_api_knows_the_others(at: Served) -> None:
    options = {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable", "resumeAfter": MARK}
    at.must({**at.opening("c", **options), "apiVersion": "1", "apiStrict": True})


# The stages behind it.

ALLOWED: dict[str, Any] = {
    "$addFields": {"a": 1}, "$fill": {"output": {"a": {"value": 1}}}, "$match": {"a": 1}, "$project": {"a": 1},
    "$redact": "$$KEEP", "$replaceRoot": {"newRoot": "$$ROOT"}, "$replaceWith": "$$ROOT", "$set": {"a": 1},
    "$unset": "a",
}  # fmt: skip
BANNED: dict[str, Any] = {
    "$bucket": {"groupBy": "$a", "boundaries": [0, 1]},
    "$bucketAuto": {"groupBy": "$a", "buckets": 2},
    "$count": "n",
    "$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}},
    "$facet": {"a": [{"$match": {}}]},
    "$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x"},
    "$group": {"_id": "$a"},
    "$limit": 1,
    "$lookup": {"from": "c", "localField": "a", "foreignField": "b", "as": "x"},
    "$merge": {"into": "x"},
    "$out": "x",
    "$sample": {"size": 1},
    "$setWindowFields": {"sortBy": {"a": 1}, "output": {"n": {"$sum": 1}}},
    "$skip": 1,
    "$sort": {"a": 1},
    "$sortByCount": "$a",
    "$unionWith": "c",
    "$unwind": "$a",
}


@pytest.mark.parametrize("stage", ALLOWED)
def test_a_stage_that_looks_at_one_event_may_follow(at: Served, stage: str) -> None:
    at.must(at.opening("c", {stage: ALLOWED[stage]}))
    at.must(at.opening("c", {"$match": {}}, {stage: ALLOWED[stage]}, {"$changeStreamSplitLargeEvent": {}}))


@pytest.mark.parametrize("stage", BANNED)
def test_any_other_is_refused_when_the_stream_is_opened(at: Served, stage: str) -> None:
    for stages in ([{stage: BANNED[stage]}], [{"$match": {}}, {stage: BANNED[stage]}]):
        code, message = refusal(at, at.opening("c", *stages))
        assert code == 20
        assert message.endswith("is not permitted in a $changeStream pipeline")


def test_fill_may_not_look_at_other_events(at: Served) -> None:
    for fill in ({"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}, {"output": {"a": {"method": "locf"}}}):
        assert at.code(at.opening("c", {"$fill": fill})) in (20, 605001)


def test_an_unknown_stage_is_refused(at: Served) -> None:
    assert refusal(at, at.opening("c", {"$foo": 1})) == (40324, "Unrecognized pipeline stage name: '$foo'")


# What a stream dies of.

CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "changed": ({"$set": {"_id": "x"}}, '{ _id: "x" }'),
    "enlarged": ({"$set": {"_id.more": 1}}, "more: 1 } }"),
    "left out": ({"$project": {"_id": 0}}, "{}"),
    "lost with the root": ({"$replaceWith": {"a": 1}}, "{}"),
    "unset": ({"$unset": "_id"}, "{}"),
}


@pytest.mark.parametrize("row", CHANGED)
def test_an_event_keeps_its_id_or_the_stream_ends(at: Served, row: str) -> None:
    name, (stage, result) = at.name(), CHANGED[row]
    stream = at.watch(name, stage)
    token = at.watch(name).token
    at.insert(name, {"_id": 1})
    reply = stream.more()
    assert (reply["code"], reply["codeName"]) == (280, "ChangeStreamFatalError")
    assert reply["errorLabels"] == ["NonResumableChangeStreamError"]
    assert (
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "
        "Modifying the _id field of an event makes it impossible to resume the stream from that point. Only "
        'transformations that retain the unmodified _id field are allowed. Expected: { _id: { _data: "'
        in reply["errmsg"]
    )
    assert reply["errmsg"].endswith(result)
    assert at.code({"getMore": stream.id, "collection": name}) == 43
    at_open = at.ask(at.opening(name, stage, resumeAfter=token))
    assert (at_open["code"], at_open["errorLabels"]) == (280, ["NonResumableChangeStreamError"])


def test_a_stage_that_fails_ends_the_stream_at_the_event_on_which_it_fails(at: Served) -> None:
    name = at.name()
    stream = at.watch(name, {"$set": {"n": {"$divide": [1, "$fullDocument.n"]}}})
    at.insert(name, {"_id": 1, "n": 2})
    at.insert(name, {"_id": 2, "n": 0})
    assert [event["n"] for event in stream.more()["cursor"]["nextBatch"]] == [0.5]
    code, _ = stream.failure()
    assert code == 16608


def test_an_unknown_cursor_is_error_43_without_a_label(at: Served) -> None:
    reply = at.ask({"getMore": Int64(77), "collection": "c"})
    assert (reply["code"], reply["codeName"], reply["errmsg"]) == (43, "CursorNotFound", "cursor id 77 not found")
    assert "errorLabels" not in reply


def test_a_cursor_that_is_killed_while_it_waits_is_error_237(at: Served) -> None:
    stream = at.watch(at.name())
    coll = stream.namespace.partition(".")[2]
    with RawClient(at.server.address) as other:
        other.send({"getMore": stream.id, "collection": coll, "maxTimeMS": 20_000})
        at.until_waiting()
        at.must({"killCursors": coll, "cursors": [stream.id]})
        _, reply = other.receive()
        assert (reply["code"], reply["codeName"]) == (237, "CursorKilled")
        assert other.ask({"getMore": stream.id, "collection": coll})["code"] == 43


def test_a_cursor_goes_with_its_session_while_it_waits(at: Served) -> None:
    name = at.name()
    cursor = at.must({**at.opening(name), "lsid": SESSION})["cursor"]
    with RawClient(at.server.address) as other:
        body = {"getMore": Int64(cursor["id"]), "collection": name, "maxTimeMS": 20_000, "lsid": SESSION}
        other.send(body)
        at.until_waiting()
        at.must({"endSessions": [SESSION]})
        assert other.receive()[1]["code"] == 237


def test_a_tailing_cursor_of_the_oplog_is_killed_while_it_waits_too(at: Served) -> None:
    body = {"find": "oplog.rs", "filter": {"op": "none"}, "tailable": True, "awaitData": True}
    cursor = at.must(body, "local")["cursor"]
    with RawClient(at.server.address) as other:
        other.send({"getMore": Int64(cursor["id"]), "collection": "oplog.rs", "maxTimeMS": 20_000}, "local")
        at.until_waiting()
        at.must({"killCursors": "oplog.rs", "cursors": [Int64(cursor["id"])]}, "local")
        assert other.receive()[1]["code"] == 237


def test_a_cursor_belongs_to_its_namespace(at: Served) -> None:
    stream = at.watch(at.name())
    assert at.code({"getMore": stream.id, "collection": "another"}) == 13


@pytest.mark.parametrize(("where", "db", "namespace"), [
    ("c", "t", "t.c"), (1, "t", "t.$cmd.aggregate"), (1, "admin", "admin.$cmd.aggregate"),
])  # fmt: skip
def test_a_cursor_is_named_after_what_it_looks_at(at: Served, where: Any, db: str, namespace: str) -> None:
    stream = at.watch(where, db=db)
    assert stream.namespace == namespace
    reply = stream.more()
    assert list(reply["cursor"]) == ["nextBatch", "postBatchResumeToken", "id", "ns"]
    assert list(reply)[:2] == ["cursor", "ok"] and {"$clusterTime", "operationTime"} <= reply.keys()


def test_the_reply_that_opens_a_stream_has_this_order(at: Served) -> None:
    reply = at.must(at.opening("c"))
    assert list(reply["cursor"]) == ["firstBatch", "postBatchResumeToken", "id", "ns"]
    assert list(reply) == ["cursor", "ok", "$clusterTime", "operationTime"]


def test_a_collation_is_that_of_the_stream_and_not_of_the_collection(at: Served) -> None:
    name, folded = at.name(), {"locale": "en", "strength": 2}
    at.must({"create": name, "collation": folded})
    match = {"$match": {"fullDocument.a": "X"}}
    plain = at.watch(name, match)
    reply = at.must({**at.opening(name, match), "collation": folded})
    at.insert(name, {"_id": 1, "a": "x"})
    assert plain.read() == []
    more = at.must({"getMore": Int64(reply["cursor"]["id"]), "collection": name})
    assert kinds(more["cursor"]["nextBatch"]) == ["insert"]
