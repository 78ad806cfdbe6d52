"""A pytest plugin: a Headrace server for the tests of programs that use Headrace.

    def test_orders(headrace_client):
        headrace_client.shop.orders.insert_one({"_id": 1})

`headrace_server` runs once for the test session in a throw-away directory. `headrace_client` and
`headrace_async_client` are its clients for one test, which starts with an empty server. `headrace_store` and
`headrace_async_store` are stores in the test's process, without a socket. pytest loads the plugin through the entry
point `headrace`. The plugin costs nothing until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient

    from headrace.embedded.asynchronous import AsyncEmbeddedStore
    from headrace.embedded.open_store import EmbeddedStore
    from headrace.server.server import Server


try:
    import pytest_asyncio

    async_fixture: Any = pytest_asyncio.fixture
except ImportError:
    async_fixture = pytest.fixture  # anyio's plugin supports it
INTERNAL_DATABASES = frozenset({"admin", "config", "local"})


@pytest.fixture(scope="session")
def headrace_server() -> Iterator[Server]:
    """A throw-away server in this process; its address is `headrace_server.uri`."""
    import headrace

    with headrace.Server() as server:
        yield server


@pytest.fixture
def headrace_client(headrace_server: Server) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of `headrace_server`; after the test, the test's databases are dropped."""
    from pymongo import MongoClient

    with MongoClient[dict[str, Any]](headrace_server.uri) as client:
        yield client
        for name in client.list_database_names():
            if name not in INTERNAL_DATABASES:
                client.drop_database(name)


@async_fixture  # type: ignore[untyped-decorator]
async def headrace_async_client(headrace_server: Server) -> AsyncIterator[AsyncMongoClient[dict[str, Any]]]:
    """An asynchronous `headrace_client`, for tests that are coroutines."""
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[dict[str, Any]](headrace_server.uri) as client:
        yield client
        for name in await client.list_database_names():
            if name not in INTERNAL_DATABASES:
                await client.drop_database(name)


@pytest.fixture
def headrace_store() -> Iterator[EmbeddedStore]:
    """An empty throw-away store in this process, for one test."""
    import headrace

    with headrace.open() as store:
        yield store


@async_fixture  # type: ignore[untyped-decorator]
async def headrace_async_store() -> AsyncIterator[AsyncEmbeddedStore]:
    """An asynchronous `headrace_store`, for tests that are coroutines."""
    import headrace

    async with headrace.open_async() as store:
        yield store
