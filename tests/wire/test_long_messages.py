"""A long message is put together, decompressed and cut into sections once it is its turn."""

from __future__ import annotations

import random
import struct

import pytest
from bson import encode

from headrace.wire import compression
from headrace.wire.connection import NEED_DATA, Connection, Message, ProtocolError, UnopenedMessage

MEGABYTE = 1_000_000
LETTERS = "x" * 9 * MEGABYTE
NOISE = random.Random(1).randbytes(9 * MEGABYTE)


def section(*documents: bytes) -> bytes:
    inside = b"documents\0" + b"".join(documents)
    return b"\1" + struct.pack("<i", len(inside) + 4) + inside


def plain(value: str | bytes, request_id: int = 7) -> bytes:
    document = encode({"value": value})
    payload = bytes(4) + b"\0" + encode({"insert": "c", "$db": "t"}) + section(document, document)
    return struct.pack("<iiii", 16 + len(payload), request_id, 0, 2013) + payload


def compressed(compressor: int, value: str | bytes) -> bytes:
    message = plain(value)
    data = compression.compress(compressor, message[16:])
    return struct.pack("<iiiiiiB", 25 + len(data), 7, 0, 2012, 2013, len(message) - 16, compressor) + data


def fed(connection: Connection, data: bytes) -> Message:
    """The message, as a socket brings it."""
    for start in range(0, len(data), 256 * 1024):
        assert connection.next_event() is NEED_DATA
        connection.receive(data[start : start + 256 * 1024])
    message = connection.next_event()
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize("value", [LETTERS, NOISE], ids=["letters", "noise"])
@pytest.mark.parametrize("compressor", [None, 0, 1, 2, 3])
def test_a_long_message_is_opened(compressor: int | None, value: str | bytes) -> None:
    data = plain(value) if compressor is None else compressed(compressor, value)
    connection = Connection()
    message = fed(connection, data)
    assert type(message) is UnopenedMessage
    assert connection.unread_bytes == 0
    opened = message.opened()
    assert opened.sequences == {"documents": [encode({"value": value})] * 2}
    assert (opened.request_id, opened.opcode, opened.compressor) == (7, 2013, compressor)


def test_what_comes_behind_a_long_message_is_the_next() -> None:
    connection = Connection()
    data = plain(LETTERS) + plain("short", 8) + plain(LETTERS, 9)
    for start in range(0, len(data), 100_000):
        connection.receive(data[start : start + 100_000])
    messages = []
    while isinstance(message := connection.next_event(), Message):
        messages.append(message.opened())
    assert [message.request_id for message in messages] == [7, 8, 9]
    assert [len(message.sequences["documents"][0]) > MEGABYTE for message in messages] == [True, False, True]
    assert connection.unread_bytes == 0


def test_a_long_message_of_a_wrong_size_is_refused_before_it_is_read() -> None:
    connection = Connection()
    data = struct.pack("<iiiiiiB", 2 * MEGABYTE, 7, 0, 2012, 2013, 100 * MEGABYTE, 1) + bytes(2 * MEGABYTE)
    connection.receive(data[:1000])
    assert connection.next_event() is NEED_DATA
    connection.receive(data[1000:])
    for _ in range(2):
        with pytest.raises(ProtocolError, match="a compressed message of 100000000 bytes"):
            connection.next_event()


@pytest.mark.parametrize("end", [b"", b"\0"], ids=["cut off", "longer"])
def test_long_data_that_are_not_what_the_message_says_are_refused(end: bytes) -> None:
    for compressor in (1, 2, 3):
        packed = compression.compress(compressor, NOISE[:MEGABYTE])
        with pytest.raises(ProtocolError):
            compression.decompress(compressor, packed[:-1] if not end else packed, MEGABYTE - len(end))


@pytest.mark.parametrize("first", [3, 15, 16, 100, 64 * 1024])
def test_a_message_that_is_there_before_it_is_looked_at_is_not_joined(first: int) -> None:
    """As of a client that has sent all of it before it was its turn."""
    data, connection = plain(LETTERS), Connection()
    connection.receive(data[:first])
    for start in range(first, len(data), 64 * 1024):
        connection.receive(data[start : start + 64 * 1024])
    message = connection.next_event()
    assert type(message) is UnopenedMessage and len(message._pieces) > 200
    opened = message.opened()
    assert opened.body == encode({"insert": "c", "$db": "t"}) and len(opened.sequences["documents"]) == 2
    assert connection.next_event() is NEED_DATA and not connection.may_have_event


@pytest.mark.parametrize("header", [(0, 1, 0, 2013), (16 + 60_000_000, 1, 0, 2013), (30_000_000, 1, 0, 99)])
def test_much_that_is_no_message_is_refused_at_once(header: tuple[int, int, int, int]) -> None:
    connection = Connection()
    connection.receive(struct.pack("<iiii", *header))
    for _ in range(40):
        connection.receive(bytes(64 * 1024))
    with pytest.raises(ProtocolError):
        connection.next_event()
    assert not connection.unread_bytes
