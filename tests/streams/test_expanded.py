"""Events of `showExpandedEvents`, one by one, with every field in its place (reference, 1.1 and 1.2)."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary, Int64
from bson.datetime_ms import DatetimeMS

from headrace.values.bson import decode, encode
from headrace.values.position import from_timestamp
from headrace.values.token import decode_token, make_event_token
from tests.streams.serving import SESSION, Served, Stream, kinds, shape

ID_INDEX = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
A_INDEX = {"v": 2, "key": {"a": 1}, "name": "a_1"}
B_INDEX = {"v": 2, "key": {"b": -1}, "name": "b"}
CLASSIC = {"delete", "drop", "dropDatabase", "insert", "invalidate", "rename", "replace", "update"}


@pytest.fixture
def db(at: Served) -> str:
    """A database of the test's own."""
    return at.name()


def rest_of(event: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fields behind wallTime."""
    names = list(event)
    return [(name, event[name]) for name in names[names.index("wallTime") + 1 :]]


def head_of(event: dict[str, Any]) -> list[str]:
    names = list(event)
    return names[: names.index("wallTime") + 1]


HEAD = ["_id", "operationType", "clusterTime", "wallTime"]
HEAD_UUID = ["_id", "operationType", "clusterTime", "collectionUUID", "wallTime"]


def ns(db: str, coll: str | None = None) -> tuple[str, dict[str, str]]:
    return "ns", {"db": db} if coll is None else {"db": db, "coll": coll}


def described(**description: Any) -> tuple[str, dict[str, Any]]:
    return "operationDescription", description


Row = tuple[list[dict[str, Any]], dict[str, Any], list[tuple[str, bool, list[tuple[str, Any]]]]]
"""(what there is before, the command, (operationType, whether it has a UUID, the fields behind wallTime) of each)."""
VIEW = {"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": 1}}]}
SOME = {"insert": "c", "documents": [{"_id": 1}]}
MADE = {"create": "c"}


def index(*specs: dict[str, Any]) -> dict[str, Any]:
    return {"createIndexes": "c", "indexes": [{"key": spec["key"], "name": spec["name"]} for spec in specs]}


def created(**options: Any) -> tuple[str, bool, list[tuple[str, Any]]]:
    options["idIndex"] = ID_INDEX
    return "create", True, [ns("D", "c"), described(**options), ("nsType", "collection")]


COLLATION = {"locale": "en", "strength": 2}
FULL_COLLATION = {
    "locale": "en", "caseLevel": False, "caseFirst": "off", "strength": 2, "numericOrdering": False,
    "alternate": "non-ignorable", "maxVariable": "punct", "normalization": False, "backwards": False, "version": "57.1",
}  # fmt: skip
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
ROWS: dict[str, Row] = {
    "create": ([], {"create": "c"}, [created()]),
    "create by a write": ([], SOME, [
        created(),
        ("insert", True, [("fullDocument", {"_id": 1}), ns("D", "c"), ("documentKey", {"_id": 1})]),
    ]),
    "create by an index": ([], index(A_INDEX), [
        created(),
        ("createIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX])]),
    ]),
    "create capped": ([], {"create": "c", "capped": True, "size": 4096}, [created(capped=True, size=4096)]),
    "create that is there already": ([MADE], {"create": "c"}, []),
    "create with a collation": ([], {"create": "c", "collation": COLLATION}, [
        ("create", True, [
            ns("D", "c"), described(collation=FULL_COLLATION, idIndex={**ID_INDEX, "collation": FULL_COLLATION}),
            ("nsType", "collection"),
        ]),
    ]),
    "create with a validator": ([], {"create": "c", "validator": {"a": {"$gt": 1}}, "validationLevel": "moderate"}, [
        created(validator={"a": {"$gt": 1}}, validationLevel="moderate"),
    ]),
    "create with images": ([], {"create": "c", **IMAGES}, [created(**IMAGES)]),
    "createIndexes on an empty collection": ([MADE], index(A_INDEX, B_INDEX), [
        ("createIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX])]),
        ("createIndexes", True, [ns("D", "c"), described(indexes=[B_INDEX])]),
    ]),
    "createIndexes that is there already": ([MADE, index(A_INDEX)], index(A_INDEX), []),
    "createIndexes with documents": ([SOME], index(A_INDEX, B_INDEX), [
        ("createIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX, B_INDEX])]),
    ]),
    "createIndexes with options": (
        [MADE],
        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "sparse": True, "hidden": True}]},
        [("createIndexes", True, [ns("D", "c"), described(indexes=[{**A_INDEX, "sparse": True, "hidden": True}])])],
    ),
    "createIndexes with some there already": ([SOME, index(A_INDEX)], index(A_INDEX, B_INDEX), [
        ("createIndexes", True, [ns("D", "c"), described(indexes=[B_INDEX])]),
    ]),
    "drop": ([SOME], {"drop": "c"}, [("drop", True, [ns("D", "c")])]),
    "dropDatabase": ([MADE, {"create": "d"}], {"dropDatabase": 1}, [
        ("drop", True, [ns("D", "d")]),
        ("drop", True, [ns("D", "c")]),
        ("dropDatabase", False, [ns("D")]),
    ]),
    "dropDatabase with a view": ([MADE, VIEW], {"dropDatabase": 1}, [
        ("drop", True, [ns("D", "c")]),
        ("drop", False, [ns("D", "v")]),
        ("dropDatabase", False, [ns("D")]),
    ]),
    "dropIndexes": ([MADE, index(A_INDEX)], {"dropIndexes": "c", "index": "a_1"}, [
        ("dropIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX])]),
    ]),
    "dropIndexes by key": ([SOME, index(A_INDEX)], {"dropIndexes": "c", "index": {"a": 1}}, [
        ("dropIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX])]),
    ]),
    "dropIndexes of all": ([MADE, index(A_INDEX, B_INDEX)], {"dropIndexes": "c", "index": "*"}, [
        ("dropIndexes", True, [ns("D", "c"), described(indexes=[A_INDEX])]),
        ("dropIndexes", True, [ns("D", "c"), described(indexes=[B_INDEX])]),
    ]),
    "modify": ([MADE], {"collMod": "c", **IMAGES}, [
        ("modify", True, [
            ns("D", "c"), described(**IMAGES), ("stateBeforeChange", {"collectionOptions": {"uuid": "U"}}),
        ]),
    ]),
    "modify of a view": ([VIEW], {"collMod": "v", "viewOn": "d", "pipeline": []}, [
        ("modify", False, [ns("D", "v"), described(viewOn="d", pipeline=[])]),
    ]),
    "modify of an index": ([MADE, index(A_INDEX)], {"collMod": "c", "index": {"name": "a_1", "hidden": True}}, [
        ("modify", True, [
            ns("D", "c"), described(index={"name": "a_1", "hidden": True}),
            ("stateBeforeChange", {"collectionOptions": {"uuid": "U"}, "indexOptions": {"hidden": False}}),
        ]),
    ]),
    "modify of an index by its key": (
        [MADE, {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "expireAfterSeconds": 100}]}],
        {"collMod": "c", "index": {"keyPattern": {"a": 1}, "expireAfterSeconds": 200}},
        [("modify", True, [
            ns("D", "c"), described(index={"name": "a_1", "expireAfterSeconds": Int64(200)}),
            ("stateBeforeChange", {
                "collectionOptions": {"uuid": "U"}, "indexOptions": {"expireAfterSeconds": Int64(100)},
            }),
        ])],
    ),
    "modify of several options": (
        [{"create": "c", "validator": {"a": 1}, "validationLevel": "strict"}],
        {"collMod": "c", "validator": {"b": 2}, "validationAction": "warn"},
        [("modify", True, [
            ns("D", "c"), described(validator={"b": 2}, validationAction="warn"),
            ("stateBeforeChange", {
                "collectionOptions": {"validator": {"a": 1}, "validationLevel": "strict", "uuid": "U"},
            }),
        ])],
    ),
    "rename": ([MADE], {"renameCollection": "D.c", "to": "D.d"}, [
        ("rename", True, [ns("D", "c"), described(to={"db": "D", "coll": "d"})]),
    ]),
    "rename onto another": (
        [MADE, {"create": "d"}], {"renameCollection": "D.c", "to": "D.d", "dropTarget": True},
        [("rename", True, [ns("D", "c"), described(to={"db": "D", "coll": "d"}, dropTarget="T")])],
    ),
    "view created": ([], VIEW, [
        ("create", False, [ns("D", "v"), described(viewOn="c", pipeline=[{"$match": {"a": 1}}]), ("nsType", "view")]),
    ]),
    "view created with a collation": ([], {**VIEW, "pipeline": [], "collation": COLLATION}, [
        ("create", False, [
            ns("D", "v"), described(viewOn="c", pipeline=[], collation=FULL_COLLATION), ("nsType", "view"),
        ]),
    ]),
    "view dropped": ([VIEW], {"drop": "v"}, [("drop", False, [ns("D", "v")])]),
}  # fmt: skip


def in_db(value: Any, names: dict[str, Any]) -> Any:
    """A row with its database and UUIDs filled in."""
    if isinstance(value, dict):
        return {name: in_db(item, names) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(in_db(item, names) for item in value)
    if isinstance(value, str):
        return names.get(value, value.replace("D.", names["D"] + "."))
    return value


def run(at: Served, db: str, row: str) -> tuple[dict[str, Stream], dict[str, Any]]:
    """Streams on the database and on everything, expanded and not, through which the row's command has gone."""
    before, command, _ = ROWS[row]
    for body in before:
        at.must(in_db(body, {"D": db}), db)
    names: dict[str, Any] = {"D": db}
    for coll, name in (("c", "U"), ("d", "T")):
        if any(body.get("create") == coll or body.get("insert") == coll for body in before):
            names[name] = at.uuid_of(coll, db)
    streams = {
        f"{scope} {expanded}": at.watch(1, db=where, showExpandedEvents=expanded)
        for scope, where in (("db", db), ("all", "admin")) for expanded in (True, False)
    }  # fmt: skip
    for expanded in (True, False):
        streams[f"coll {expanded}"] = at.watch("c", db=db, showExpandedEvents=expanded)
    at.must(in_db(command, {"D": db}), "admin" if "renameCollection" in command else db)
    if (
        "U" not in names
        and not any(name in command for name in ("drop", "dropDatabase", "viewOn"))
        and "v" not in command.values()
    ):
        names["U"] = at.uuid_of("c", db)
    return streams, names


def without_invalidate(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["operationType"] != "invalidate"]


@pytest.mark.parametrize("row", ROWS)
def test_an_expanded_stream_has_each_event_in_full(at: Served, db: str, row: str) -> None:
    streams, names = run(at, db, row)
    for scope in ("db", "all"):
        events = without_invalidate(streams[f"{scope} True"].read())
        assert kinds(events) == [kind for kind, _, _ in ROWS[row][2]]
        for event, (kind, has_uuid, rest) in zip(events, ROWS[row][2]):
            head = HEAD_UUID if has_uuid else HEAD
            assert head_of(event) == (["to", *head] if kind == "rename" else head)
            assert shape(dict(rest_of(event))) == shape(dict(in_db(rest, names)))
            assert event["wallTime"] == DatetimeMS(at.clock.now_ms())
            assert type(event.get("collectionUUID")) is (Binary if has_uuid else type(None))


@pytest.mark.parametrize("row", ROWS)
def test_a_stream_that_is_not_expanded_has_the_classic_events_with_fewer_fields(at: Served, db: str, row: str) -> None:
    streams, names = run(at, db, row)
    views = {"v"}
    wanted = [
        (kind, rest) for kind, _, rest in ROWS[row][2] if kind in CLASSIC and dict(rest)["ns"].get("coll") not in views
    ]
    for scope in ("db", "all"):
        events = without_invalidate(streams[f"{scope} False"].read())
        assert kinds(events) == [kind for kind, _ in wanted]
        for event, (kind, rest) in zip(events, wanted):
            assert head_of(event) == (["to", *HEAD] if kind == "rename" else HEAD)
            classic = [
                field for field in rest if field[0] not in ("operationDescription", "nsType", "stateBeforeChange")
            ]
            assert shape(dict(rest_of(event))) == shape(dict(in_db(classic, names)))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("expanded", [True, False], ids=["expanded", "classic"])
def test_a_collections_stream_has_its_events_and_no_view(at: Served, db: str, row: str, expanded: bool) -> None:
    streams, _ = run(at, db, row)
    wanted = [
        kind for kind, _, rest in ROWS[row][2]
        if dict(rest)["ns"] == {"db": "D", "coll": "c"} and (expanded or kind in CLASSIC)
    ]  # fmt: skip
    if wanted[-1:] and wanted[-1] in ("drop", "rename"):
        wanted.append("invalidate")
    assert kinds(streams[f"coll {expanded}"].read()) == wanted


@pytest.mark.parametrize("row", ROWS)
def test_tokens_hold_the_operation_and_its_description_whether_the_stream_is_expanded_or_not(
    at: Served, db: str, row: str
) -> None:
    streams, _ = run(at, db, row)
    expanded = {event["_id"]["_data"]: event for event in streams["all True"].read()}
    for event in expanded.values():
        kind, description = event["operationType"], event.get("operationDescription")
        if kind in ("insert", "invalidate"):
            continue
        uuid = decode_token(event["_id"]).uuid
        if "collectionUUID" in event:
            assert uuid == bytes(event["collectionUUID"])
        raw = None if description is None else encode(description)
        made, bits = make_event_token(from_timestamp(event["clusterTime"]), 0, uuid, kind, None, raw)
        assert event["_id"] == ({"_data": made} if bits is None else {"_data": made, "_typeBits": bits})
    classic = without_invalidate(streams["all False"].read())
    assert all(event["_id"]["_data"] in expanded for event in classic)


NOT_CHANGED: dict[str, tuple[dict[str, Any], int]] = {
    "a negative time": ({"name": "a_1", "expireAfterSeconds": -1}, 72),
    "a text for a time": ({"name": "a_1", "expireAfterSeconds": "1"}, 14),
    "an index that is not there": ({"name": "b_1", "hidden": True}, 27),
    "an unknown field": ({"name": "a_1", "hiden": True}, 40415),
    "both a name and a key": ({"name": "a_1", "keyPattern": {"a": 1}, "hidden": True}, 72),
    "nothing to change": ({"name": "a_1"}, 72),
    "uniqueness that was not prepared": ({"name": "a_1", "hidden": True, "unique": True}, 72),
    "which index": ({"hidden": True}, 72),
}


@pytest.mark.parametrize("row", NOT_CHANGED)
def test_a_change_of_an_index_that_cannot_be_made_leaves_it_and_has_no_event(at: Served, db: str, row: str) -> None:
    at.must(index(A_INDEX), db)
    stream = at.watch("c", db=db, showExpandedEvents=True)
    change, code = NOT_CHANGED[row]
    assert at.code({"collMod": "c", "index": change}, db) == code
    assert stream.read() == []
    assert at.must({"listIndexes": "c"}, db)["cursor"]["firstBatch"] == [ID_INDEX, A_INDEX]


def test_the_reply_has_an_indexs_options_before_and_after(at: Served, db: str) -> None:
    at.must(index(A_INDEX), db)
    reply = at.must({"collMod": "c", "index": {"name": "a_1", "hidden": True, "expireAfterSeconds": 5}}, db)
    reported = {name: value for name, value in reply.items() if name.endswith(("_old", "_new"))}
    assert shape(reported) == shape({"expireAfterSeconds_new": Int64(5), "hidden_old": False, "hidden_new": True})


def test_a_clustered_collection_is_created_and_changed_with_its_options(at: Served, db: str) -> None:
    stream = at.watch(1, db=db, showExpandedEvents=True)
    at.must({"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": True}, "expireAfterSeconds": 60}, db)
    at.must({"collMod": "c", "expireAfterSeconds": "off"}, db)
    created, modified = stream.read()
    clustered = {"v": 2, "key": {"_id": 1}, "name": "_id_", "unique": True}
    assert created["operationType"] == "create"
    assert created["operationDescription"] == {"clusteredIndex": clustered, "expireAfterSeconds": 60}
    assert modified["operationDescription"] == {"expireAfterSeconds": "off"}
    assert modified["stateBeforeChange"]["collectionOptions"]["expireAfterSeconds"] == 60


