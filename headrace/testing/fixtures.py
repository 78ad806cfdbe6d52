"""A pytest plugin: a Headrace server for the tests of whoever installs Headrace.

    def test_orders(headrace_client):
        headrace_client.shop.orders.insert_one({"_id": 1})

`headrace_server` runs once for the test session in a throw-away directory; `headrace_client` is a client of it for one
test, which starts empty. Loaded by pytest through the entry point `headrace`; costs nothing until it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pymongo import MongoClient

    from headrace.server.embedded import Server


@pytest.fixture(scope="session")
def headrace_server() -> Iterator[Server]:
    """A throw-away server in this process; its address is `headrace_server.uri`."""
    import headrace

    with headrace.Server() as server:
        yield server


@pytest.fixture
def headrace_client(headrace_server: Server) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of `headrace_server`; the databases that the test has made are dropped after it."""
    from pymongo import MongoClient

    with MongoClient[dict[str, Any]](headrace_server.uri) as client:
        yield client
        for name in client.list_database_names():
            if name not in ("admin", "config", "local"):
                client.drop_database(name)
