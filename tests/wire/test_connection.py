"""The wire machine: the same messages however the stream is cut, and ProtocolError for all that is not one."""

from __future__ import annotations

import struct
from contextlib import suppress

import bson
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import compression
from headrace.wire.compression import NAMES, compress
from headrace.wire.connection import NEED_DATA, Connection, Message, ProtocolError, crc32c
from headrace.wire.message import EXHAUST_ALLOWED, MORE_TO_COME, OP_COMPRESSED, OP_MSG, OP_QUERY
from tests.examples import examples

PING = bson.encode({"ping": 1, "$db": "admin"})


def frame(opcode: int, payload: bytes, request_id: int = 7) -> bytes:
    return struct.pack("<iiii", 16 + len(payload), request_id, 0, opcode) + payload


def section(name: str, *documents: bytes) -> bytes:
    content = name.encode() + b"\0" + b"".join(documents)
    return b"\x01" + struct.pack("<i", 4 + len(content)) + content


def msg(*sections: bytes, flags: int = 0, request_id: int = 7) -> bytes:
    return frame(OP_MSG, struct.pack("<I", flags) + b"".join(sections), request_id)


def query(document: bytes, collection: str = "admin.$cmd", rest: bytes = b"") -> bytes:
    return frame(
        OP_QUERY, struct.pack("<i", 0) + collection.encode() + b"\0" + struct.pack("<ii", 0, -1) + document + rest
    )


def compressed(message: bytes, compressor: int, size: int | None = None) -> bytes:
    request_id, _, opcode = struct.unpack_from("<iii", message, 4)
    size = len(message) - 16 if size is None else size
    payload = struct.pack("<iiB", opcode, size, compressor) + compress(compressor, message[16:])
    return frame(OP_COMPRESSED, payload, request_id)


def read_all(*pieces: bytes) -> list[Message]:
    connection = Connection()
    messages = []
    for piece in pieces:
        connection.receive(piece)
        while isinstance(message := connection.next_event(), Message):
            messages.append(message)
    return messages


def shown(messages: list[Message]) -> list[tuple[object, ...]]:
    return [
        (
            m.request_id,
            m.opcode,
            m.flags,
            m.body,
            m.sequences,
            m.collection,
            m.compressor,
        )
        for m in messages
    ]


def test_a_small_message_is_its_body() -> None:
    (message,) = read_all(msg(b"\0" + PING))
    assert (message.request_id, message.opcode, message.body, message.sequences) == (7, OP_MSG, PING, {})
    assert not message.flags & MORE_TO_COME and not message.flags & EXHAUST_ALLOWED and message.compressor is None


def test_sequences_come_by_name_in_any_order() -> None:
    documents = [bson.encode({"_id": i}) for i in range(3)]
    for segments in (
        [b"\0" + PING, section("documents", *documents)],
        [section("documents", *documents), b"\0" + PING],
    ):
        (message,) = read_all(msg(*segments))
        assert message.body == PING
        assert message.sequences == {"documents": documents}


def test_an_empty_sequence_is_a_sequence() -> None:
    (message,) = read_all(msg(b"\0" + PING, section("documents")))
    assert message.sequences == {"documents": []}


def test_flags_say_what_the_client_wants() -> None:
    (message,) = read_all(msg(b"\0" + PING, flags=2))
    assert message.flags & MORE_TO_COME and not message.flags & EXHAUST_ALLOWED
    (message,) = read_all(msg(b"\0" + PING, flags=1 << 16))
    assert message.flags & EXHAUST_ALLOWED and not message.flags & MORE_TO_COME


def with_checksum(message: bytes) -> bytes:
    """A message with its length, flags and checksum set."""
    start = struct.pack("<i", len(message) + 4) + message[4:16] + struct.pack("<I", 1) + message[20:]
    return start + struct.pack("<I", crc32c(start))


def test_the_checksum_is_the_castagnoli_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalogues


@pytest.mark.parametrize("number", [None, *NAMES.values()])
def test_a_checksum_that_matches_is_left_out(number: int | None) -> None:
    data = with_checksum(msg(b"\0" + PING, section("d", PING)))
    (message,) = read_all(data if number is None else compressed(data, number))
    assert message.body == PING and message.sequences == {"d": [PING]}


@pytest.mark.parametrize("at", [4, 8, 30, -1])
def test_a_checksum_that_does_not_match_is_a_protocol_error(at: int) -> None:
    data = bytearray(with_checksum(msg(b"\0" + PING)))
    data[at] ^= 1
    with pytest.raises(ProtocolError, match="the checksum of a message does not match its contents"):
        read_all(bytes(data))


def test_unknown_optional_flags_are_ignored() -> None:
    (message,) = read_all(msg(b"\0" + PING, flags=1 << 31))
    assert message.body == PING