# Renaming, seen from both of its ends.


def test_streams_of_both_names_of_a_renamed_collection_have_it_and_are_closed(at: Served, db: str) -> None:
    at.must({"create": "c"}, db)
    at.must({"create": "d"}, db)
    target = at.uuid_of("d", db)
    streams = [at.watch(coll, db=db, showExpandedEvents=True) for coll in ("c", "d")]
    at.must({"renameCollection": f"{db}.c", "to": f"{db}.d", "dropTarget": True}, "admin")
    for stream in streams:
        rename, invalidate = stream.read()
        assert next(iter(rename)) == "to" and rename["to"] == {"db": db, "coll": "d"}
        assert rename["operationDescription"] == {"to": {"db": db, "coll": "d"}, "dropTarget": target}
        assert list(invalidate) == HEAD
        assert stream.id == 0


def test_renaming_into_another_database_is_a_copy_that_is_renamed_and_a_drop(at: Served, db: str) -> None:
    other = at.name()
    at.insert("c", {"_id": 1}, db=db)
    everything = at.watch(1, db="admin", showExpandedEvents=True)
    source, goal = at.watch("c", db=db), at.watch("c", db=other)
    at.must({"renameCollection": f"{db}.c", "to": f"{other}.c"}, "admin")
    events = everything.read()
    assert kinds(events) == ["create", "insert", "rename", "drop"]
    assert events[2]["to"] == {"db": other, "coll": "c"} and events[3]["ns"] == {"db": db, "coll": "c"}
    assert kinds(source.read()) == ["drop", "invalidate"]
    assert kinds(goal.read()) == ["rename", "invalidate"]


