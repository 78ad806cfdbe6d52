"""The pytest plugin that Headrace ships."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from headrace.embedded.asynchronous import AsyncEmbeddedStore
from headrace.embedded.open_store import EmbeddedStore


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_finds_the_server_empty(headrace_client: MongoClient[dict[str, Any]], number: int) -> None:
    assert headrace_client.shop.list_collection_names() == []
    with headrace_client.shop.orders.watch() as stream:
        headrace_client.shop.orders.insert_one({"_id": number})
        assert next(stream)["documentKey"] == {"_id": number}


@pytest.mark.parametrize("number", [1, 2])
async def test_each_coroutine_finds_the_server_empty(
    headrace_async_client: AsyncMongoClient[dict[str, Any]], number: int
) -> None:
    orders = headrace_async_client.shop.orders
    assert await orders.count_documents({}) == 0
    await orders.insert_one({"_id": number})
    assert await orders.find_one() == {"_id": number}


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_another_store(headrace_store: EmbeddedStore, number: int) -> None:
    assert "shop" not in headrace_store.list_database_names()
    with headrace_store.shop.orders.watch() as stream:
        headrace_store.shop.orders.insert_one({"_id": number})
        event = stream.next(timeout=10)
        assert event.document_key == {"_id": number}


@pytest.mark.parametrize("number", [1, 2])
async def test_each_coroutine_has_another_store(headrace_async_store: AsyncEmbeddedStore, number: int) -> None:
    orders = headrace_async_store.shop.orders
    async with orders.watch() as stream:
        await orders.insert_one({"_id": number})
        assert (await stream.next(timeout=60)).document_id == number
    assert await orders.count_documents({}) == 1
