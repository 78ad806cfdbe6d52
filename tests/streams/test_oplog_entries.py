"""The oplog's entry of each operation, field by field and in order (the reference, section 6)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from tests.server.raw import RawClient
from tests.streams.serving import SESSION, Served, serving, shape

ID_INDEX = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
A_INDEX = {"v": 2, "key": {"a": 1}, "name": "a_1"}
LSID = {"id": SESSION["id"], "uid": hashlib.sha256(b"").digest()}


@pytest.fixture
def db(at: Served) -> str:
    """A database of the test's own, with {_id: 1, a: 1} in its collection `c`."""
    name = at.name()
    at.insert("c", {"_id": 1, "a": 1}, db=name)
    return name


def since(at: Served, time: Timestamp) -> list[dict[str, Any]]:
    return at.entries({"ts": {"$gt": time}})


def crud(op: str, o: dict[str, Any], o2: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """An entry of a document of `c`, up to the position."""
    entry = {"op": op, "ns": "D.c", "ui": "U", "o": o}
    return entry | ({} if o2 is None else {"o2": o2}) | more


def command(o: dict[str, Any], o2: dict[str, Any] | None = None, ui: str | None = "U") -> dict[str, Any]:
    entry: dict[str, Any] = {"op": "c", "ns": "D.$cmd"}
    if ui is not None:
        entry["ui"] = ui
    return entry | {"o": o} | ({} if o2 is None else {"o2": o2})


def view(op: str, o: dict[str, Any], o2: dict[str, Any] | None) -> dict[str, Any]:
    return {**crud(op, o, o2), "ns": "D.system.views", "ui": "V"}


def closed(entry: dict[str, Any], result: dict[str, Any], at: Served) -> dict[str, Any]:
    """The entry with the position that was found, and the rest that all entries share."""
    previous = entry.pop("prevOpTime", None)
    end = {"ts": result["ts"], "t": Int64(1), "v": Int64(2), "wall": DatetimeMS(at.clock.now_ms())}
    return entry | end | ({} if previous is None else {"prevOpTime": previous})


def filled(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, names) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if isinstance(value, str):
        return names.get(value, value.replace("D.", names["D"] + "."))
    return value


Row = tuple[dict[str, Any], list[dict[str, Any]]]
"""(the command, the entries it writes up to the position)."""


def updated(change: Any, **diff: Any) -> Row:
    row = {"update": "c", "updates": [{"q": {"_id": 1}, "u": change}]}
    return row, [crud("u", {"$v": 2, "diff": diff}, {"_id": 1})]


def removal(limit: int) -> dict[str, Any]:
    return {"delete": "c", "deletes": [{"q": {"a": 1}, "limit": limit}]}


WRITES: dict[str, Row] = {
    "delete": (removal(1), [crud("d", {"_id": 1}, None)]),
    "delete that finds nothing": ({"delete": "c", "deletes": [{"q": {"_id": 9}, "limit": 1}]}, []),
    "findAndModify": (
        {"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"a": 1}}},
        [crud("u", {"$v": 2, "diff": {"u": {"a": 2}}}, {"_id": 1})],
    ),
    "findAndModify that removes": (
        {"findAndModify": "c", "query": {"_id": 1}, "remove": True}, [crud("d", {"_id": 1}, None)],
    ),
    "insert": ({"insert": "c", "documents": [{"_id": 2, "b": 1}]}, [crud("i", {"_id": 2, "b": 1}, {"_id": 2})]),
    "insert of several": (
        {"insert": "c", "documents": [{"_id": 2}, {"_id": 3}]},
        [crud("i", {"_id": 2}, {"_id": 2}), crud("i", {"_id": 3}, {"_id": 3})],
    ),
    "insert with its _id behind": (
        {"insert": "c", "documents": [{"b": 1, "_id": 2}]}, [crud("i", {"_id": 2, "b": 1}, {"_id": 2})],
    ),
    "replace": (
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"b": 2}}]}, [crud("u", {"_id": 1, "b": 2}, {"_id": 1})],
    ),
    "update by a pipeline": (
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": [{"$set": {"a": 1}}]}]}, [],
    ),
    "update of a field": updated({"$set": {"a": 2}}, u={"a": 2}),
    "update of a nested field that is new": updated({"$set": {"x.y": 2}}, i={"x": {"y": 2}}),
    "update that changes nothing": ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]}, []),
    "update that does three things": updated(
        {"$set": {"b": 1}, "$inc": {"n": 5}, "$unset": {"a": 1}}, d={"a": False}, i={"b": 1, "n": 5}
    ),
    "upsert": (
        {"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$set": {"b": 1}}, "upsert": True}]},
        [crud("i", {"_id": 7, "b": 1}, {"_id": 7})],
    ),
}  # fmt: skip
SCHEMA: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]] = {
    "collMod": (
        [], {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}},
        [command(
            {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}},
            {"collectionOptions_old": {"uuid": "U"}},
        )],
    ),
    "collMod of a view": (
        [{"create": "v", "viewOn": "c", "pipeline": []}],
        {"collMod": "v", "viewOn": "c", "pipeline": [{"$match": {}}]},
        [view("u", {"_id": "D.v", "viewOn": "c", "pipeline": [{"$match": {}}]}, {"_id": "D.v"})],
    ),
    "collMod of an index": (
        [{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}],
        {"collMod": "c", "index": {"keyPattern": {"a": 1}, "hidden": True}},
        [command(
            {"collMod": "c", "index": {"name": "a_1", "hidden": True}},
            {"collectionOptions_old": {"uuid": "U"}, "indexOptions_old": {"hidden": False}},
        )],
    ),
    "create": ([], {"create": "e"}, [command({"create": "e", "idIndex": ID_INDEX}, ui="E")]),
    "create of a view": (
        [{"create": "w", "viewOn": "c", "pipeline": []}], {"create": "v", "viewOn": "c", "pipeline": []},
        [view("i", {"_id": "D.v", "viewOn": "c", "pipeline": []}, {"_id": "D.v"})],
    ),
    "create of the first view": (
        [], {"create": "v", "viewOn": "c", "pipeline": []},
        [
            command({"create": "system.views", "idIndex": ID_INDEX}, ui="V"),
            view("i", {"_id": "D.v", "viewOn": "c", "pipeline": []}, {"_id": "D.v"}),
        ],
    ),
    "create with options": (
        [], {"create": "e", "capped": True, "size": 4096},
        [command({"create": "e", "capped": True, "size": 4096, "idIndex": ID_INDEX}, ui="E")],
    ),
    "createIndexes on an empty collection": (
        [{"create": "e"}],
        {"createIndexes": "e", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]},
        [
            command({"createIndexes": "e", **A_INDEX}, ui="E"),
            command({"createIndexes": "e", "v": 2, "key": {"b": 1}, "name": "b_1"}, ui="E"),
        ],
    ),
    "drop": ([], {"drop": "c"}, [command({"drop": "c"}, {"numRecords": 1})]),
    "drop of a view": (
        [{"create": "v", "viewOn": "c", "pipeline": []}], {"drop": "v"}, [view("d", {"_id": "D.v"}, None)],
    ),
    "drop of what is not there": ([], {"drop": "nothing"}, []),
    "dropDatabase": (
        [{"create": "e"}], {"dropDatabase": 1},
        [
            command({"drop": "e"}, {"numRecords": 0}, ui="E"), command({"drop": "c"}, {"numRecords": 1}),
            command({"dropDatabase": 1}, ui=None),
        ],
    ),
    "dropDatabase with a view": (
        [{"create": "v", "viewOn": "c", "pipeline": []}], {"dropDatabase": 1},
        [
            command({"drop": "c"}, {"numRecords": 1}), view("d", {"_id": "D.v"}, None),
            command({"drop": "system.views"}, {"numRecords": 0}, ui="V"), command({"dropDatabase": 1}, ui=None),
        ],
    ),
    "dropIndexes": (
        [{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}], {"dropIndexes": "c", "index": "a_1"},
        [command({"dropIndexes": "c", "index": "a_1"}, A_INDEX)],
    ),
    "rename": (
        [], {"renameCollection": "D.c", "to": "D.d"},
        [command({"renameCollection": "D.c", "to": "D.d", "stayTemp": False})],
    ),
    "rename onto another": (
        [{"insert": "e", "documents": [{"_id": 1}, {"_id": 2}]}],
        {"renameCollection": "D.c", "to": "D.e", "dropTarget": True},
        [command(
            {"renameCollection": "D.c", "to": "D.e", "stayTemp": False, "dropTarget": "E"}, {"numRecords": 2},
        )],
    ),
}  # fmt: skip