# Changes of documents.


def test_events_of_documents_have_their_collections_uuid_before_the_wall_time(at: Served, db: str) -> None:
    at.must({"create": "c", **IMAGES}, db)
    stream = at.watch("c", db=db, showExpandedEvents=True, fullDocument="required", fullDocumentBeforeChange="required")
    at.insert("c", {"_id": 1}, db=db)
    at.update("c", 1, {"$set": {"a": 1}}, db=db)
    at.update("c", 1, {"b": 1}, db=db)
    at.delete("c", 1, db=db)
    rest = [
        ["fullDocument", "ns", "documentKey"],
        ["fullDocument", "ns", "documentKey", "updateDescription", "fullDocumentBeforeChange"],
        ["fullDocument", "ns", "documentKey", "fullDocumentBeforeChange"],
        ["ns", "documentKey", "fullDocumentBeforeChange"],
    ]
    events = stream.read()
    assert [list(event) for event in events] == [HEAD_UUID + names for names in rest]
    assert {bytes(event["collectionUUID"]) for event in events} == {bytes(at.uuid_of("c", db))}
    assert list(events[1]["updateDescription"]) == [
        "updatedFields", "removedFields", "truncatedArrays", "disambiguatedPaths",
    ]  # fmt: skip


def test_events_of_a_transaction_begin_with_its_number_and_session(at: Served, db: str) -> None:
    at.must({"create": "c"}, db)
    stream = at.watch("c", db=db, showExpandedEvents=True)
    at.transaction(1, [{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}], db)
    events = stream.read()
    for event in events:
        assert list(event) == ["txnNumber", "lsid", *HEAD_UUID, "fullDocument", "ns", "documentKey"]
        assert shape(event["txnNumber"]) == shape(Int64(1))
        assert list(event["lsid"]) == ["id", "uid"] and event["lsid"]["id"] == SESSION["id"]
    assert len({event["clusterTime"] for event in events}) == 1


