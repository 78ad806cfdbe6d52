"""Sections whose documents have one length: read as any others are, also if a length or an end is damaged."""

from __future__ import annotations

import struct

import bson
import pytest

from headrace.wire import connection
from headrace.wire.message import ProtocolError
from tests.wire.test_connection import PING, msg, read_all, section

DOCUMENT = bson.encode({"_id": 1, "text": "abcdefgh"})
SIZE = len(DOCUMENT)


def outcome(content: bytes) -> list[bytes] | str:
    try:
        (message,) = read_all(msg(b"\0" + PING, section("documents", content)))
        if isinstance(message, connection.UnopenedMessage):
            message = message.opened()
    except ProtocolError as error:
        return str(error)
    return message.sequences["documents"]


def read_one_by_one(content: bytes, monkeypatch: pytest.MonkeyPatch) -> list[bytes] | str:
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_COLUMN_BYTES", 1 << 30)
        return outcome(content)


@pytest.mark.parametrize("count", [2, 15, 16, 17, 1000])
def test_all_documents_are_read(count: int) -> None:
    documents = [bson.encode({"_id": number, "text": "abcdefgh"}) for number in range(count)]
    assert outcome(b"".join(documents)) == documents
    assert outcome(b"".join([PING, *documents])) == [PING, *documents]
    assert outcome(b"".join([*documents, PING])) == [*documents, PING]
    empty = [bson.encode({})] * count
    assert outcome(b"".join(empty)) == empty


@pytest.mark.parametrize("at", [0, 1, 12, 19])
@pytest.mark.parametrize("place", [0, 1, 2, 3, SIZE - 1])
def test_a_damaged_length_or_end_is_judged_as_one_by_one(
    at: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for byte in range(256):
        content = bytearray(DOCUMENT * 20)
        content[at * SIZE + place] = byte
        assert outcome(bytes(content)) == read_one_by_one(bytes(content), monkeypatch)


@pytest.mark.parametrize("size", [-1, 0, 4, 5, SIZE * 2, 2**31 - 1])
def test_a_wrong_length_of_all_documents_is_judged_as_one_by_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (struct.pack("<i", size) + DOCUMENT[4:]) * 20
    assert outcome(content) == read_one_by_one(content, monkeypatch)


def test_no_more_documents_are_read_than_a_command_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bson.encode({}) * (connection.WRITE_BATCH_COUNT_MAX + 5)
    assert len(outcome(content)) == connection.WRITE_BATCH_COUNT_MAX + 1
    assert outcome(content) == read_one_by_one(content, monkeypatch)
