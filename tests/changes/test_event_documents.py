"""Every event as a document, at every scope, without and with `showExpandedEvents`: fields, order, types.

The rows follow the catalogue of events in the project's reference, section 1.2.
"""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64, ObjectId

from headrace.values.bson import encode
from tests.changes.oplog import (
    OTHER_UUID,
    UUID,
    WALL,
    Documents,
    command,
    delete,
    documents,
    entry,
    events_in,
    insert,
    inside,
    replace,
    stream,
    time,
    transaction,
    update,
)  # fmt: skip

TOKEN = object()
COLLECTION_UUID = {"collectionUUID": Binary(UUID, 4)}
NS = {"ns": {"db": "d", "coll": "c"}}
KEY = {"documentKey": {"_id": 1}}
ID_INDEX = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
A_INDEX = {"v": 2, "key": {"a": 1}, "name": "a_1"}
ALL = ("collection", "database", "deployment")
WIDE = ("database", "deployment")


def event(
    kind: str, *pieces: dict[str, Any], first: dict[str, Any] | None = None, uuid: bool = False
) -> dict[str, Any]:
    """An expected event: `first`, the token, the head, then `pieces`."""
    made: dict[str, Any] = {**(first or {}), "_id": TOKEN, "operationType": kind, "clusterTime": time()}
    made |= COLLECTION_UUID if uuid else {}
    made["wallTime"] = WALL
    for part in pieces:
        made |= part
    return made


def invalidate() -> dict[str, Any]:
    return event("invalidate")