def test_a_collection_made_in_a_transaction_is_reported_with_it(at: Served, db: str) -> None:
    at.must({"create": "before"}, db)
    stream = at.watch(1, db=db, showExpandedEvents=True)
    at.transaction(2, [{"create": "c"}, index(A_INDEX), {"insert": "c", "documents": [{"_id": 1}]}], db)
    events = stream.read()
    assert kinds(events) == ["create", "createIndexes", "insert"]
    assert len({event["clusterTime"] for event in events}) == 1
    assert all(list(event)[:2] == ["txnNumber", "lsid"] for event in events)
    assert [decode_token(event["_id"]).txn_op_index for event in events] == [0, 1, 2]


# (document, update, disambiguatedPaths)
PATHS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "a dot in a name": (
        {"pad": "x" * 99},
        [{"$replaceWith": {"$setField": {"field": "a.b", "input": "$$ROOT", "value": 1}}}], {"a.b": ["a.b"]},
    ),
    "a dot in a name deeper": (
        {"x": {"k": "y" * 50, "a.b": 1}},
        [{"$set": {"x": {"$setField": {"field": "a.b", "input": "$x", "value": 2}}}}], {"x.a.b": ["x", "a.b"]},
    ),
    "a leading zero is no number": ({"a": {}}, {"$set": {"a.01": 1}}, {}),
    "a number at the top": ({}, {"$set": {"0": 1}}, {}),
    "a number below a number at the top": ({"0": {"1": 1}}, {"$set": {"0.1": 2}}, {"0.1": ["0", "1"]}),
    "a number that is a field": ({"a": {"0": 1}}, {"$set": {"a.0": 2}}, {"a.0": ["a", "0"]}),
    "a number that is an index": ({"a": [1, 2]}, {"$set": {"a.1": 5}}, {}),
    "a removed number": ({"a": {"0": 1, "b": 1}}, {"$unset": {"a.0": 1}}, {"a.0": ["a", "0"]}),
    "an array below a number": ({"a": {"0": [1, 2]}}, {"$set": {"a.0.1": 5}}, {"a.0.1": ["a", "0", 1]}),
    "an index and then a number": (
        {"a": [{"7": 1}]}, {"$set": {"a.0.7": 5}}, {"a.0.7": ["a", 0, "7"]},
    ),
    "deeper than a number": ({"a": {"0": {"b": 1}}}, {"$set": {"a.0.b": 5}}, {"a.0.b": ["a", "0", "b"]}),
    "nothing": ({"a": {"b": 1}}, {"$set": {"a.b": 2}}, {}),
    "only those in doubt": ({"a": {"0": 1}}, {"$set": {"a.0": 2, "a.b": 3}}, {"a.0": ["a", "0"]}),
    "words are no numbers": ({"a": {}}, {"$set": {"a.1b": 1, "a.-1": 1, "a.+1": 1}}, {}),
}  # fmt: skip


