"""pymongo's names: each is there, in both forms, or is an AttributeError; none is taken for a collection's name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from inspect import Parameter, signature
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.asynchronous.mongo_client import AsyncMongoClient
from pymongo.read_concern import ReadConcern
from pymongo.synchronous.change_stream import ChangeStream
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.command_cursor import CommandCursor
from pymongo.synchronous.cursor import Cursor
from pymongo.synchronous.database import Database
from pymongo.synchronous.mongo_client import MongoClient

import headrace
from headrace.embedded.asynchronous import AsyncEmbeddedCollection, AsyncEmbeddedDatabase, AsyncEmbeddedStore
from headrace.embedded.collection import EmbeddedCollection
from headrace.embedded.database import EmbeddedDatabase
from headrace.embedded.open_store import EmbeddedStore

LEFT_OUT = {
    "client": {
        "HOST", "PORT", "aclose", "aconnect", "address", "append_metadata", "arbiters", "bulk_write", "eq_props",
        "get_default_database", "is_mongos", "is_primary", "nodes", "options", "primary", "read_preference",
        "secondaries", "topology_description",
    },
    "database": {"cursor_command", "dereference", "read_preference"},
    "collection": {
        "aggregate_raw_batches", "create_search_index", "create_search_indexes", "drop_search_index",
        "find_raw_batches", "list_search_indexes", "read_preference", "update_search_index",
    },
    "cursor": {"add_option", "address", "max_scan", "remove_option", "retrieved"},
    "command cursor": {"address", "batch_size"},
    "session": {"bind", "options"},
    "stream": set(),
}  # fmt: skip
"""Names that docs/embedding.md leaves out, that describe a topology, or that are deprecated."""


@pytest.fixture
def objects() -> Iterator[dict[str, Any]]:
    with headrace.open() as store:
        orders = store.shop.orders
        yield {
            "client": store, "database": store.shop, "collection": orders, "cursor": orders.find(),
            "command cursor": orders.aggregate([]), "session": store.start_session(), "stream": orders.watch(),
        }  # fmt: skip


@pytest.fixture
async def asynchronous() -> AsyncIterator[dict[str, Any]]:
    async with headrace.open_async() as store:
        orders = store.shop.orders
        yield {
            "client": store, "database": store.shop, "collection": orders, "cursor": orders.find(),
            "command cursor": await orders.aggregate([]), "session": store.start_session(),
            "stream": await orders.watch(),
        }  # fmt: skip


def missing(theirs: type, ours: Any) -> set[str]:
    """The public names of a class of pymongo's that an object has not, or takes for a collection's."""
    collections = EmbeddedCollection | EmbeddedDatabase | AsyncEmbeddedCollection | AsyncEmbeddedDatabase

    def is_there(name: str) -> bool:
        value = getattr(ours, name, None)
        is_a_collections = isinstance(value, collections) and value.name.rpartition(".")[2] == name
        return hasattr(ours, name) and not is_a_collections

    return {name for name in dir(theirs) if not name.startswith("_") and name != "next" and not is_there(name)}


CLASSES = {
    "client": (MongoClient, AsyncMongoClient), "database": (Database, AsyncDatabase),
    "collection": (Collection, AsyncCollection), "cursor": (Cursor, AsyncCursor),
    "command cursor": (CommandCursor, AsyncCommandCursor), "session": (ClientSession, AsyncClientSession),
    "stream": (ChangeStream, AsyncChangeStream),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_every_name_of_pymongos_is_there_but_those_that_are_named(objects: dict[str, Any], kind: str) -> None:
    assert missing(CLASSES[kind][0], objects[kind]) <= LEFT_OUT[kind]


@pytest.mark.parametrize("kind", CLASSES)
async def test_every_name_of_pymongos_asynchronous_classes_is_there(asynchronous: dict[str, Any], kind: str) -> None:
    assert missing(CLASSES[kind][1], asynchronous[kind]) <= LEFT_OUT[kind]


OTHER_PARAMETERS = {
    ("client", "watch"), ("database", "watch"), ("collection", "watch"),  # most by keyword only
    ("collection", "drop"), ("database", "drop_collection"),  # without `encrypted_fields`
    ("stream", "next"),  # with a `timeout`
}  # fmt: skip


def with_other_parameters(theirs: type, ours: Any) -> set[str]:
    """The methods of both whose parameters differ in names, order or kinds."""

    def parameters(of: Any, name: str) -> list[tuple[str, Any]]:
        found = [(item.name, item.kind) for item in signature(getattr(of, name)).parameters.values()]
        return found[1:] if found[:1] == [("self", Parameter.POSITIONAL_OR_KEYWORD)] else found

    names = [name for name in dir(theirs) if not name.startswith("_") and name in dir(type(ours))]
    return {
        name for name in names
        if callable(getattr(type(ours), name)) and parameters(theirs, name) != parameters(type(ours), name)
    }  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_methods_have_the_parameters_of_pymongos(objects: dict[str, Any], kind: str) -> None:
    found = with_other_parameters(CLASSES[kind][0], objects[kind])
    assert {(kind, name) for name in found} == {item for item in OTHER_PARAMETERS if item[0] == kind}


@pytest.mark.parametrize("kind", CLASSES)
async def test_awaited_methods_have_the_parameters_of_pymongos(asynchronous: dict[str, Any], kind: str) -> None:
    found = with_other_parameters(CLASSES[kind][1], asynchronous[kind]) - {"start_transaction", "with_transaction"}
    assert {(kind, name) for name in found} == {item for item in OTHER_PARAMETERS if item[0] == kind}


@pytest.mark.parametrize("kind", ["client", "database", "collection"])
def test_what_is_left_out_is_an_attribute_error(objects: dict[str, Any], kind: str) -> None:
    for name in LEFT_OUT[kind] - {"aclose", "aconnect", "eq_props"}:
        with pytest.raises(AttributeError, match=r"docs/embedding\.md"):
            getattr(objects[kind], name)


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (EmbeddedStore, AsyncEmbeddedStore),
        (EmbeddedDatabase, AsyncEmbeddedDatabase),
        (EmbeddedCollection, AsyncEmbeddedCollection),
    ],
)
def test_no_method_blocks_the_loop(blocking: type, awaited: type) -> None:
    methods = {name for name in dir(blocking) if not name.startswith("_") and callable(getattr(blocking, name))}
    assert {name for name in methods if getattr(getattr(awaited, name, None), "__module__", "") == ""} == set()


async def test_options_are_seen_and_changed_in_the_asynchronous_form(asynchronous: dict[str, Any]) -> None:
    store, shop, orders = (asynchronous[kind] for kind in ("client", "database", "collection"))
    options, majority = CodecOptions(tz_aware=True), ReadConcern("majority")
    assert shop.with_options(codec_options=options).orders.codec_options == options
    assert store.get_database("shop", read_concern=majority).read_concern == majority
    assert orders.with_options(codec_options=options).codec_options == options and orders.read_concern is None
    assert store.path and store.is_open and orders.database == shop and shop.client == store
    assert (orders.name, orders.full_name, shop.name, orders.lines.full_name) == (
        "orders", "shop.orders", "shop", "shop.orders.lines",
    )  # fmt: skip
    await orders.insert_many([{"_id": number} for number in range(3)])
    cursor = orders.find().sort("_id")
    assert [document["_id"] async for document in cursor] == [0, 1, 2]
    assert len(await (await cursor.rewind()).to_list()) == len(await cursor.clone().to_list()) == 3
    assert not cursor.alive and cursor.collection == orders


async def test_a_store_that_was_awaited_is_a_context_manager() -> None:
    store = await headrace.open_async()
    async with store:
        await store.shop.orders.insert_one({})
    assert not store.is_open


def test_what_is_no_method_cannot_be_called(objects: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="no method 'insert'"):
        objects["collection"].insert({})
    with pytest.raises(TypeError, match="not iterable"):
        list(objects["collection"])


def test_a_session_hands_its_times_to_another(objects: dict[str, Any]) -> None:
    session, store, orders = (objects[kind] for kind in ("session", "client", "collection"))
    orders.insert_one({}, session=session)
    with store.start_session() as other:
        other.advance_operation_time(session.operation_time)
        other.advance_cluster_time(session.cluster_time)
        assert (other.operation_time, other.cluster_time) == (session.operation_time, session.cluster_time)
        assert other.client is store and orders.find_one({}, session=other) is not None
