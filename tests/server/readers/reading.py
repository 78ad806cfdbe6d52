"""A server whose readers have started, and every read of which goes to them when it first pauses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import headrace
from headrace import limits
from headrace.server.readers.frames import Frames
from headrace.server.readers.pool import Reader, Readers

Result = TypeVar("Result")


def next_message(connection: socket.socket, frames: Frames) -> tuple[dict[str, Any], bytes]:
    """The next message of a reader at the server's end of its socket."""
    while True:
        data = connection.recv(1 << 16)
        assert data, "the reader process has ended"
        for message in frames.feed(data):
            return message


@contextmanager
def serving(count: int = 1, **options: Any) -> Iterator[headrace.Server]:
    """The server, with this number of readers, which do not end on a machine that is slow."""
    with mock.patch.object(limits, "READER_IDLE_SECONDS", 3600), headrace.Server(readers=count, **options) as server:
        start_readers(server, count)
        server._running.scheduler.turns.seconds = 0.0  # the first look at a document is a pause
        yield server


def readers_of(server: headrace.Server) -> Readers:
    """The server's readers."""
    readers = server._running.readers
    assert readers is not None
    return readers


def start_readers(server: headrace.Server, count: int) -> None:
    """Return when so many are ready."""

    async def start() -> None:
        readers = readers_of(server)
        while sum(reader.is_ready for reader in readers) < count:
            readers._start_another()
            await asyncio.wait(readers._starting)

    assert server._loop is not None
    asyncio.run_coroutine_threadsafe(start(), server._loop).result(120)


def on_loop(server: headrace.Server, function: Callable[[], Result]) -> Result:
    """Call a function on the server's loop."""

    async def call() -> Result:
        return function()

    assert server._loop is not None
    return asyncio.run_coroutine_threadsafe(call(), server._loop).result(60)


def only_reader(server: headrace.Server) -> Reader:
    """The one reader that has started."""
    (reader,) = readers_of(server)
    return reader


def moved_count(server: headrace.Server) -> int:
    """How many commands readers were given."""
    return server._running.engine.metrics["readers.commands"]