@pytest.mark.parametrize("row", PATHS)
def test_ambiguous_paths_are_given_by_their_components(at: Served, db: str, row: str) -> None:
    document, update, paths = PATHS[row]
    at.insert("c", {"_id": 1, **document}, db=db)
    streams = [at.watch("c", db=db, showExpandedEvents=expanded) for expanded in (True, False)]
    at.update("c", 1, update, db=db)
    (event,), (plain,) = (stream.read() for stream in streams)
    assert event["operationType"] == "update"
    assert shape(event["updateDescription"]["disambiguatedPaths"]) == shape(paths)
    assert "disambiguatedPaths" not in plain["updateDescription"]


def test_an_ambiguous_truncated_array_is_given_by_its_components(at: Served, db: str) -> None:
    at.insert("c", {"_id": 1, "pad": "x" * 200, "a": {"0": ["y" * 50, 2, 3, 4]}}, db=db)
    stream = at.watch("c", db=db, showExpandedEvents=True)
    at.update("c", 1, [{"$set": {"a": {"0": {"$slice": ["$a.0", 2]}}}}], db=db)
    (event,) = stream.read()
    assert event["updateDescription"] == {
        "updatedFields": {}, "removedFields": [], "truncatedArrays": [{"field": "a.0", "newSize": 2}],
        "disambiguatedPaths": {"a.0": ["a", "0"]},
    }  # fmt: skip