def check(result: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same bytes, but for tokens, which must be there."""
    assert [document.get("operationType") for document in result] == [each["operationType"] for each in expected]
    for document, wanted in zip(result, expected):
        assert set(document["_id"]) <= {"_data", "_typeBits"}
        filled = {name: document["_id"] if value is TOKEN else value for name, value in wanted.items()}
        assert list(document) == list(filled)
        assert encode(document) == encode(filled)


UPDATED = {"updateDescription": {"updatedFields": {"a": 2}, "removedFields": [], "truncatedArrays": []}}
UPDATED_EXPANDED = {"updateDescription": {**UPDATED["updateDescription"], "disambiguatedPaths": {}}}
RENAMED = {"renameCollection": "d.c", "to": "d.e", "stayTemp": False}
TO = {"to": {"db": "d", "coll": "e"}}
VIEW = {"_id": "d.v", "viewOn": "c", "pipeline": [{"$match": {"a": 1}}]}
VIEW_DESCRIPTION = {"operationDescription": {"viewOn": "c", "pipeline": [{"$match": {"a": 1}}]}}
VIEW_NS = {"ns": {"db": "d", "coll": "v"}}
MODIFIED_STATE = {"collectionOptions_old": {"uuid": Binary(UUID, 4)}}

# name: (entry, scopes that hear it, event as always, event when expanded (None: the same with collectionUUID))
ALWAYS: dict[str, tuple[bytes, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "insert": (
        insert({"_id": 1, "a": Int64(5)}), ALL,
        event("insert", {"fullDocument": {"_id": 1, "a": Int64(5)}}, NS, KEY),
        event("insert", {"fullDocument": {"_id": 1, "a": Int64(5)}}, NS, KEY, uuid=True),
    ),
    "update": (
        update(1, {"u": {"a": 2}}), ALL,
        event("update", NS, KEY, UPDATED), event("update", NS, KEY, UPDATED_EXPANDED, uuid=True),
    ),
    "replace": (
        replace({"_id": 1, "b": 2}), ALL,
        event("replace", {"fullDocument": {"_id": 1, "b": 2}}, NS, KEY),
        event("replace", {"fullDocument": {"_id": 1, "b": 2}}, NS, KEY, uuid=True),
    ),
    "delete": (delete(1), ALL, event("delete", NS, KEY), event("delete", NS, KEY, uuid=True)),
    "drop": (command({"drop": "c"}, o2={"numRecords": 3}), ALL, event("drop", NS), event("drop", NS, uuid=True)),
    "rename": (
        command(RENAMED), ALL, event("rename", NS, first=TO),
        event("rename", NS, {"operationDescription": TO}, first=TO, uuid=True),
    ),
    "rename onto another": (
        command({**RENAMED, "dropTarget": Binary(OTHER_UUID, 4)}), ALL, event("rename", NS, first=TO),
        event(
            "rename", NS, {"operationDescription": {**TO, "dropTarget": Binary(OTHER_UUID, 4)}}, first=TO, uuid=True
        ),
    ),
    "rename to the watched name": (
        command({"renameCollection": "d.x", "to": "d.c", "stayTemp": False}), ALL,
        event("rename", {"ns": {"db": "d", "coll": "x"}}, first={"to": {"db": "d", "coll": "c"}}),
        event(
            "rename", {"ns": {"db": "d", "coll": "x"}}, {"operationDescription": {"to": {"db": "d", "coll": "c"}}},
            first={"to": {"db": "d", "coll": "c"}}, uuid=True,
        ),
    ),
    "dropDatabase": (
        command({"dropDatabase": 1}, uuid=None), WIDE,
        event("dropDatabase", {"ns": {"db": "d"}}), event("dropDatabase", {"ns": {"db": "d"}}),
    ),
}  # fmt: skip

EXPANDED: dict[str, tuple[bytes, tuple[str, ...], dict[str, Any]]] = {
    "create": (
        command({"create": "c", "capped": True, "size": 4096, "idIndex": ID_INDEX}), ALL,
        event(
            "create", NS, {"operationDescription": {"capped": True, "size": 4096, "idIndex": ID_INDEX}},
            {"nsType": "collection"}, uuid=True,
        ),
    ),
    "createIndexes": (
        command({"createIndexes": "c", **A_INDEX}), ALL,
        event("createIndexes", NS, {"operationDescription": {"indexes": [A_INDEX]}}, uuid=True),
    ),
    "commitIndexBuild": (
        command({"commitIndexBuild": "c", "indexBuildUUID": Binary(OTHER_UUID, 4), "indexes": [A_INDEX, ID_INDEX]}),
        ALL, event("createIndexes", NS, {"operationDescription": {"indexes": [A_INDEX, ID_INDEX]}}, uuid=True),
    ),
    "dropIndexes": (
        command({"dropIndexes": "c", "index": "a_1"}, o2=A_INDEX), ALL,
        event("dropIndexes", NS, {"operationDescription": {"indexes": [A_INDEX]}}, uuid=True),
    ),
    "modify": (
        command({"collMod": "c", "validator": {"a": 1}}, o2=MODIFIED_STATE), ALL,
        event(
            "modify", NS, {"operationDescription": {"validator": {"a": 1}}},
            {"stateBeforeChange": {"collectionOptions": {"uuid": Binary(UUID, 4)}}}, uuid=True,
        ),
    ),
    "modify of an index": (
        command(
            {"collMod": "c", "index": {"name": "a_1"}}, o2={**MODIFIED_STATE, "indexOptions_old": {"hidden": False}}
        ), ALL,
        event(
            "modify", NS, {"operationDescription": {"index": {"name": "a_1"}}},
            {"stateBeforeChange": {"collectionOptions": {"uuid": Binary(UUID, 4)}, "indexOptions": {"hidden": False}}},
            uuid=True,
        ),
    ),
    "create of a view": (
        insert(VIEW, ns="d.system.views"), WIDE, event("create", VIEW_NS, VIEW_DESCRIPTION, {"nsType": "view"}),
    ),
    "create of a time series": (
        insert({**VIEW, "timeseries": {"timeField": "t"}}, ns="d.system.views"), WIDE,
        event(
            "create", VIEW_NS,
            {"operationDescription": {**VIEW_DESCRIPTION["operationDescription"], "timeseries": {"timeField": "t"}}},
            {"nsType": "timeseries"},
        ),
    ),
    "modify of a view": (
        replace(VIEW, ns="d.system.views"), WIDE, event("modify", VIEW_NS, VIEW_DESCRIPTION),
    ),
    "drop of a view": (delete("d.v", ns="d.system.views"), WIDE, event("drop", VIEW_NS)),
}  # fmt: skip

ENDS = {("collection", "drop"), ("collection", "rename"), ("database", "dropDatabase")}


def with_end(scope: str, expected: dict[str, Any]) -> list[dict[str, Any]]:
    """The event, and the invalidate that follows it in this scope."""
    ends = (scope, expected["operationType"]) in ENDS
    return [expected, invalidate()] if ends else [expected]


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.parametrize("name", ALWAYS)
def test_all_streams_have_the_classic_events_of_their_scope(name: str, scope: str) -> None:
    data, scopes, plain, expanded = ALWAYS[name]
    check(documents(events_in(stream(scope), data)), with_end(scope, plain) if scope in scopes else [])
    result = documents(events_in(stream(scope, showExpandedEvents=True), data))
    check(result, with_end(scope, expanded) if scope in scopes else [])


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.parametrize("name", EXPANDED)
def test_the_other_events_need_show_expanded_events(name: str, scope: str) -> None:
    data, scopes, expanded = EXPANDED[name]
    assert events_in(stream(scope), data) == []
    check(documents(events_in(stream(scope, showExpandedEvents=True), data)), [expanded] if scope in scopes else [])


@pytest.mark.parametrize(
    "data",
    [
        entry("n", "", {"msg": "periodic noop"}, uuid=None),
        command({"startIndexBuild": "c", "indexBuildUUID": Binary(OTHER_UUID, 4), "indexes": [A_INDEX]}),
        command({"abortIndexBuild": "c", "indexBuildUUID": Binary(OTHER_UUID, 4), "indexes": [A_INDEX]}),
        command({"convertToCapped": "c", "size": 10}),
        entry("c", "d.$cmd", {"applyOps": [inside("i", {"_id": 1})]}, uuid=None),
        insert({"_id": 1}, middle={"fromMigrate": True}),
    ],
)
@pytest.mark.parametrize("scope", ALL)
def test_internal_entries_have_no_events(data: bytes, scope: str) -> None:
    assert events_in(stream(scope, showExpandedEvents=True), data) == []


def test_migrated_documents_need_show_migration_events() -> None:
    data = insert({"_id": 1}, middle={"fromMigrate": True})
    assert len(events_in(stream(showMigrationEvents=True), data)) == 1


def test_raw_update_descriptions_are_those_of_the_oplog() -> None:
    data = update(1, {"u": {"a": 2}})
    raw = {"rawUpdateDescription": {"$v": 2, "diff": {"u": {"a": 2}}}}
    check(documents(events_in(stream(showRawUpdateDescription=True), data)), [event("update", NS, KEY, raw)])


DESCRIBED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "only set": ({"u": {"a": 1, "b": [1]}}, {"updatedFields": {"a": 1, "b": [1]}}, {}),
    "only new": ({"i": {"a": {"x": 1}}}, {"updatedFields": {"a": {"x": 1}}}, {}),
    "set and new": ({"u": {"a": 1}, "i": {"b": 2}}, {"updatedFields": {"a": 1, "b": 2}}, {}),
    "removed": ({"d": {"a": False, "b": False}}, {"updatedFields": {}, "removedFields": ["a", "b"]}, {}),
    "removed and set": ({"d": {"a": False}, "u": {"b": 1}}, {"updatedFields": {"b": 1}, "removedFields": ["a"]}, {}),
    "nested": (
        {"sa": {"u": {"b": 1}, "sc": {"d": {"e": False}}}},
        {"updatedFields": {"a.b": 1}, "removedFields": ["a.c.e"]}, {},
    ),
    "array item": ({"sa": {"a": True, "u2": 9}}, {"updatedFields": {"a.2": 9}}, {}),
    "array cut": ({"sa": {"a": True, "l": 3}}, {"truncatedArrays": [{"field": "a", "newSize": 3}]}, {}),
    "numeric name": ({"sa": {"u": {"0": 5}}}, {"updatedFields": {"a.0": 5}}, {"a.0": ["a", "0"]}),
    "array of numeric names": (
        {"sr": {"a": True, "s0": {"u": {"0": 7}}}}, {"updatedFields": {"r.0.0": 7}}, {"r.0.0": ["r", 0, "0"]},
    ),
    "dotted name": ({"u": {"a.b": 1}}, {"updatedFields": {"a.b": 1}}, {"a.b": ["a.b"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_update_is_described_field_by_field(name: str) -> None:
    diff, reported, ambiguous = DESCRIBED[name]
    described = {"updatedFields": {}, "removedFields": [], "truncatedArrays": [], **reported}
    result = documents(events_in(stream(), update(1, diff)))
    check(result, [event("update", NS, KEY, {"updateDescription": described})])
    result = documents(events_in(stream(showExpandedEvents=True), update(1, diff)))
    described["disambiguatedPaths"] = ambiguous
    check(result, [event("update", NS, KEY, {"updateDescription": described}, uuid=True)])


IMAGE = {"_id": 1, "a": 1}
AFTER = {"_id": 1, "a": 2}
NOW = {"_id": 1, "a": 3}
BEFORE_FIELD = {"fullDocumentBeforeChange": IMAGE}
FULL_MODES = {
    # mode: (event's fullDocument with everything there, and with nothing there)
    "default": ({}, {}),
    "updateLookup": ({"fullDocument": NOW}, {"fullDocument": None}),
    "whenAvailable": ({"fullDocument": AFTER}, {"fullDocument": None}),
    "required": ({"fullDocument": AFTER}, None),
}


@pytest.mark.parametrize("mode", FULL_MODES)
@pytest.mark.parametrize("before", ["off", "whenAvailable"])
def test_an_update_shows_the_document_as_the_mode_says(mode: str, before: str) -> None:
    there, nothing = FULL_MODES[mode]
    spec, data = stream(fullDocument=mode, fullDocumentBeforeChange=before), update(1, {"u": {"a": 2}})
    tail = BEFORE_FIELD if before != "off" else {}
    check(
        documents(events_in(spec, data, lookup=Documents(NOW, IMAGE))),
        [event("update", there, NS, KEY, UPDATED, tail)],
    )
    if nothing is not None:
        tail = {"fullDocumentBeforeChange": None} if before != "off" else {}
        check(documents(events_in(spec, data)), [event("update", nothing, NS, KEY, UPDATED, tail)])


@pytest.mark.parametrize("before", ["whenAvailable", "required"])
def test_images_before_the_change_are_shown_of_every_change_but_an_insert(before: str) -> None:
    spec = stream(fullDocumentBeforeChange=before)
    result = documents(
        events_in(
            spec, insert(NOW), update(1, {"u": {"a": 2}}), replace({"_id": 1}), delete(1), lookup=Documents(None, IMAGE)
        )
    )  # fmt: skip
    check(
        result,
        [
            event("insert", {"fullDocument": NOW}, NS, KEY),
            event("update", NS, KEY, UPDATED, BEFORE_FIELD),
            event("replace", {"fullDocument": {"_id": 1}}, NS, KEY, BEFORE_FIELD),
            event("delete", NS, KEY, BEFORE_FIELD),
        ],
    )


def test_inserts_and_replacements_never_look_up_their_document() -> None:
    lookup = Documents(NOW, IMAGE)
    events_in(stream(fullDocument="updateLookup"), insert(AFTER), replace(AFTER), delete(1), lookup=lookup)
    assert lookup.asked == []


def test_update_lookup_asks_for_the_collection_of_that_name_whatever_its_uuid() -> None:
    lookup = Documents(NOW)
    events_in(stream(fullDocument="updateLookup"), update(1, {"u": {"a": 2}}), lookup=lookup)
    assert lookup.asked == [("d.c", None, {"_id": 1})]
    lookup = Documents(NOW)
    spec = stream(fullDocument="updateLookup", matchCollectionUUIDForUpdateLookup=True)
    events_in(spec, update(1, {"u": {"a": 2}}), lookup=lookup)
    assert lookup.asked == [("d.c", UUID, {"_id": 1})]


TXN = {"txnNumber": Int64(7), "lsid": {"id": Binary(bytes(16), 4), "uid": bytes(32)}}


@pytest.mark.parametrize("scope", ALL)
def test_events_of_a_transaction_begin_with_its_number_and_session(scope: str) -> None:
    data = transaction(
        inside("i", {"_id": 1, "a": 1}, {"_id": 1}),
        inside("u", {"$v": 2, "diff": {"u": {"a": 2}}}, {"_id": 1}),
        inside("i", {"_id": 9}, ns="d.other"),
        inside("u", {"_id": 1}, {"_id": 1}),
        inside("d", {"_id": 1}),
    )
    expected = [
        event("insert", {"fullDocument": {"_id": 1, "a": 1}}, NS, KEY, first=TXN),
        event("update", NS, KEY, UPDATED, first=TXN),
        event(
            "insert", {"fullDocument": {"_id": 9}}, {"ns": {"db": "d", "coll": "other"}}, {"documentKey": {"_id": 9}},
            first=TXN,
        ),
        event("replace", {"fullDocument": {"_id": 1}}, NS, KEY, first=TXN),
        event("delete", NS, KEY, first=TXN),
    ]  # fmt: skip
    if scope == "collection":
        del expected[2]
    check(documents(events_in(stream(scope), data)), expected)


def test_several_inserts_in_one_entry_are_no_transaction() -> None:
    data = entry(
        "c", "admin.$cmd", {"applyOps": [inside("i", {"_id": 1}, {"_id": 1}), inside("i", {"_id": 2}, {"_id": 2})]},
        uuid=None, before={"lsid": TXN["lsid"], "txnNumber": Int64(1)}, after={"multiOpType": 1},
    )  # fmt: skip
    check(
        documents(events_in(stream(), data)),
        [
            event("insert", {"fullDocument": {"_id": 1}}, NS, KEY),
            event("insert", {"fullDocument": {"_id": 2}}, NS, {"documentKey": {"_id": 2}}),
        ],
    )


def test_retryable_writes_carry_no_session_in_their_events() -> None:
    before = {"lsid": TXN["lsid"], "txnNumber": Int64(3)}
    data = insert({"_id": 1}, before=before, middle={"stmtId": 0}, after={"prevOpTime": {"ts": time(0), "t": Int64(1)}})
    check(documents(events_in(stream(), data)), [event("insert", {"fullDocument": {"_id": 1}}, NS, KEY)])


@pytest.mark.parametrize("key", [1, Int64(1), 1.5, "s", ObjectId(), None, {"a": 1}, b"x", Binary(b"y", 4), True])
def test_every_type_of_id_is_reported_with_its_type(key: Any) -> None:
    result = documents(events_in(stream(), insert({"_id": key})))
    check(result, [event("insert", {"fullDocument": {"_id": key}}, NS, {"documentKey": {"_id": key}})])


HIDDEN = {
    # namespace: scopes that hear an insert into it, and those that hear it with showSystemEvents
    "d.other": (WIDE, WIDE),
    "d.systemindexes": (WIDE, WIDE),
    "d.system_users": (WIDE, WIDE),
    "d.system.profile": ((), ()),
    "d.system.js": ((), WIDE),
    "d.system.buckets.x": ((), WIDE),
    "d.system.resharding.x": ((), WIDE),
    "d.$x": ((), ()),
    "e.c": (("deployment",), ("deployment",)),
    "dd.c": (("deployment",), ("deployment",)),
    "admin.c": ((), ()),
    "config.c": ((), ()),
    "local.c": ((), ()),
    "d.c.d": (WIDE, WIDE),
}


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.parametrize("namespace", HIDDEN)
def test_a_namespace_is_in_the_scopes_that_cover_it(namespace: str, scope: str) -> None:
    scopes, with_system = HIDDEN[namespace]
    data = insert({"_id": 1}, ns=namespace)
    assert bool(events_in(stream(scope), data)) is (scope in scopes)
    assert bool(events_in(stream(scope, showSystemEvents=True), data)) is (scope in with_system)
