"""Documents before and after a change, row by row as the project's reference lists them (section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from tests.streams.serving import Served, Stream, kinds, serving, shape

OPTION = "changeStreamPreAndPostImages"
ON = {OPTION: {"enabled": True}}
OFF = {OPTION: {"enabled": False}}


@pytest.fixture
def coll(at: Served) -> str:
    """A collection with images, and {_id: 1, a: 1} in it."""
    name = at.name()
    at.must({"create": name, **ON})
    at.insert(name, {"_id": 1, "a": 1})
    return name


# What streams show: mode by mode, operation by operation.

BEFORE: dict[str, dict[str, Any]] = {
    "delete": {"_id": 1, "a": 1},
    "replace": {"_id": 1, "a": 1},
    "update": {"_id": 1, "a": 1},
}
AFTER: dict[str, dict[str, Any]] = {
    "insert": {"_id": 2},
    "replace": {"_id": 1, "b": 2},
    "update": {"_id": 1, "a": 2},
}
DO: dict[str, dict[str, Any]] = {
    "delete": {"deletes": [{"q": {"_id": 1}, "limit": 1}]},
    "insert": {"documents": [{"_id": 2}]},
    "replace": {"updates": [{"q": {"_id": 1}, "u": {"b": 2}}]},
    "update": {"updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]},
}
FULL_MODES = (None, "default", "updateLookup", "whenAvailable", "required")
BEFORE_MODES = (None, "off", "whenAvailable", "required")
ABSENT = "absent"


def do(at: Served, coll: str, kind: str) -> None:
    at.must({"update" if kind == "replace" else kind: coll, **DO[kind]})


def full_document(kind: str, mode: str | None, *, images: bool) -> Any:
    """What `fullDocument` is to be."""
    if kind == "update":
        if mode in (None, "default"):
            return ABSENT
        if mode == "updateLookup" or images:
            return AFTER["update"]
        return 47 if mode == "required" else None
    return AFTER.get(kind, ABSENT)


def before_change(kind: str, mode: str | None, *, images: bool) -> Any:
    """What `fullDocumentBeforeChange` is to be."""
    if kind == "insert" or mode in (None, "off"):
        return ABSENT
    if images:
        return BEFORE[kind]
    return 47 if mode == "required" else None


@pytest.mark.parametrize("images", [True, False], ids=["with images", "without"])
@pytest.mark.parametrize("kind", sorted(DO))
@pytest.mark.parametrize("before", BEFORE_MODES)
@pytest.mark.parametrize("full", FULL_MODES)
def test_each_mode_shows_what_it_says(
    at: Served, full: str | None, before: str | None, kind: str, images: bool
) -> None:
    name = at.name()
    at.must({"create": name, **(ON if images else OFF)})
    at.insert(name, {"_id": 1, "a": 1})
    options = {"fullDocument": full, "fullDocumentBeforeChange": before}
    stream = at.watch(name, **{option: mode for option, mode in options.items() if mode is not None})
    do(at, name, kind)
    wanted = full_document(kind, full, images=images), before_change(kind, before, images=images)
    if 47 in wanted:
        assert stream.failure()[0] == 47
        return
    (event,) = stream.read()
    assert (event.get("fullDocument", ABSENT), event.get("fullDocumentBeforeChange", ABSENT)) == wanted
    names = [field for field in event if field in ("fullDocument", "ns", "fullDocumentBeforeChange")]
    assert names == [field for field in ("fullDocument", "ns", "fullDocumentBeforeChange") if field in event]
    assert list(event)[-1] == "fullDocumentBeforeChange" or wanted[1] == ABSENT


def watching(at: Served, coll: str, full: str = "whenAvailable", before: str = "whenAvailable", **more: Any) -> Stream:
    return at.watch(coll, fullDocument=full, fullDocumentBeforeChange=before, **more)


def images_of(events: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """(before, after) of each event."""
    return [(event.get("fullDocumentBeforeChange", ABSENT), event.get("fullDocument", ABSENT)) for event in events]


def test_null_is_the_default_of_both_options(at: Served, coll: str) -> None:
    stream = at.watch(coll, fullDocument=None, fullDocumentBeforeChange=None)
    at.update(coll, 1, {"$set": {"a": 2}})
    assert images_of(stream.read()) == [(ABSENT, ABSENT)]


def test_images_are_true_to_their_moment_whatever_came_later(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    for number in range(2, 5):
        at.update(coll, 1, {"$set": {"a": number}})
    at.update(coll, 1, {"r": True})
    at.update(coll, 1, {"$push": {"list": 7}})
    at.delete(coll, 1)
    at.insert(coll, {"_id": 1, "later": True})
    assert images_of(watching(at, coll, "required", "required", resumeAfter=start).read()) == [
        ({"_id": 1, "a": 1}, {"_id": 1, "a": 2}),
        ({"_id": 1, "a": 2}, {"_id": 1, "a": 3}),
        ({"_id": 1, "a": 3}, {"_id": 1, "a": 4}),
        ({"_id": 1, "a": 4}, {"_id": 1, "r": True}),
        ({"_id": 1, "r": True}, {"_id": 1, "r": True, "list": [7]}),
        ({"_id": 1, "r": True, "list": [7]}, ABSENT),
        (ABSENT, {"_id": 1, "later": True}),
    ]


UPDATES: dict[str, Any] = {
    "addToSet": {"$addToSet": {"list": 9}},
    "inc of a nested field": {"$inc": {"deep.n": 1}},
    "pipeline": [{"$set": {"list": {"$slice": ["$list", 1]}, "new": {"x": 1}}}, {"$unset": "deep"}],
    "pop": {"$pop": {"list": 1}},
    "position in an array": {"$set": {"list.1": "x", "list.5": "y"}},
    "pull": {"$pull": {"list": {"$gt": 1}}},
    "push": {"$push": {"list": {"$each": [7, 8]}}},
    "push with slice and sort": {"$push": {"list": {"$each": [0], "$sort": -1, "$slice": 2}}},
    "rename": {"$rename": {"deep": "deeper"}},
    "several": {"$set": {"b": 1, "deep.m": 2}, "$unset": {"a": 1}, "$inc": {"deep.n": 5}},
    "unset": {"$unset": {"a": 1, "deep.n": 1}},
}


@pytest.mark.parametrize("update", UPDATES)
def test_the_image_after_any_update_is_the_document_it_made(at: Served, update: str) -> None:
    name, old = at.name(), {"_id": 1, "a": 1, "list": [1, 2, 3], "deep": {"n": 1}, "z": None}
    at.must({"create": name, **ON})
    at.insert(name, old)
    stream = watching(at, name, "required", "required")
    at.update(name, 1, UPDATES[update])
    (new,) = at.must({"find": name})["cursor"]["firstBatch"]
    ((before, after),) = images_of(stream.read())
    assert shape(before) == shape(old)
    assert shape(after) == shape(new)


def test_update_lookup_shows_the_document_as_it_is_now(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.update(coll, 1, {"$set": {"a": 2}})
    at.update(coll, 1, {"$set": {"a": 3}})
    lookup = at.watch(coll, fullDocument="updateLookup", resumeAfter=start)
    assert [event["fullDocument"] for event in lookup.read()] == [{"_id": 1, "a": 3}] * 2


@pytest.mark.parametrize("gone", ["deleted", "dropped", "renamed"])
def test_update_lookup_shows_null_where_the_document_is_gone(at: Served, coll: str, gone: str) -> None:
    start = at.watch(coll).token
    at.update(coll, 1, {"$set": {"a": 2}})
    if gone == "deleted":
        at.delete(coll, 1)
    elif gone == "dropped":
        at.must({"drop": coll})
    else:
        at.must({"renameCollection": f"t.{coll}", "to": f"t.{at.name()}"}, "admin")
    event = at.watch(coll, fullDocument="updateLookup", resumeAfter=start).read()[0]
    assert "fullDocument" in event and event["fullDocument"] is None


def test_update_lookup_asks_the_collection_that_has_the_name_now(at: Served, coll: str) -> None:
    start = at.watch(1).token
    at.update(coll, 1, {"$set": {"a": 2}})
    at.must({"drop": coll})
    at.insert(coll, {"_id": 1, "another": True})
    seen = at.watch(1, fullDocument="updateLookup", resumeAfter=start).read()[0]
    assert seen["fullDocument"] == {"_id": 1, "another": True}
    options: dict[str, Any] = {"fullDocument": "updateLookup", "matchCollectionUUIDForUpdateLookup": True}
    assert at.watch(1, resumeAfter=start, **options).read()[0]["fullDocument"] is None


def test_images_survive_the_drop_and_the_renaming_of_their_collection(at: Served, coll: str) -> None:
    start = at.watch(1).token
    at.update(coll, 1, {"$set": {"a": 2}})
    other = at.name()
    at.must({"renameCollection": f"t.{coll}", "to": f"t.{other}"}, "admin")
    at.update(other, 1, {"$set": {"a": 3}})
    at.must({"drop": other})
    events = watching(at, 1, "required", "required", resumeAfter=start).read()  # type: ignore[arg-type]
    assert kinds(events) == ["update", "rename", "update", "drop"]
    assert images_of(events)[::2] == [({"_id": 1, "a": n}, {"_id": 1, "a": n + 1}) for n in (1, 2)]


def test_images_are_switched_on_and_off_from_one_change_to_the_next(at: Served) -> None:
    name = at.name()
    at.insert(name, {"_id": 1, "a": 0})
    stream = watching(at, name)
    for number, option in enumerate((None, ON, OFF, ON), 1):
        if option is not None:
            at.must({"collMod": name, **option})
        at.update(name, 1, {"$set": {"a": number}})
    seen = images_of(stream.read())
    assert seen == [
        (None, None),
        ({"_id": 1, "a": 1}, {"_id": 1, "a": 2}),
        (None, None),
        ({"_id": 1, "a": 3}, {"_id": 1, "a": 4}),
    ]


WRITES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "deleteMany": ({"delete": "", "deletes": [{"q": {}, "limit": 0}]}, ["delete", "delete"]),
    "findAndModify removes": ({"findAndModify": "", "query": {"_id": 1}, "remove": True}, ["delete"]),
    "findAndModify replaces": ({"findAndModify": "", "query": {"_id": 1}, "update": {"x": 1}}, ["replace"]),
    "findAndModify updates": ({"findAndModify": "", "query": {"_id": 1}, "update": {"$set": {"x": 1}}}, ["update"]),
    "updateMany": ({"update": "", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}]}, ["update"] * 2),
    "upsert of what is there": (
        {"update": "", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}, "upsert": True}]}, ["update"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_every_way_to_change_a_document_keeps_its_image(at: Served, coll: str, write: str) -> None:
    at.insert(coll, {"_id": 2, "a": 2})
    stream = watching(at, coll, "required", "required")
    body, wanted = WRITES[write]
    at.must({**body, next(iter(body)): coll})
    events = stream.read()
    assert kinds(events) == wanted
    assert [before for before, _ in images_of(events)] == [{"_id": n, "a": n} for n in range(1, len(wanted) + 1)]


def test_an_update_that_changes_nothing_and_an_upsert_that_inserts_keep_none(at: Served, coll: str) -> None:
    count = len(stored_images(at, coll))
    at.update(coll, 1, {"$set": {"a": 1}})
    at.must({"update": coll, "updates": [{"q": {"_id": 9}, "u": {"$set": {"x": 1}}, "upsert": True}]})
    assert len(stored_images(at, coll)) == count


# Where an image is required and is not there.


def missing(name: str, kind: str, time: Timestamp, what: str, number: str = "MISSING") -> str:
    pre = "a pre-image for all update, delete and replace events, but the pre-image"
    post = "a post-image for all update events, but the post-image"
    return (
        f"Change stream was configured to require {pre if what == 'pre' else post} was not found for event: "
        f'{{operationType: "{kind}", ns: {{db: "t", coll: "{name}"}}, '
        f"clusterTime: Timestamp({time.time}, {time.inc}), txnNumber: {number}}}"
    )


REQUIRED = {
    "delete": ({"fullDocumentBeforeChange": "required"}, "pre"),
    "replace": ({"fullDocumentBeforeChange": "required"}, "pre"),
    "update": ({"fullDocumentBeforeChange": "required"}, "pre"),
    "update after": ({"fullDocument": "required"}, "post"),
    "update both": ({"fullDocument": "required", "fullDocumentBeforeChange": "required"}, "pre"),
}


@pytest.mark.parametrize("row", REQUIRED)
def test_a_required_image_that_is_missing_is_error_47_when_it_is_read(at: Served, row: str) -> None:
    name, kind = at.name(), row.partition(" ")[0]
    options, what = REQUIRED[row]
    at.insert(name, {"_id": 1, "a": 1})
    stream = at.watch(name, **options)
    do(at, name, kind)
    code, message = stream.failure()
    assert (code, message.rpartition(" :: ")[2]) == (47, missing(name, kind, at.now(), what))
    assert at.code({"getMore": stream.id, "collection": name}) == 43


def test_error_47_has_no_label_and_the_transactions_number(at: Served) -> None:
    name = at.name()
    at.insert(name, {"_id": 1})
    stream = at.watch(name, fullDocumentBeforeChange="required")
    at.transaction(3, [{"delete": name, "deletes": [{"q": {"_id": 1}, "limit": 1}]}])
    reply = stream.more()
    assert (reply["code"], reply["codeName"], "errorLabels" in reply) == (47, "NoMatchingDocument", False)
    assert reply["errmsg"].endswith(missing(name, "delete", at.now(), "pre", "3"))


def test_what_can_be_reported_comes_before_error_47_and_a_stream_can_go_on_after_it(at: Served) -> None:
    name = at.name()
    at.insert(name, {"_id": 1})
    stream = at.watch(name, fullDocumentBeforeChange="required")
    at.insert(name, {"_id": 2})
    at.delete(name, 1)
    at.insert(name, {"_id": 3})
    assert kinds(stream.more()["cursor"]["nextBatch"]) == ["insert"]
    assert stream.failure()[0] == 47
    onwards = at.watch(name, resumeAfter=stream.token, fullDocumentBeforeChange="whenAvailable").read()
    assert kinds(onwards) == ["delete", "insert"]
    past = at.watch(name, resumeAfter=onwards[0]["_id"], fullDocumentBeforeChange="required")
    assert kinds(past.read()) == ["insert"]


def test_a_filter_spares_the_image_that_it_does_not_want(at: Served) -> None:
    name = at.name()
    at.insert(name, {"_id": 1}, {"_id": 2})
    match = {"$match": {"documentKey._id": 2, "operationType": "insert"}}
    stream = at.watch(name, match, fullDocument="required", fullDocumentBeforeChange="required")
    at.update(name, 1, {"$set": {"a": 1}})
    at.delete(name, 1)
    assert stream.read() == []


def test_a_stream_that_starts_before_a_missing_image_fails_when_it_is_opened(at: Served) -> None:
    name = at.name()
    at.insert(name, {"_id": 1})
    start = at.watch(name).token
    at.delete(name, 1)
    assert at.refused(name, resumeAfter=start, fullDocumentBeforeChange="required")[0] == 47


# Images have an end.


def test_images_go_after_the_seconds_of_the_parameter_and_not_before(at: Served, coll: str) -> None:
    start = at.watch(coll).token
    at.set_image_seconds(100)
    at.update(coll, 1, {"$set": {"a": 2}})
    at.clock.advance(60_000)
    at.update(coll, 1, {"$set": {"a": 3}})
    at.clock.advance(40_000)
    at.tick()
    both = [({"_id": 1, "a": 1}, {"_id": 1, "a": 2}), ({"_id": 1, "a": 2}, {"_id": 1, "a": 3})]
    assert images_of(watching(at, coll, resumeAfter=start).read()) == both
    at.clock.advance(1)
    at.tick()
    assert images_of(watching(at, coll, resumeAfter=start).read()) == [(None, None), both[1]]
    assert at.refused(coll, resumeAfter=start, fullDocument="required")[0] == 47
    at.set_image_seconds("off")
    at.clock.advance(3_600_000)
    at.tick()
    assert images_of(watching(at, coll, resumeAfter=start).read()) == [(None, None), both[1]]


def test_images_go_with_their_entry_of_the_oplog() -> None:
    with serving(oplog_hours=1) as at:
        at.must({"create": "c", **ON})
        at.insert("c", {"_id": 1, "a": 1})
        at.update("c", 1, {"$set": {"a": 2}})
        at.clock.advance(2 * 3_600_000)
        at.update("c", 1, {"$set": {"a": 3}})
        assert len(stored_images(at, "c")) == 2
        at.server.prune()
        (image,) = stored_images(at, "c")
        assert image["preImage"] == {"_id": 1, "a": 2}


def test_images_survive_a_restart(tmp_path: Any) -> None:
    with serving(path=tmp_path) as at:
        at.must({"create": "c", **ON})
        at.insert("c", {"_id": 1, "a": 1})
        start = at.watch("c").token
        at.update("c", 1, {"$set": {"a": 2}})
        at.set_image_seconds(77)
    with serving(path=tmp_path) as at:
        assert images_of(watching(at, "c", "required", "required", resumeAfter=start).read()) == [
            ({"_id": 1, "a": 1}, {"_id": 1, "a": 2})
        ]
        assert at.image_seconds() == 77


# Transactions.


def test_each_change_of_a_transaction_has_an_image(at: Served, coll: str) -> None:
    at.insert(coll, {"_id": 2, "b": 0})
    stream = watching(at, coll, "required", "required")
    updates = [{"q": {"_id": 1}, "u": {"$set": {"a": n}}} for n in (2, 3)]
    at.transaction(10, [
        {"update": coll, "updates": updates},
        {"insert": coll, "documents": [{"_id": 3}]},
        {"update": coll, "updates": [{"q": {"_id": 2}, "u": {"c": 1}}]},
        {"delete": coll, "deletes": [{"q": {"_id": 1}, "limit": 1}]},
    ])  # fmt: skip
    assert images_of(stream.read()) == [
        ({"_id": 1, "a": 1}, {"_id": 1, "a": 2}),
        ({"_id": 1, "a": 2}, {"_id": 1, "a": 3}),
        (ABSENT, {"_id": 3}),
        ({"_id": 2, "b": 0}, {"_id": 2, "c": 1}),
        ({"_id": 1, "a": 3}, ABSENT),
    ]
    ids = [image["_id"] for image in stored_images(at, coll)]
    assert [key["applyOpsIndex"] for key in ids] == [0, 1, 3, 4]
    assert {key["ts"] for key in ids} == {at.now()}


def test_images_of_a_transaction_that_fills_several_entries_are_read_by_their_entry(at: Served) -> None:
    name, large = at.name(), "x" * 9_000_000
    at.must({"create": name, **ON})
    at.insert(name, *[{"_id": number} for number in range(4)])
    stream = at.watch(name, {"$project": {"fullDocumentBeforeChange": 1}}, fullDocumentBeforeChange="required")
    at.transaction(20, [
        {"update": name, "updates": [{"q": {"_id": number}, "u": {"$set": {"x": large}}}]} for number in range(4)
    ])  # fmt: skip
    assert [event["fullDocumentBeforeChange"] for event in stream.read()] == [{"_id": number} for number in range(4)]
    ids = [image["_id"] for image in stored_images(at, name)]
    assert len({key["ts"] for key in ids}) > 1
    assert max(key["ts"] for key in ids) == at.now()
    at.must({"drop": name})


# The collection of images, and the parameter.


def stored_images(at: Served, coll: str) -> list[dict[str, Any]]:
    """What `config.system.preimages` shows of one collection."""
    body = {"find": "system.preimages", "filter": {"_id.nsUUID": at.uuid_of(coll)}}
    return list(at.must(body, "config")["cursor"]["firstBatch"])


def test_pre_images_are_documents_of_a_collection(at: Served, coll: str) -> None:
    at.update(coll, 1, {"$set": {"a": 2}})
    now = at.now()
    (image,) = stored_images(at, coll)
    assert shape(image) == shape({
        "_id": {"nsUUID": at.uuid_of(coll), "ts": now, "applyOpsIndex": Int64(0)},
        "operationTime": DatetimeMS(at.clock.now_ms()),
        "preImage": {"_id": 1, "a": 1},
    })  # fmt: skip


def test_pre_images_can_be_counted_and_aggregated_and_not_changed(at: Served, coll: str) -> None:
    at.update(coll, 1, {"$set": {"a": 2}})
    match = {"_id.nsUUID": at.uuid_of(coll)}
    assert at.must({"count": "system.preimages", "query": match}, "config")["n"] == 1
    pipeline = [{"$match": match}, {"$project": {"a": "$preImage.a", "_id": 0}}]
    reply = at.must({"aggregate": "system.preimages", "pipeline": pipeline, "cursor": {}}, "config")
    assert reply["cursor"]["firstBatch"] == [{"a": 1}]
    for body in (
        {"insert": "system.preimages", "documents": [{"_id": 1}]},
        {"delete": "system.preimages", "deletes": [{"q": {}, "limit": 0}]},
        {"drop": "system.preimages"},
    ):
        reply = at.ask(body, "config")
        assert reply["ok"] == 0.0 or "writeErrors" in reply


def expiry(at: Served) -> Any:
    (result,) = at.must({"getClusterParameter": "changeStreamOptions"}, "admin")["clusterParameters"]
    assert result["_id"] == "changeStreamOptions"
    return result["preAndPostImages"]["expireAfterSeconds"]