def test_the_raw_description_is_what_the_oplog_has(at: Served, db: str) -> None:
    at.insert("c", {"_id": 1}, db=db)
    stream = at.watch("c", db=db, showRawUpdateDescription=True)
    at.update("c", 1, {"$set": {"a": 1}}, db=db)
    (event,) = stream.read()
    assert event["rawUpdateDescription"] == {"$v": 2, "diff": {"i": {"a": 1}}}
    assert "updateDescription" not in event


# System namespaces.


def test_names_that_begin_with_system_and_a_dot_are_hidden_and_others_are_not(at: Served, db: str) -> None:
    stream = at.watch(1, db=db, showExpandedEvents=True)
    for name in ("system.js", "systemindexes", "system_users", "system"):
        at.ask({"insert": name, "documents": [{"_id": 1}]}, db)
    assert [event["ns"]["coll"] for event in stream.read() if event["operationType"] == "insert"] == [
        "systemindexes", "system_users", "system",
    ]  # fmt: skip


def test_show_system_events_lets_system_js_through_and_does_not_expand(at: Served, db: str) -> None:
    stream = at.watch(1, db=db, showSystemEvents=True)
    at.must({"insert": "system.js", "documents": [{"_id": 1}]}, db)
    assert [(event["operationType"], event["ns"]["coll"]) for event in stream.read()] == [("insert", "system.js")]


