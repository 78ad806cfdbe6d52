"""A server that is replaced, or restored from an older copy, is recognized at the start and after a reconnection."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.masks.mask import parse_mask
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.mongodb.server_history import (
    HistoryChanged,
    check_event,
    check_history,
    check_position,
    server_history,
)
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.server_stream import ServerStream

pytestmark = pytest.mark.long

MASK = parse_mask('{"hash": ["_id"], "key": "env:KEY"}', lambda _: "a key of the test that is long enough")
assert MASK


def options_of(server: headrace.Server, **more: Any) -> SourceOptions:
    return SourceOptions(server.uri, "d", "c", **more)


def port_of(server: headrace.Server) -> int:
    with MongoClient[dict[str, Any]](server.uri) as client:
        address = client.address
    assert address is not None
    return address[1]


def insert(server: headrace.Server, *keys: int) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.insert_many([{"_id": key} for key in keys])


def tokens(options: SourceOptions) -> list[Token]:
    mongodb = MongoDBStream(options)
    start = mongodb.resolve(StreamPosition("earliest"))
    return [Token.of(event["_id"]) for event in mongodb.read(start, mongodb.end_at(mongodb.now()))]


def history_of(server: headrace.Server) -> str:
    with MongoClient[dict[str, Any]](server.uri) as client:
        return server_history(client)


def test_a_history_is_that_of_the_data_wherever_it_is_served(tmp_path: Path) -> None:
    with headrace.Server(tmp_path / "data") as server:
        insert(server, 1)
        before = history_of(server)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with headrace.Server(tmp_path / "copy") as server:
        assert history_of(server) == before
    shutil.rmtree(tmp_path / "data")
    with headrace.Server(tmp_path / "data") as server:
        assert history_of(server) != before


def test_another_server_at_the_same_address_is_recognized_after_the_reconnection(tmp_path: Path) -> None:
    with headrace.Server(tmp_path / "one") as server:
        insert(server, 1, 2)
        port, history = port_of(server), history_of(server)
        options = options_of(server, histories=(history,), await_ms=1)
        check_history(options)
        stream = ServerStream(options)
        start = stream.initial_offset()
        start = stream.latest_offset(start)
        stream.partitions(start, start)
    with headrace.Server(tmp_path / "two", port=port) as server:
        insert(server, 3)
        with pytest.raises(HistoryChanged, match="has another history"):
            check_history(options)
        with pytest.raises(HistoryChanged, match="has another history"):
            stream.partitions(start, start)
        with pytest.raises(HistoryChanged, match="has another history"):
            stream.latest_offset(start)
        stream.close()


def test_a_server_restored_from_an_older_copy_lacks_the_event_or_is_behind(tmp_path: Path) -> None:
    with headrace.Server(tmp_path / "data") as server:
        insert(server, 1)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with headrace.Server(tmp_path / "data") as server:
        port = port_of(server)
        insert(server, 2, 3)
        options = options_of(server, await_ms=1)
        one, *_, last = tokens(options)
        check_event(options, last)
        masked, masked_last = replace(options, mask=MASK), Token(MASK.token(last.text))
        check_event(masked, masked_last)
        position = MongoDBStream(options).end_at(MongoDBStream(options).now())
        check_position(MongoDBStream(options), position)
        stream = ServerStream(replace(options, start=StreamPosition("token", one)))
        reached = stream.latest_offset(stream.initial_offset())
        assert reached["token"] >= last.text
    with headrace.Server(tmp_path / "copy", port=port) as server:
        check_event(options, one)
        with pytest.raises(PositionLost, match="before the position"):
            check_event(options, last)
        insert(server, *range(10, 60))  # each has a time of its own: now it is later than before
        with pytest.raises(PositionLost, match=r"has no event .*restored from an older copy"):
            check_event(options, last)
        with pytest.raises(PositionLost, match=r"has no event .*restored from an older copy"):
            check_event(masked, masked_last)
        with pytest.raises(PositionLost, match="restored from an older copy"):
            stream.latest_offset(reached)
        with pytest.raises(PositionLost, match=r"280.*restored from an older copy"):
            list(MongoDBStream(options).read(last, tokens(options)[-1]))
        stream.close()
        ahead = Token("82FFFFFFF0000000012B")
        with pytest.raises(PositionLost, match="before the position"):
            check_position(MongoDBStream(options), ahead)
