"""A server, a console of it, and a browser's requests to that, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pymongo
import pytest

import headrace
from headrace.cli.console.application import ConsoleServer


@pytest.fixture(scope="session")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Any]:
    with pymongo.MongoClient[dict[str, Any]](server.uri) as opened:
        yield opened
        for name in opened.list_database_names():
            if name not in ("admin", "config", "local"):
                opened.drop_database(name)


@pytest.fixture(scope="session")
def console(server: headrace.Server) -> Iterator[ConsoleServer]:
    opened = ConsoleServer(server.uri)
    thread = opened.start()
    yield opened
    opened.stop()
    thread.join(10)


@pytest.fixture
def browser(console: ConsoleServer) -> Iterator[httpx.Client]:
    with signed(console) as opened:
        yield opened


@contextmanager
def signed(console: ConsoleServer) -> Iterator[httpx.Client]:
    """A browser that has opened the console's address."""
    with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", timeout=30) as opened:
        assert opened.get(console.address).status_code == 303
        yield opened


class Events:
    """The server-sent events of an open response."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self, *names: str) -> Any:
        """The content of the next event that has one of these names."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name in names:
                return json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")