def test_a_legacy_query_has_its_collection() -> None:
    (message,) = read_all(query(PING, rest=bson.encode({"a": 1})))
    assert (message.opcode, message.collection, message.body) == (OP_QUERY, "admin.$cmd", PING)
    assert not message.flags & MORE_TO_COME


@pytest.mark.parametrize("compressor", sorted([*NAMES.values(), 0]))
def test_a_compressed_message_is_what_was_inside(compressor: int) -> None:
    (message,) = read_all(compressed(msg(b"\0" + PING, section("d", PING)), compressor))
    assert (message.request_id, message.opcode, message.body, message.sequences) == (7, OP_MSG, PING, {"d": [PING]})
    assert message.compressor == compressor


def test_a_hello_is_answered_plain_even_when_it_came_compressed() -> None:
    (message,) = read_all(compressed(msg(b"\0" + bson.encode({"hello": 1})), 2))
    assert message.compressor is None


GARBAGE = {
    "length negative": struct.pack("<iiii", -1, 1, 0, OP_MSG),
    "length too small": struct.pack("<iiii", 25, 1, 0, OP_MSG) + bytes(9),
    "length too large": struct.pack("<iiii", 48_000_001, 1, 0, OP_MSG),
    "length too large seen in four bytes": struct.pack("<i", 48_000_001),
    "opcode unknown before the message is there": struct.pack("<iiii", 1000, 1, 0, 2010),
    "opcode unknown": frame(2010, bytes(30)),
    "reply as a request": frame(1, bytes(30)),
    "http": b"GET / HTTP/1.1\r\nHost: localhost:27017\r\n\r\n",
    "required flag unknown": msg(b"\0" + PING, flags=4),
    "kind unknown": msg(b"\x02" + PING),
    "no body": msg(section("documents", PING)),
    "two bodies": msg(b"\0" + PING, b"\0" + PING),
    "two sequences of a name": msg(b"\0" + PING, section("d"), section("d")),
    "body longer than its message": msg(b"\0" + struct.pack("<i", 100) + bytes(10)),
    "body length negative": msg(b"\0" + struct.pack("<i", -5) + bytes(10)),
    "body not ended by zero": msg(b"\0" + PING[:-1] + b"x"),
    "body shorter than its message": msg(b"\0" + PING + b"\0"),
    "section longer than its message": msg(b"\0" + PING, b"\x01" + struct.pack("<i", 100) + b"d\0"),
    "section size negative": msg(b"\0" + PING, b"\x01" + struct.pack("<i", -1) + b"d\0"),
    "section not filled": msg(b"\0" + PING, section("d", PING, b"\0\0\0")),
    "section overfilled": msg(b"\0" + PING, section("d", PING[:-1]), b"\0"),
    "section's document too short": msg(b"\0" + PING, section("d", struct.pack("<i", 4) + b"\0\0")),
    "section without the end of its name": msg(b"\0" + PING, b"\x01" + struct.pack("<i", 6) + b"dd"),
    "section's name not text": msg(b"\0" + PING, b"\x01" + struct.pack("<i", 7) + b"\xff\xfe\0"),
    "checksum without the place for it": msg(b"\0" + PING, flags=1),
    "query with leftovers": query(PING, rest=b"abc"),
    "query with an endless name": frame(OP_QUERY, b"a" * 40),
    "compressor unknown": frame(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, 30, 9) + bytes(30)),
    "compressed size a lie": compressed(msg(b"\0" + PING), 0, size=20),
    "compressed size huge": compressed(msg(b"\0" + PING), 0, size=48_000_000),
    "compressed size negative": compressed(msg(b"\0" + PING), 0, size=-1),
    "compressed inside compressed": compressed(compressed(msg(b"\0" + PING), 2), 2),
    **{f"{name} says less than it holds": compressed(msg(b"\0" + PING), number, 20) for name, number in NAMES.items()},
    **{f"{name} says more than it holds": compressed(msg(b"\0" + PING), number, 90) for name, number in NAMES.items()},
    **{
        f"{name} garbage": frame(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, 30, number) + b"\xf0garbage" * 3)
        for name, number in NAMES.items()
    },
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_a_protocol_error_for_good(data: bytes) -> None:
    connection = Connection()
    connection.receive(data)
    with pytest.raises(ProtocolError):
        connection.next_event()
    connection.receive(msg(b"\0" + PING))
    with pytest.raises(ProtocolError):
        connection.next_event()


def test_a_bomb_is_refused_without_being_blown_up() -> None:
    bomb = bytes(40_000_000)
    for number in NAMES.values():
        message = frame(OP_COMPRESSED, struct.pack("<iiB", OP_MSG, 1000, number) + compress(number, bomb))
        with pytest.raises(ProtocolError):
            read_all(message)


