"""bulkWrite does what the single commands do, in one go, and tells of each operation."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import OperationFailure

import headrace

INFO = [{"ns": "t.a"}, {"ns": "t.b"}]


@pytest.fixture(scope="module")
def client() -> Any:
    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        yield client


@pytest.fixture(autouse=True)
def empty(client: Any) -> None:
    client.drop_database("t")


def bulk(client: Any, ops: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    command = {"bulkWrite": 1, "ops": ops, "nsInfo": INFO, **options}
    return dict(client.admin.command(command))


def insert(namespace_index: int, key: Any) -> dict[str, Any]:
    return {"insert": namespace_index, "document": {"_id": key}}


def counts(reply: dict[str, Any]) -> dict[str, int]:
    return {name: reply[name] for name in reply if name.startswith("n") and reply[name]}


def test_one_command_writes_to_several_collections_and_reports_each_operation(client: Any) -> None:
    reply = bulk(client, [
        insert(0, 1), insert(0, 2), insert(1, 1),
        {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"x": 1}}},
        {"update": 1, "filter": {"_id": 9}, "updateMods": {"x": 2}, "upsert": True},
        {"update": 0, "filter": {}, "updateMods": [{"$set": {"y": "$$k"}}], "multi": True, "constants": {"k": 5}},
        {"delete": 0, "filter": {"_id": 2}, "multi": False},
    ])  # fmt: skip
    assert counts(reply) == {"nInserted": 3, "nMatched": 3, "nModified": 3, "nUpserted": 1, "nDeleted": 1}
    assert reply["cursor"]["ns"] == "admin.$cmd.bulkWrite" and reply["cursor"]["id"] == 0
    assert reply["cursor"]["firstBatch"] == [
        {"ok": 1.0, "idx": 0, "n": 1}, {"ok": 1.0, "idx": 1, "n": 1}, {"ok": 1.0, "idx": 2, "n": 1},
        {"ok": 1.0, "idx": 3, "n": 1, "nModified": 1},
        {"ok": 1.0, "idx": 4, "n": 1, "nModified": 0, "upserted": {"_id": 9}},
        {"ok": 1.0, "idx": 5, "n": 2, "nModified": 2}, {"ok": 1.0, "idx": 6, "n": 1},
    ]  # fmt: skip
    assert list(client.t.a.find()) == [{"_id": 1, "x": 1, "y": 5}]
    assert list(client.t.b.find()) == [{"_id": 1}, {"_id": 9, "x": 2}]


@pytest.mark.parametrize(("ordered", "done"), [(True, [1]), (False, [1, 2, 3])])
def test_an_ordered_one_stops_at_the_first_error(client: Any, ordered: bool, done: list[int]) -> None:
    ops = [insert(0, 1), insert(0, 1), insert(0, 2), {"delete": 0, "filter": {"$bad": 1}}, insert(0, 3)]
    reply = bulk(client, ops, ordered=ordered, errorsOnly=True)
    assert [item["_id"] for item in client.t.a.find()] == done
    failed = reply["cursor"]["firstBatch"]
    assert [item["code"] for item in failed] == [11000, 2][: len(failed)]
    assert [item["idx"] for item in failed] == [1, 3][: len(failed)]
    assert failed[0]["n"] == 0 and failed[0]["keyValue"] == {"_id": 1}
    assert reply["nErrors"] == len(failed) == (1 if ordered else 2) and reply["nInserted"] == len(done)


def test_results_come_in_batches(client: Any) -> None:
    reply = bulk(client, [insert(0, key) for key in range(5)], cursor={"batchSize": 2})
    assert [item["idx"] for item in reply["cursor"]["firstBatch"]] == [0, 1]
    more = client.admin.command("getMore", Int64(reply["cursor"]["id"]), collection="$cmd.bulkWrite")
    assert [item["idx"] for item in more["cursor"]["nextBatch"]] == [2, 3, 4] and more["cursor"]["id"] == 0


@pytest.mark.parametrize(
    ("ops", "options", "code"),
    [
        ([], {}, 16),
        ([insert(2, 1)], {}, 2),
        ([insert(-1, 1)], {}, 2),
        ([{"upsert": 0}], {}, 40415),
        ([{"insert": 0}], {}, 40414),
        ([{"insert": 0, "document": 1}], {}, 14),
        ([{"insert": 0, "document": {}, "x": 1}], {}, 40415),
        ([{"update": 0, "filter": {}}], {}, 40414),
        ([{"update": 0, "filter": {}, "updateMods": 1}], {}, 9),
        ([{"update": 0, "filter": {}, "updateMods": {}, "sort": {"a": 1}, "multi": True}], {}, 9),
        ([{"delete": 0, "filter": 1}], {}, 14),
        ([insert(0, 1)], {"nonsense": 1}, 40415),
        ([insert(0, 1)], {"nsInfo": [{"ns": "nodot"}]}, 73),
        ([insert(0, 1)], {"nsInfo": [{"ns": 1}]}, 14),
    ],
)
def test_what_is_malformed_is_refused_before_anything_is_done(
    client: Any, ops: list[dict[str, Any]], options: dict[str, Any], code: int
) -> None:
    with pytest.raises(OperationFailure) as caught:
        bulk(client, [insert(0, 0), *ops] if ops else [], **options)
    assert caught.value.code == code
    assert client.t.a.count_documents({}) == 0


def test_a_retried_one_is_done_once_and_many_documents_cannot_be_retried(client: Any) -> None:
    with client.start_session() as session:
        lsid = session.session_id
        first = bulk(client, [insert(0, 1)], lsid=lsid, txnNumber=Int64(1))
        again = bulk(client, [insert(0, 1)], lsid=lsid, txnNumber=Int64(1))
        assert counts(first) == counts(again) == {"nInserted": 1}
        assert again["cursor"]["firstBatch"] == [{"ok": 1.0, "idx": 0, "n": 1}]
        with pytest.raises(OperationFailure) as caught:
            bulk(client, [{"delete": 0, "filter": {}, "multi": True}], lsid=lsid, txnNumber=Int64(2))
    assert caught.value.code == 72


def test_in_a_transaction_an_error_undoes_all_of_it(client: Any) -> None:
    models = [pymongo.InsertOne({"_id": key}, namespace="t.a") for key in (1, 1)]
    client.t.create_collection("a")
    with client.start_session() as session:
        session.start_transaction()
        with pytest.raises(pymongo.errors.ClientBulkWriteException):
            client.bulk_write(models, session=session)
        with pytest.raises(OperationFailure) as caught:
            session.commit_transaction()
        assert caught.value.code == 251
        with session.start_transaction():
            client.bulk_write(models[:1], session=session, verbose_results=True)
    assert list(client.t.a.find()) == [{"_id": 1}]


def test_its_events_are_those_of_the_single_writes(client: Any) -> None:
    with client.t.watch() as stream:
        bulk(client, [insert(0, 1), insert(0, 2), {"delete": 0, "filter": {"_id": 1}}, insert(1, 1)])
        events = [next(stream) for _ in range(4)]
    assert [(event["operationType"], event["ns"]["coll"]) for event in events] == [
        ("insert", "a"), ("insert", "a"), ("delete", "a"), ("insert", "b"),
    ]  # fmt: skip


def test_a_read_only_namespace_fails_one_operation(client: Any) -> None:
    client.t.create_collection("b", viewOn="a", pipeline=[])
    reply = bulk(client, [insert(0, 1), insert(1, 1), insert(0, 2)], ordered=False)
    assert [item.get("code") for item in reply["cursor"]["firstBatch"]] == [None, 166, None]


def test_a_sorted_update_changes_the_first_by_its_sort(client: Any) -> None:
    client.t.a.insert_many([{"_id": key, "k": -key} for key in range(4)])
    bulk(client, [{"update": 0, "filter": {}, "updateMods": {"$set": {"hit": True}}, "sort": {"k": 1}}])
    client.t.a.update_one({"hit": None}, {"$set": {"hit": True}}, sort={"k": -1})
    assert [item["_id"] for item in client.t.a.find({"hit": True})] == [0, 3]


@pytest.mark.parametrize(
    ("ops", "info", "code", "message"),
    [
        (
            [insert(0, 20)],
            [],
            2,
            "BulkWrite ops entry { insert: 0, document: { _id: 20 } } has an invalid nsInfo index.",
        ),
        (
            [insert(5, 20)],
            INFO,
            2,
            "BulkWrite ops entry { insert: 5, document: { _id: 20 } } has an invalid nsInfo index.",
        ),
        ([insert(-1, 20)], INFO, 2, "BSON field 'insert' value must be >= 0, actual value '-1'"),
        ([insert(0, 20), {"document": {}}], INFO, 40415, "BSON field 'bulkWrite.document' is an unknown field."),
        ([insert(0, 20)], [*INFO, {"ns": "nodot"}], 73, "Invalid namespace specified for bulkWrite: 'nodot'"),
        ([insert(0, 20)], [{"ns": ".c"}], 73, "Invalid namespace specified for bulkWrite: '.c'"),
        ([insert(0, 20)], [{"ns": "t."}], 73, "Invalid namespace specified for bulkWrite: 't'"),
        ([insert(0, 20), insert(1, 20)], [{"ns": "t.a"}, {"ns": "t.a$b"}], 73, "Invalid collection name: a$b"),
    ],
    ids=str,
)
def test_nothing_is_written_if_an_operation_cannot_be(
    client: Any, ops: list[Any], info: list[Any], code: int, message: str
) -> None:
    with pytest.raises(OperationFailure) as refused:
        bulk(client, ops, nsInfo=info)
    assert refused.value.details is not None
    assert (refused.value.code, refused.value.details["errmsg"]) == (code, message)
    assert client.t.list_collection_names() == []


def test_the_namespaces_are_missed_first(client: Any) -> None:
    with pytest.raises(OperationFailure, match="is missing but a required field") as refused:
        client.admin.command({"bulkWrite": 1})
    assert refused.value.code == 40414
