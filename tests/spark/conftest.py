"""A server for the whole process, a database for each test, an object store, and servers that are no Headrace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from tests.spark.support.object_store import ObjectStore, object_store

# Tests use the archive of Spark's classes that `make warm` has made, if any, and make none beside their work.
os.environ.setdefault("HEADRACE_CLASS_CACHE", "off")


@pytest.fixture(scope="session")
def uri() -> Iterator[str]:
    with headrace.Server() as server:
        yield server.uri


@pytest.fixture
def database(uri: str, request: pytest.FixtureRequest) -> Iterator[Database[dict[str, Any]]]:
    """A database of the test's own, empty before and dropped after."""
    with MongoClient[dict[str, Any]](uri) as client:
        name = f"t{abs(hash(request.node.nodeid)):x}"[:20]
        client.drop_database(name)
        yield client[name]
        client.drop_database(name)


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    """An object store that this process and those it starts reach by their environment."""
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(params=["arrow", "bson"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each of the two ways in which events come from a server."""
    way: str = request.param
    return way


@pytest.fixture
def no_headrace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers as MongoDB is: without Headrace's own commands, and saying nothing of it."""
    from headrace.commands.table import COMMANDS

    command = COMMANDS["buildInfo"]

    def build_info(engine: Any, request: Any) -> Any:
        reply: Any = command.run(engine, request)
        return {name: value for name, value in reply.items() if name != "headrace"}

    monkeypatch.delitem(COMMANDS, "headraceChanges")
    for name in (command.name, *command.aliases):
        monkeypatch.setitem(COMMANDS, name, replace(command, run=build_info))