def names_of(at: Served, db: str) -> dict[str, Any]:
    reply = at.must({"listCollections": 1}, db)
    uuids = {item["name"]: item["info"].get("uuid") for item in reply["cursor"]["firstBatch"]}
    return {"U": uuids.get("c"), "E": uuids.get("e"), "V": uuids.get("system.views")}


def check(at: Served, db: str, body: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Run a command and compare what it has written into the oplog."""
    names, before = names_of(at, db), at.now()
    body = filled(body, {"D": db})
    at.must(body, "admin" if "renameCollection" in body else db)
    names = {name: uuid or names_of(at, db)[name] for name, uuid in names.items()} | {"D": db}
    result = since(at, before)
    assert len(result) == len(entries)
    for entry, wanted in zip(result, entries):
        if names["V"] is None and wanted.get("ui") == "V":
            names["V"] = entry["ui"]
        assert shape(entry) == shape(closed(filled(wanted, names), entry, at))
        assert type(entry["ts"]) is Timestamp and type(entry.get("ui", Binary(b"", 4))) is Binary


@pytest.mark.parametrize("row", WRITES)
def test_a_change_of_a_document_is_one_entry_of_this_shape(at: Served, db: str, row: str) -> None:
    check(at, db, *WRITES[row])


@pytest.mark.parametrize("row", SCHEMA)
def test_a_change_of_a_collection_is_a_command_of_this_shape(at: Served, db: str, row: str) -> None:
    before, body, entries = SCHEMA[row]
    for first in before:
        at.must(first, db)
    check(at, db, body, entries)


def test_an_index_over_documents_is_begun_and_then_committed(at: Served, db: str) -> None:
    before = at.now()
    specs = [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]
    at.must({"createIndexes": "c", "indexes": specs}, db)
    entries = since(at, before)
    assert [list(entry["o"]) for entry in entries] == [
        ["startIndexBuild", "indexBuildUUID", "indexes"], ["commitIndexBuild", "indexBuildUUID", "indexes"],
    ]  # fmt: skip
    assert entries[0]["o"]["indexBuildUUID"] == entries[1]["o"]["indexBuildUUID"]
    assert all(entry["o"]["indexes"] == [{"v": 2, **spec} for spec in specs] for entry in entries)
    assert [entry["op"] for entry in entries] == ["c", "c"]


def test_a_write_into_nothing_makes_the_collection_first(at: Served) -> None:
    db, before = at.name(), at.now()
    at.insert("c", {"_id": 1}, db=db)
    create, insert = since(at, before)
    assert create["o"] == {"create": "c", "idIndex": ID_INDEX} and insert["op"] == "i"
    assert create["ui"] == insert["ui"] and create["ns"] == f"{db}.$cmd"


def test_what_is_refused_writes_nothing(at: Served, db: str) -> None:
    before = at.now()
    at.ask({"insert": "c", "documents": [{"_id": 1}]}, db)
    at.ask({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"_id": 2}}}]}, db)
    at.ask({"create": "c"}, db)
    at.ask({"renameCollection": f"{db}.nothing", "to": f"{db}.d"}, "admin")
    assert since(at, before) == []


# Retryable writes.

FIRST = {"ts": Timestamp(0, 0), "t": Int64(-1)}
RETRYABLE: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
    "delete": (removal(1), [("d", 0)]),
    "deletes, of which one finds nothing": (
        {"delete": "c", "deletes": [{"q": {"_id": 9}, "limit": 1}, {"q": {"_id": 1}, "limit": 1}]}, [("d", 1)],
    ),
    "findAndModify": ({"findAndModify": "c", "query": {"_id": 1}, "update": {"b": 1}}, [("u", 0)]),
    "findAndModify that removes": ({"findAndModify": "c", "query": {"_id": 1}, "remove": True}, [("d", 0)]),
    "findAndModify that upserts": (
        {"findAndModify": "c", "query": {"_id": 9}, "update": {"b": 1}, "upsert": True}, [("i", 0)],
    ),
    "insert": ({"insert": "c", "documents": [{"_id": 2}]}, [("i", 0)]),
    "insert of several": (
        {"insert": "c", "documents": [{"_id": 2}, {"_id": 3}, {"_id": 4}]}, [("i", 0), ("i", 1), ("i", 2)],
    ),
    "insert of several, one of which is there": (
        {"insert": "c", "documents": [{"_id": 2}, {"_id": 1}, {"_id": 4}], "ordered": False}, [("i", 0), ("i", 2)],
    ),
    "insert of several, up to one that is there": (
        {"insert": "c", "documents": [{"_id": 2}, {"_id": 1}, {"_id": 4}]}, [("i", 0)],
    ),
    "updates": (
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": n}}} for n in (2, 2, 3)]},
        [("u", 0), ("u", 2)],
    ),
    "upserts": (
        {"update": "c", "updates": [{"q": {"_id": n}, "u": {"$set": {"b": 1}}, "upsert": True} for n in (8, 9)]},
        [("i", 0), ("i", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", RETRYABLE)
def test_a_retryable_write_has_its_session_its_statement_and_the_one_before(at: Served, db: str, row: str) -> None:
    body, wanted = RETRYABLE[row]
    before = at.now()
    session = {"lsid": {"id": SESSION["id"]}, "txnNumber": Int64(before.inc + (before.time << 32))}
    reply = at.ask({**body, **session}, db)
    entries = since(at, before)
    assert [(entry["op"], entry["stmtId"]) for entry in entries] == wanted
    previous = FIRST
    for entry in entries:
        middle = [name for name in ("o", "o2") if name in entry]
        names = ["lsid", "txnNumber", "op", "ns", "ui", *middle, "stmtId", "ts", "t", "v", "wall", "prevOpTime"]
        assert list(entry) == names
        assert shape(entry["lsid"]) == shape(LSID)
        assert shape(entry["txnNumber"]) == shape(session["txnNumber"]) and type(entry["stmtId"]) is int
        assert shape(entry["prevOpTime"]) == shape(previous)
        previous = {"ts": entry["ts"], "t": Int64(1)}
    again = at.ask({**body, **session}, db)
    assert since(at, entries[-1]["ts"]) == []
    assert again.get("n") == reply.get("n")


def test_statements_of_a_bulk_write_are_counted_through_all_its_collections(at: Served, db: str) -> None:
    before = at.now()
    at.must({
        "bulkWrite": 1,
        "ops": [
            {"insert": 0, "document": {"_id": 2}}, {"insert": 0, "document": {"_id": 3}},
            {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 5}}},
            {"insert": 1, "document": {"_id": 1}},
            {"delete": 0, "filter": {"_id": 3}},
        ],
        "nsInfo": [{"ns": f"{db}.c"}, {"ns": f"{db}.d"}], "lsid": {"id": SESSION["id"]},
        "txnNumber": Int64((before.time << 32) + before.inc),
    }, "admin")  # fmt: skip
    entries = [entry for entry in since(at, before) if entry["op"] != "c"]
    assert [(entry["op"], entry["stmtId"]) for entry in entries] == [("i", 0), ("i", 1), ("u", 2), ("i", 3), ("d", 4)]
    times = [FIRST, *({"ts": entry["ts"], "t": 1} for entry in entries)]
    assert [entry["prevOpTime"] for entry in entries] == times[:-1]


def test_streams_show_nothing_of_a_retryable_writes_session(at: Served, db: str) -> None:
    stream = at.watch("c", db=db)
    number = at.now()
    more = {"lsid": {"id": SESSION["id"]}, "txnNumber": Int64((number.time << 32) + number.inc)}
    at.insert("c", {"_id": 2}, {"_id": 3}, db=db, **more)
    for event in stream.read():
        assert next(iter(event)) == "_id" and "txnNumber" not in event and "lsid" not in event


# Transactions.


def test_a_transaction_is_one_entry_of_all_its_operations(at: Served, db: str) -> None:
    before = at.now()
    number = (before.time << 32) + before.inc
    uuid = at.uuid_of("c", db)
    at.transaction(number, [
        {"insert": "c", "documents": [{"_id": 2}]},
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]},
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"r": 1}}]},
        {"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]},
    ], db)  # fmt: skip
    (entry,) = since(at, before)
    index = {"ns": f"{db}.c", "ui": uuid}
    operations = [
        {"op": "i", **index, "o": {"_id": 2}},
        {"op": "u", **index, "o": {"$v": 2, "diff": {"u": {"a": 2}}}, "o2": {"_id": 1}},
        {"op": "u", **index, "o": {"_id": 1, "r": 1}, "o2": {"_id": 1}},
        {"op": "d", **index, "o": {"_id": 2}},
    ]
    wanted = {
        "lsid": LSID, "txnNumber": Int64(number), "op": "c", "ns": "admin.$cmd", "o": {"applyOps": operations},
        "prevOpTime": FIRST,
    }  # fmt: skip
    assert shape(entry) == shape(closed(wanted, entry, at))


def test_a_transaction_that_is_aborted_or_empty_writes_nothing(at: Served, db: str) -> None:
    before = at.now()
    more = {"lsid": {"id": SESSION["id"]}, "autocommit": False}
    number = (before.time << 32) + before.inc
    first = {**more, "txnNumber": Int64(number)}
    at.must({"insert": "c", "documents": [{"_id": 2}], **first, "startTransaction": True}, db)
    at.must({"abortTransaction": 1, **first}, "admin")
    second = {**more, "txnNumber": Int64(number + 1)}
    at.must({"find": "c", **second, "startTransaction": True}, db)
    at.must({"commitTransaction": 1, **second}, "admin")
    assert since(at, before) == []


def test_a_large_transaction_is_a_chain_of_entries(at: Served, db: str) -> None:
    before, large = at.now(), "x" * 9_000_000
    number = (before.time << 32) + before.inc
    at.transaction(number, [{"insert": "c", "documents": [{"_id": key, "x": large}]} for key in range(10, 13)], db)
    body = {"find": "oplog.rs", "filter": {"ts": {"$gt": before}}, "projection": {"o.applyOps": 0}}
    entries = at.must(body, "local")["cursor"]["firstBatch"]
    assert [entry["o"] for entry in entries] == [{"partialTxn": True}, {"partialTxn": True}, {"count": 3}]
    times = [FIRST, *({"ts": entry["ts"], "t": 1} for entry in entries)]
    assert [entry["prevOpTime"] for entry in entries] == times[:-1]
    assert shape(entries[-1]["o"]["count"]) == shape(Int64(3))
    at.must({"drop": "c"}, db)


# The oplog itself.


def test_a_new_oplog_begins_with_two_noops(tmp_path: Any) -> None:
    with serving(path=tmp_path) as at:
        first, second = at.entries({})
        for entry, message in ((first, "initiating set"), (second, "new primary")):
            assert shape(entry) == shape(closed({"op": "n", "ns": "", "o": {"msg": message}}, entry, at))
        assert at.must({"replSetGetStatus": 1}, "admin")["ok"] == 1.0
    with serving(path=tmp_path) as at:
        assert [entry["o"]["msg"] for entry in at.entries({"op": "n"})][:2] == ["initiating set", "new primary"]


def test_the_first_entry_is_read_by_natural_order(at: Served) -> None:
    body = {"find": "oplog.rs", "sort": {"$natural": 1}, "limit": 1}
    (first,) = at.must(body, "local")["cursor"]["firstBatch"]
    assert first["o"] == {"msg": "initiating set"}
    assert at.last_entry()["ts"] == at.now()


def test_the_oplog_is_listed_as_a_capped_collection(at: Served) -> None:
    (result,) = at.must({"listCollections": 1, "filter": {"name": "oplog.rs"}}, "local")["cursor"]["firstBatch"]
    assert result["type"] == "collection" and result["options"]["capped"] is True
    assert {"size", "autoIndexId"} <= result["options"].keys()


def tail(at: Served, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"find": "oplog.rs", "filter": spec, "tailable": True, "awaitData": True, **more}
    return dict(at.must(body, "local")["cursor"])


def test_a_tailing_cursor_goes_on_with_later_entries(at: Served, db: str) -> None:
    time = at.now()
    cursor = tail(at, {"ts": {"$gte": time}})
    assert [entry["ts"] for entry in cursor["firstBatch"]] == [time] and cursor["ns"] == "local.oplog.rs"
    more = {"getMore": Int64(cursor["id"]), "collection": "oplog.rs", "maxTimeMS": 1}
    assert at.must(more, "local")["cursor"]["nextBatch"] == []
    for key in (2, 3):
        at.insert("c", {"_id": key}, db=db)
        batch = at.must(more, "local")["cursor"]
        assert [entry["o"] for entry in batch["nextBatch"]] == [{"_id": key}] and batch["id"] == cursor["id"]


def test_a_tailing_cursor_sees_only_what_its_filter_wants(at: Served, db: str) -> None:
    cursor = tail(at, {"ns": f"{db}.c", "op": "d"}, oplogReplay=True)
    more = {"getMore": Int64(cursor["id"]), "collection": "oplog.rs", "maxTimeMS": 1}
    at.insert("c", {"_id": 2}, db=db)
    assert at.must(more, "local")["cursor"]["nextBatch"] == []
    at.delete("c", 2, db=db)
    assert [entry["o"] for entry in at.must(more, "local")["cursor"]["nextBatch"]] == [{"_id": 2}]


def test_a_waiting_tailing_cursor_is_woken_by_the_write(at: Served, db: str) -> None:
    cursor = tail(at, {"ts": {"$gt": at.now()}})
    with RawClient(at.server.address) as other:
        other.send({"getMore": Int64(cursor["id"]), "collection": "oplog.rs", "maxTimeMS": 20_000}, "local")
        at.insert("c", {"_id": "wake"}, db=db)
        assert [entry["o"] for entry in other.receive()[1]["cursor"]["nextBatch"]] == [{"_id": "wake"}]


def test_the_oplog_can_be_counted_sorted_projected_and_aggregated(at: Served, db: str) -> None:
    assert at.must({"count": "oplog.rs", "query": {"ns": f"{db}.c"}}, "local")["n"] == 1
    pipeline = [{"$match": {"ns": f"{db}.c"}}, {"$group": {"_id": "$op", "n": {"$sum": 1}}}]
    reply = at.must({"aggregate": "oplog.rs", "pipeline": pipeline, "cursor": {}}, "local")
    assert reply["cursor"]["firstBatch"] == [{"_id": "i", "n": 1}]
    assert at.must({"distinct": "oplog.rs", "key": "op", "query": {"ns": f"{db}.c"}}, "local")["values"] == ["i"]


REFUSED: dict[str, dict[str, Any]] = {
    "collMod": {"collMod": "oplog.rs", "validator": {}},
    "create": {"create": "oplog.rs"},
    "createIndexes": {"createIndexes": "oplog.rs", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    "delete": {"delete": "oplog.rs", "deletes": [{"q": {}, "limit": 0}]},
    "drop": {"drop": "oplog.rs"},
    "dropDatabase": {"dropDatabase": 1},
    "dropIndexes": {"dropIndexes": "oplog.rs", "index": "*"},
    "findAndModify": {"findAndModify": "oplog.rs", "query": {}, "remove": True},
    "insert": {"insert": "oplog.rs", "documents": [{"_id": 1}]},
    "update": {"update": "oplog.rs", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
}


@pytest.mark.parametrize("row", REFUSED)
def test_nobody_writes_to_the_oplog(at: Served, row: str) -> None:
    before = at.entries({})
    reply = at.ask(REFUSED[row], "local")
    assert reply["ok"] == 0.0 or reply["writeErrors"]
    assert at.entries({}) == before


@pytest.mark.parametrize("stage", ["$merge", "$out"])
def test_an_aggregation_does_not_write_to_it_either(at: Served, db: str, stage: str) -> None:
    into: dict[str, Any] = {"db": "local", "coll": "oplog.rs"}
    pipeline = [{stage: {"into": into} if stage == "$merge" else into}]
    assert at.code({"aggregate": "c", "pipeline": pipeline, "cursor": {}}, db) != 0


def test_the_oplog_is_neither_the_source_nor_the_target_of_a_rename(at: Served, db: str) -> None:
    for source, goal in (("local.oplog.rs", f"{db}.x"), (f"{db}.c", "local.oplog.rs")):
        body = {"renameCollection": source, "to": goal, "dropTarget": True}
        assert at.code(body, "admin") != 0
