"""The asynchronous form: the same calls, awaited, and streams that wait without blocking the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import headrace


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    async with headrace.open_async() as opened:
        yield opened


async def test_documents_are_inserted_and_read(store: Any) -> None:
    orders = store.shop.orders
    await orders.insert_many([{"_id": number} for number in range(300)])
    assert len(await orders.find().to_list()) == 300
    assert [document["_id"] async for document in orders.find({"_id": {"$gt": 5}}).sort("_id", -1).limit(2)] == [
        299,
        298,
    ]
    async with await orders.aggregate([{"$count": "n"}]) as cursor:
        assert await cursor.next() == {"n": 300}
    assert (await orders.update_many({}, {"$set": {"a": 1}})).modified_count == 300
    assert await store.shop.list_collection_names() == ["orders"]
    assert (await store.shop.command("ping"))["ok"] == 1.0
    assert await (await store.shop.list_collections()).to_list()


async def test_a_stream_waits_while_the_loop_goes_on(store: Any) -> None:
    async with store.shop.orders.watch() as stream:
        assert await stream.try_next() is None
        waiting = asyncio.create_task(anext(stream))
        for number in range(3):
            await store.shop.orders.insert_one({"_id": number})
        assert (await waiting).document_id == 0
        assert [(await anext(stream)).document_id for _ in range(2)] == [1, 2]


async def test_a_cancelled_wait_loses_no_event(store: Any) -> None:
    stream = await store.shop.orders.watch()
    with pytest.raises(headrace.Timeout):
        await stream.next(timeout=0.01)
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await store.shop.orders.insert_many([{"_id": 1}, {"_id": 2}])
    assert [(await stream.next()).document_id for _ in range(2)] == [1, 2]
    await stream.close()


async def test_closing_a_stream_ends_the_task_that_iterates(store: Any) -> None:
    stream = await store.shop.orders.watch()

    async def documents() -> list[Any]:
        return [event.document_id async for event in stream]

    task = asyncio.create_task(documents())
    await asyncio.sleep(0)
    await stream.close()
    assert await task == []


async def test_a_stream_that_is_dropped_ends_its_thread(store: Any) -> None:
    stream = await store.shop.orders.watch()
    before = set(threading.enumerate())
    with pytest.raises(headrace.Timeout):
        await stream.next(timeout=0)
    (thread,) = {thread for thread in threading.enumerate() if thread.name == "headrace-stream"} - before
    del stream
    store._wrapped._local.close_forgotten()  # what a thread does each second
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


async def test_closing_a_stream_whose_wait_has_timed_out_logs_nothing(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what other tests have left may log as well
    caplog.clear()
    stream = await store.shop.orders.watch()
    with pytest.raises(headrace.Timeout):
        await stream.next(timeout=0)
    await stream.close()
    await asyncio.wait({stream._pending}, timeout=60)
    del stream
    gc.collect()
    assert caplog.records == []


async def test_transactions(store: Any) -> None:
    orders = store.shop.orders
    await orders.insert_one({"_id": 1})
    async with store.start_session() as session:
        async with await session.start_transaction():
            await orders.insert_one({"_id": 2}, session=session)
        with pytest.raises(ZeroDivisionError):
            async with await session.start_transaction():
                await orders.delete_many({}, session=session)
                _ = 1 / 0

        async def move(inside: Any) -> int:
            return int((await orders.update_many({}, {"$set": {"moved": True}}, session=inside)).modified_count)

        assert await session.with_transaction(move) == 2
    assert await orders.count_documents({"moved": True}) == 2


async def test_a_store_is_served_until_the_end_of_the_block(store: Any) -> None:
    async with store.serve() as served, AsyncMongoClient[Any](served.uri) as client:
        await client.shop.orders.insert_one({"_id": 1})
    assert await store.shop.orders.find_one() == {"_id": 1}
    again = await store.serve()
    assert again.port and again.uri.startswith("mongodb://")
    await again.close()


async def test_awaiting_the_store_and_serving_it() -> None:
    store = await headrace.open_async()
    served = await store.serve()
    assert served.uri.startswith("mongodb://127.0.0.1:")
    await store.close()
    with pytest.raises(headrace.Closed):
        await store.shop.orders.find_one()