def test_internal_databases_are_not_in_the_deployments_stream(at: Served, db: str) -> None:
    stream = at.watch(1, db="admin", showExpandedEvents=True)
    for database in ("admin", "config"):
        at.insert(db, {"_id": 1}, db=database)
    at.insert("c", {"_id": 1}, db=db)
    assert {event["ns"]["db"] for event in stream.read()} == {db}


def test_everything_decodes_as_a_driver_would(at: Served, db: str) -> None:
    stream = at.watch(1, db=db, showExpandedEvents=True)
    at.must({"create": "c"}, db)
    (event,) = stream.read()
    assert decode(encode(event)) == event


@pytest.mark.parametrize("where", ["database", "deployment"])
def test_the_first_view_creates_system_views_for_streams_of_system_events(at: Served, db: str, where: str) -> None:
    opened = db if where == "database" else "admin"
    system = at.watch(1, db=opened, showExpandedEvents=True, showSystemEvents=True)
    others = [
        at.watch(1, db=opened, showExpandedEvents=True),
        at.watch("c", db=db, showExpandedEvents=True, showSystemEvents=True),
    ]
    at.must({"create": "c"}, db)
    at.must(VIEW, db)
    at.must({**VIEW, "create": "w"}, db)
    _, views, *rest = system.read()
    assert kinds(rest) == ["create", "create"] and [event["ns"]["coll"] for event in rest] == ["v", "w"]
    assert head_of(views) == HEAD_UUID and views["collectionUUID"] == at.uuid_of("system.views", db)
    assert rest_of(views) == [ns(db, "system.views"), described(idIndex=ID_INDEX), ("nsType", "collection")]
    assert [[event["ns"]["coll"] for event in stream.read()] for stream in others] == [["c", "v", "w"], ["c"]]
    at.must({"drop": "v"}, db)
    at.must({"drop": "w"}, db)
    at.must(VIEW, db)  # `system.views` has stayed
    at.must({"dropDatabase": 1}, db)
    events = without_invalidate(system.read())
    assert [(event["operationType"], event["ns"].get("coll")) for event in events] == [
        ("drop", "v"), ("drop", "w"), ("create", "v"),
        ("drop", "c"), ("drop", "v"), ("drop", "system.views"), ("dropDatabase", None),
    ]  # fmt: skip