def test_what_came_before_garbage_is_still_answered() -> None:
    connection = Connection()
    connection.receive(msg(b"\0" + PING) + b"GET / HTTP/1.1\r\n\r\n")
    assert connection.next_event() is not NEED_DATA
    with pytest.raises(ProtocolError):
        connection.next_event()


documents = st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(-9, 9), st.text(max_size=5)), max_size=2).map(
    bson.encode
)
sequences = st.dictionaries(st.sampled_from(["documents", "updates", "ü"]), st.lists(documents, max_size=4), max_size=2)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    body = draw(documents)
    if draw(st.integers(0, 4)) == 0:
        message = query(body)
    else:
        flags = draw(st.sampled_from([0, 1, 2, 1 << 16]))
        segments = [b"\0" + body, *(section(name, *items) for name, items in draw(sequences).items())]
        segments = draw(st.permutations(segments))
        message = msg(*segments, flags=flags, request_id=draw(st.integers(-(2**31), 2**31 - 1)))
        message = with_checksum(message) if flags & 1 else message
    compressor = draw(st.sampled_from([None, None, 0, 1, 2, 3]))
    return message if compressor is None else compressed(message, compressor)


@given(st.lists(messages(), max_size=5), st.data())
@examples(200)
def test_the_messages_are_the_same_however_the_stream_is_cut(stream: list[bytes], data: st.DataObject) -> None:
    full = b"".join(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(full)), max_size=12)))
    pieces = [full[start:end] for start, end in zip([0, *cuts], [*cuts, len(full)], strict=True)]
    expected = shown(read_all(full))
    assert len(expected) == len(stream)
    assert shown(read_all(*pieces)) == expected


@given(st.lists(messages(), min_size=1, max_size=2))
@examples(30)
def test_the_messages_are_the_same_byte_by_byte(stream: list[bytes]) -> None:
    full = b"".join(stream)
    assert shown(read_all(*(full[i : i + 1] for i in range(len(full))))) == shown(read_all(full))


@given(messages(), st.data())
@examples(200)
def test_a_truncated_message_only_waits(message: bytes, data: st.DataObject) -> None:
    assert read_all(message[: data.draw(st.integers(0, len(message) - 1))]) == []


@given(messages(), st.data())
@examples(400)
def test_a_damaged_message_is_read_or_refused_and_nothing_else(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        read_all(bytes(damaged))


@given(st.binary(max_size=200), st.integers(0, 100))
@examples(200)
def test_any_payload_is_read_or_refused_and_nothing_else(payload: bytes, cut: int) -> None:
    for opcode in (OP_MSG, OP_QUERY, OP_COMPRESSED):
        message = frame(opcode, payload)
        with suppress(ProtocolError):
            read_all(message[:cut], message[cut:])


def test_a_small_message_behind_a_long_one_is_read_though_more_came_before_it_was_asked_for() -> None:
    """A client that sends ahead: the long message's length once stood in the way of the short ones behind it."""
    long, short = msg(b"\0" + bson.encode({"x": bytes(5000), "$db": "t"})), msg(b"\0" + PING)
    connection = Connection()
    connection.receive(long[:1000])
    assert connection.next_event() is NEED_DATA
    connection.receive(long[1000:] + short)
    assert isinstance(connection.next_event(), Message)
    connection.receive(short)
    assert shown([connection.next_event(), connection.next_event()]) == shown(read_all(short, short))  # type: ignore[list-item]
    assert connection.next_event() is NEED_DATA and connection.unread_bytes == 0


def test_what_comes_while_a_later_message_waits_stands_behind_it() -> None:
    first, second, third = (msg(b"\0" + PING, request_id=number) for number in (1, 2, 3))
    connection = Connection()
    connection.receive(first)
    connection.receive(second)
    assert isinstance(result := connection.next_event(), Message) and result.request_id == 1
    connection.receive(third)
    assert [connection.next_event().request_id for _ in range(2)] == [2, 3]  # type: ignore[union-attr]


@given(st.lists(messages(), min_size=1, max_size=6), st.data())
@examples(100)
def test_the_messages_are_the_same_whenever_they_are_asked_for(stream: list[bytes], data: st.DataObject) -> None:
    full = b"".join(stream)
    connection, result, at = Connection(), [], 0
    while at < len(full):
        size = data.draw(st.integers(1, 150))
        connection.receive(full[at : at + size])
        at += size
        for _ in range(data.draw(st.integers(0, 2))):
            if isinstance(message := connection.next_event(), Message):
                result.append(message)
    while isinstance(message := connection.next_event(), Message):
        result.append(message)
    assert shown(result) == shown(read_all(full))


@pytest.mark.parametrize("compressor", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 100, 256 * 1024, 256 * 1024 + 1, 3_000_000])
def test_long_data_are_compressed_in_pieces(compressor: int, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    packed = compression.compress(compressor, data)
    assert compression.decompress(compressor, packed, size) == data
    if compressor == 1:
        assert snappy.uncompress(packed) == data
