"""MongoDB's tutorial of change streams, as pymongo's readers type it: watch, filter, look up, resume, drop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pymongo.errors
import pytest
from pymongo.asynchronous.mongo_client import AsyncMongoClient
from pymongo.mongo_client import MongoClient

import headrace

Client = MongoClient[dict[str, Any]]
AsyncClient = AsyncMongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with headrace.Server() as server:
        yield server.uri


@pytest.fixture
def client(uri: str) -> Iterator[Client]:
    with pymongo.MongoClient(uri) as client:
        yield client
        client.drop_database("changestream")


@pytest.fixture
async def async_client(uri: str) -> AsyncIterator[AsyncClient]:
    async with pymongo.AsyncMongoClient(uri) as client:
        yield client
        await client.drop_database("changestream")


def test_a_script_prints_what_another_writes(client: Client) -> None:
    collection = client.changestream.collection
    seen = []
    with collection.watch() as stream:
        inserted = collection.insert_one({"hello": "world"}).inserted_id
        collection.update_one({"_id": inserted}, {"$set": {"hello": "mundo", "n": 1}})
        collection.update_one({"_id": inserted}, {"$unset": {"n": ""}})
        collection.replace_one({"_id": inserted}, {"bye": "world"})
        collection.delete_one({"_id": inserted})
        collection.drop()
        for change in stream:
            seen.append(change)
    assert [change["operationType"] for change in seen] == [
        "insert", "update", "update", "replace", "delete", "drop", "invalidate",
    ]  # fmt: skip
    assert seen[0]["fullDocument"] == {"_id": inserted, "hello": "world"}
    assert seen[1]["updateDescription"] == {
        "updatedFields": {"hello": "mundo", "n": 1}, "removedFields": [], "truncatedArrays": [],
    }  # fmt: skip
    assert seen[2]["updateDescription"]["removedFields"] == ["n"]
    assert seen[3]["fullDocument"] == {"_id": inserted, "bye": "world"}
    assert seen[4]["documentKey"] == {"_id": inserted}
    assert seen[5]["ns"] == {"db": "changestream", "coll": "collection"}
    assert not stream.alive


def test_a_match_on_the_operation_shows_nothing_else(client: Client) -> None:
    collection = client.changestream.collection
    pipeline = [
        {"$match": {"operationType": {"$in": ["insert", "replace"]}}},
        {"$addFields": {"newField": "this is an added field!"}},
    ]
    with collection.watch(pipeline) as stream:
        collection.insert_one({"_id": 1})
        collection.update_one({"_id": 1}, {"$set": {"a": 1}})
        collection.delete_one({"_id": 1})
        collection.insert_one({"_id": 2})
        seen = [next(stream), next(stream)]
        assert stream.try_next() is None
    assert [(change["operationType"], change["documentKey"]["_id"]) for change in seen] == [
        ("insert", 1),
        ("insert", 2),
    ]
    assert seen[0]["newField"] == "this is an added field!"


def test_an_update_comes_with_the_full_document_if_that_is_asked_for(client: Client) -> None:
    inventory = client.changestream.inventory
    inventory.insert_one({"_id": "a", "qty": 1, "size": "M"})
    with inventory.watch(full_document="updateLookup") as stream:
        inventory.update_one({"_id": "a"}, {"$inc": {"qty": 1}})
        change = next(stream)
    assert change["fullDocument"] == {"_id": "a", "qty": 2, "size": "M"}
    assert change["updateDescription"]["updatedFields"] == {"qty": 2}


def test_a_stream_goes_on_behind_the_token_it_is_given(client: Client) -> None:
    collection = client.changestream.collection
    resume_token = None
    with collection.watch([{"$match": {"operationType": "insert"}}]) as stream:
        collection.insert_many([{"_id": number} for number in range(5)])
        for change in stream:
            resume_token = stream.resume_token
            if change["documentKey"]["_id"] == 2:
                break
    with collection.watch(resume_after=resume_token) as stream:
        assert [next(stream)["documentKey"]["_id"] for _ in range(2)] == [3, 4]
    with collection.watch(start_after=resume_token) as stream:
        assert next(stream)["documentKey"]["_id"] == 3


def test_a_database_and_a_deployment_are_watched_alike(client: Client) -> None:
    with client.changestream.watch() as of_database, client.watch() as of_all:
        client.changestream.here.insert_one({"_id": 1})
        client.changestream_too.there.insert_one({"_id": 2})
        client.drop_database("changestream")
        assert [next(of_database)["operationType"] for _ in range(4)] == [
            "insert", "drop", "dropDatabase", "invalidate",
        ]  # fmt: skip
        seen = [next(of_all) for _ in range(4)]
    assert [change["ns"]["db"] for change in seen] == [
        "changestream",
        "changestream_too",
        "changestream",
        "changestream",
    ]
    client.drop_database("changestream_too")


def test_a_stream_can_start_at_the_last_write_that_hello_reports(client: Client) -> None:
    collection = client.changestream.collection
    collection.insert_one({"_id": 1})
    moment = client.admin.command("hello")["lastWrite"]["opTime"]["ts"]
    collection.insert_one({"_id": 2})
    with collection.watch(start_at_operation_time=moment) as stream:
        assert [next(stream)["documentKey"]["_id"] for _ in range(2)] == [1, 2]


async def test_the_asynchronous_driver_sees_the_same(async_client: AsyncClient) -> None:
    collection = async_client.changestream.collection
    seen = []
    async with await collection.watch(full_document="updateLookup") as stream:
        await collection.insert_one({"_id": 1, "hello": "world"})
        await collection.update_one({"_id": 1}, {"$set": {"hello": "mundo"}})
        await collection.replace_one({"_id": 1}, {"bye": "world"})
        await collection.delete_one({"_id": 1})
        await collection.drop()
        async for change in stream:
            seen.append(change)
    assert [change["operationType"] for change in seen] == [
        "insert", "update", "replace", "delete", "drop", "invalidate",
    ]  # fmt: skip
    async with await collection.watch(resume_after=seen[1]["_id"]) as stream:
        assert (await anext(stream))["operationType"] == "replace"


async def test_the_asynchronous_driver_resumes_and_filters(async_client: AsyncClient) -> None:
    collection = async_client.changestream.collection
    async with await collection.watch([{"$match": {"operationType": "insert"}}]) as stream:
        await collection.insert_many([{"_id": number} for number in range(3)])
        first = await anext(stream)
        token = stream.resume_token
    assert first["documentKey"] == {"_id": 0}
    async with await collection.watch(resume_after=token) as stream:
        assert [(await anext(stream))["documentKey"]["_id"] for _ in range(2)] == [1, 2]
