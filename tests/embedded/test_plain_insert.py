"""`insert_one` without a command: the same documents, events, errors and counts as the command `insert` brings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DuplicateKeyError, OperationFailure, WriteError

import headrace
from headrace.commands.writing import insert
from headrace.embedded.open_store import EmbeddedStore
from tests.embedded.test_streams import until_parked


@pytest.fixture(name="store")
def _store() -> Iterator[EmbeddedStore]:
    with headrace.open(enable_test_commands=True) as store:
        yield store


@pytest.fixture(name="plain")
def _plain(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each insert was done without a command."""
    done: list[bool] = []
    insert_plain = insert.insert_plain

    def noted(*arguments: Any, **named: Any) -> bool:
        done.append(insert_plain(*arguments, **named))
        return done[-1]

    monkeypatch.setattr("headrace.embedded.local_writes.insert_plain", noted)
    return done


def test_a_collection_is_made_by_the_command_and_filled_without(store: EmbeddedStore, plain: list[bool]) -> None:
    stream = store.shop.orders.watch()
    store.shop.other.insert_one({})
    before = store.admin.command("serverStatus")
    for number in range(3):
        assert store.shop.orders.insert_one({"_id": number}).inserted_id == number
    assert plain == [False, False, True, True]
    assert [stream.next().document_id for _ in range(3)] == [0, 1, 2]
    after = store.admin.command("serverStatus")
    assert after["opcounters"]["insert"] - before["opcounters"]["insert"] == 3
    assert after["metrics"]["document"]["inserted"] - before["metrics"]["document"]["inserted"] == 3
    counted = after["metrics"]["commands"]["insert"]["total"] - before["metrics"]["commands"]["insert"]["total"]
    assert counted == 3


def test_documents_are_as_the_command_stores_them(store: EmbeddedStore, plain: list[bool]) -> None:
    documents: list[Any] = [
        {"n": 1, "_id": "last"}, {"_id": {"a": 1}, "ts": Timestamp(0, 0)}, {"_id": 3, "inner": [{"x": Int64(1)}, None]},
        RawBSONDocument(headrace.values.bson.encode({"_id": ObjectId(), "a": 1})),
    ]  # fmt: skip
    store.shop.create_collection("plain")
    for document in documents:
        store.shop.plain.insert_one(document)
        store.shop.command("insert", "other", documents=[document])
    assert plain == [True] * 4
    stored, other = list(store.shop.plain.find()), list(store.shop.other.find())
    assert all(list(one) == list(two) for one, two in zip(stored, other, strict=True))
    stamps = [each.pop("ts", None) for each in stored], [each.pop("ts", None) for each in other]
    assert stamps[0][1] != Timestamp(0, 0) != stamps[1][1]
    assert stored == other


def test_errors_are_the_commands(store: EmbeddedStore, plain: list[bool]) -> None:
    store.shop.orders.insert_one({"_id": 1})
    with pytest.raises(DuplicateKeyError) as raised:
        store.shop.orders.insert_one({"_id": 1})
    assert raised.value.details is not None
    assert raised.value.details["keyValue"] == {"_id": 1}
    with pytest.raises(WriteError, match="can't use an array for _id"):
        store.shop.orders.insert_one({"_id": [1]})
    with pytest.raises(OperationFailure, match="namespace is too long"):
        store.shop["a" * 300].insert_one({})
    broken = RawBSONDocument(b"\x16\0\0\0\x07_id\0" + bytes(12) + b"\0")
    object.__setattr__(broken, "_RawBSONDocument__raw", b"\x0c\0\0\0\x02a\0\x09\0\0\0\0")  # a text longer than it
    with pytest.raises(OperationFailure) as refused:
        store.shop.orders.insert_one({"_id": 2, "inner": broken})
    assert refused.value.code == 22
    assert not any(plain)
    assert store.shop.orders.count_documents({}) == 1


def test_what_is_special_about_a_collection_is_for_the_command(store: EmbeddedStore, plain: list[bool]) -> None:
    shop = store.shop
    shop.create_collection("few", capped=True, size=4096, max=2)
    shop.create_collection("checked", validator={"n": {"$type": "int"}})
    shop.create_collection("seen", viewOn="few", pipeline=[])
    for number in range(3):
        shop.few.insert_one({"_id": number})
    assert [each["_id"] for each in shop.few.find()] == [1, 2]
    with pytest.raises(WriteError, match="Document failed validation"):
        shop.checked.insert_one({"n": "x"})
    with pytest.raises(OperationFailure, match="is a view"):
        shop.seen.insert_one({})
    assert not any(plain)


def test_who_looks_at_commands_sees_each_insert(store: EmbeddedStore, plain: list[bool]) -> None:
    shop = store.shop
    shop.orders.insert_one({})
    data = {"failCommands": ["insert"], "errorCode": 91}
    store.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    with pytest.raises(OperationFailure) as failed:
        shop.orders.insert_one({})
    assert failed.value.code == 91
    shop.command("profile", 2)
    shop.orders.insert_one({})
    assert plain == [False, False, False]


def test_a_lock_of_a_transaction_is_waited_for(store: EmbeddedStore, plain: list[bool]) -> None:
    orders = store.shop.orders
    orders.insert_one({"_id": 0})
    with store.start_session() as session:
        session.start_transaction()
        orders.insert_one({"_id": 1}, session=session)
        errors: list[Exception] = []

        def insert_too() -> None:
            try:
                orders.insert_one({"_id": 1})
            except DuplicateKeyError as error:
                errors.append(error)

        waiting = threading.Thread(target=insert_too)
        waiting.start()
        until_parked(store)
        session.commit_transaction()
        waiting.join(60)
    assert len(errors) == 1
    assert not any(plain)
