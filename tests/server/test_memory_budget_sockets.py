"""Clients that send or ask for more than the server has memory for are cut off; the others notice nothing."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from types import FunctionType, GeneratorType, MethodWrapperType, ModuleType
from typing import Any

import pytest
from bson import Binary, Int64

import headrace
from headrace.cursors.collection_scan import ChunkedScan
from headrace.store.store import Store
from tests.waiting import until

from .raw import RawClient, message

pytestmark = pytest.mark.long
MEGABYTE = 1024 * 1024


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server(memory_bytes_max=20 * MEGABYTE) as running:
        yield running


def used(client: RawClient) -> int:
    return int(client.ask({"serverStatus": 1}, "admin")["mem"]["countedBytes"])


def until_unused(client: RawClient) -> None:
    """Returns once everything has been given back (each question is a turn of the server's loop)."""
    for _ in range(10_000):
        if not used(client):
            return
    raise AssertionError(f"{used(client)} bytes are still counted")


def test_who_never_ends_a_message_is_cut_off_when_memory_is_short(server: headrace.Server) -> None:
    with RawClient(server.address) as other, ExitStack() as stack:
        other.ask({"ping": 1})
        large = stack.enter_context(RawClient(server.address))
        large.socket.sendall(struct.pack("<iiii", 40 * MEGABYTE, 1, 0, 2013) + bytes(12 * MEGABYTE))
        until(lambda: used(other) >= 12 * MEGABYTE)
        small = stack.enter_context(RawClient(server.address))
        small.socket.sendall(struct.pack("<iiii", 40 * MEGABYTE, 1, 0, 2013) + bytes(10 * MEGABYTE))
        assert large.is_cut_off()
        until(lambda: used(other) >= 10 * MEGABYTE)
        small.socket.close()
        until_unused(other)


def test_who_reads_no_replies_is_cut_off_when_memory_is_short(server: headrace.Server) -> None:
    with RawClient(server.address) as other, ExitStack() as stack:
        for number in range(4):
            other.ask({"insert": "c", "documents": [{"_id": number, "b": Binary(bytes(5 * MEGABYTE))}]})
        clients = [stack.enter_context(RawClient(server.address, receive_bytes=4096)) for _ in range(12)]
        for client in clients:
            client.socket.sendall(message({"find": "c", "filter": {"_id": 1}, "$db": "t"}))
        until(lambda: other.ask({"serverStatus": 1}, "admin")["mem"]["cutOff"] >= 2)
        assert used(other) <= 20 * MEGABYTE
        for client in clients:
            client.socket.close()
        until_unused(other)


def test_a_message_in_small_pieces_is_read(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        data = message({"insert": "pieces", "documents": [{"_id": 1, "b": Binary(bytes(300_000))}], "$db": "t"})
        client.socket.sendall(data[:200_000])
        for at in range(200_000, len(data), 700):
            client.socket.sendall(data[at : at + 700])
        assert client.receive()[1]["n"] == 1


@pytest.mark.parametrize("find", [{}, {"sort": {"_id": -1}}, {"hint": {"n": 1}, "filter": {"n": {"$gte": 0}}}])
def test_what_a_cursor_has_read_ahead_counts_where_documents_are_of_any_size(
    server: headrace.Server, find: dict[str, Any]
) -> None:
    """One of 4 MB follows a small one, which is all that the batch has: a scan does not hold the large one, or counts
    it."""
    with RawClient(server.address) as client:
        client.ask({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
        for number, size in enumerate((10, 4 * MEGABYTE, 10)):
            client.ask({"insert": "c", "documents": [{"_id": number, "n": number, "b": Binary(bytes(size))}]})
        before, cursors = held(server), []
        for _ in range(3):
            reply = client.ask({"find": "c", "batchSize": 1, **find})["cursor"]
            assert len(reply["firstBatch"]) == 1
            cursors.append(reply["id"])
        assert held(server) - before <= max(used(client), MEGABYTE)
        for cursor in cursors:
            rest = client.ask({"getMore": Int64(cursor), "collection": "c"})["cursor"]["nextBatch"]
            assert [len(document["b"]) for document in rest] == [4 * MEGABYTE, 10]
        until_unused(client)


def held(server: headrace.Server) -> int:
    """The bytes of documents that the cursors of a server hold."""
    cursors = list(server._running.engine.cursors._open.values())
    seen, size = set(), 0
    values: list[Any] = [cursor._documents for cursor in cursors]
    while values:
        value = values.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | Store | FunctionType):
            continue
        seen.add(id(value))
        if type(value) is bytes:
            size += len(value)
        elif isinstance(value, list | tuple | GeneratorType | ChunkedScan | MethodWrapperType):
            values += gc.get_referents(value)
    return size
