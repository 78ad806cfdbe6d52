"""Writes whose body a client repeats, what of an update needs no turn, and the calls from a socket to its reply."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from struct import Struct
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.commands.writing import update
from headrace.dispatch.request import ClientInfo, parse_message, remember
from headrace.errors import CommandError
from headrace.server.repeated_messages import repeated_message
from headrace.values.bson import encode
from headrace.wire.connection import Connection
from headrace.wire.message import Message, ProtocolError
from tests.server.raw import RawClient

LSID = {"id": Binary.from_uuid(UUID(int=1))}


def cluster_time(second: int) -> dict[str, Any]:
    return {"clusterTime": Timestamp(second, 1), "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)}}


@pytest.fixture(name="client")
def _client() -> Iterator[RawClient]:
    with headrace.Server() as server, RawClient(server.address) as client:
        yield client


def insert(client: RawClient, identity: Any, database: str = "t", **fields: Any) -> dict[str, Any]:
    body = {"insert": "c", "ordered": True, "lsid": LSID, **fields}
    return client.ask(body, database, documents=[encode({"_id": identity})])


def count(client: RawClient, database: str = "t") -> int:
    return int(client.ask({"count": "c"}, database)["n"])


def test_a_body_that_comes_again_is_run_with_its_own_documents(client: RawClient) -> None:
    for number in range(4):
        assert insert(client, number)["n"] == 1
    assert insert(client, 3)["writeErrors"][0]["code"] == 11000
    assert count(client) == 4


def test_a_body_that_differs_by_one_byte_is_another(client: RawClient) -> None:
    for number in range(3):
        insert(client, number)
    assert insert(client, 3, database="u")["n"] == 1
    assert (count(client), count(client, "u")) == (3, 1)
    assert client.ask({"insert": "c", "ordered": 7}, documents=[encode({})])["code"] == 14
    assert client.ask({"insert": "c", "ordexed": True, "lsid": LSID}, documents=[encode({})])["code"] == 40415


def test_the_number_of_a_retryable_write_is_that_of_each_message(client: RawClient) -> None:
    for number in (1, 2, 2, 3):  # the second one is sent again, and answered as before
        answer = insert(client, number, txnNumber=Int64(number))
        assert answer["n"] == 1 and "writeErrors" not in answer
    assert count(client) == 3
    assert insert(client, 9, txnNumber=Int64(2))["code"] == 225


def test_a_cluster_time_may_be_another_in_each_message(client: RawClient) -> None:
    for number in range(1, 4):
        answer = insert(client, number, txnNumber=Int64(number), **{"$clusterTime": cluster_time(number)})
        assert answer["n"] == 1
    assert count(client) == 3


def test_a_changed_session_is_another(client: RawClient) -> None:
    assert insert(client, 1, txnNumber=Int64(7))["n"] == 1
    other = {"id": Binary.from_uuid(UUID(int=2))}
    answer = client.ask({"insert": "c", "ordered": True, "lsid": other, "txnNumber": Int64(7)}, documents=[encode({})])
    assert answer["n"] == 1 and count(client) == 2


VALUES = st.one_of(
    st.integers(-(2**40), 2**40), st.text(max_size=4), st.just(ObjectId(bytes(12))), st.none(), st.just({"$gt": 1}),
    st.just(1.5),
)  # fmt: skip
STATEMENTS = st.fixed_dictionaries(
    {"q": st.dictionaries(st.sampled_from(["_id", "a"]), VALUES, max_size=2), "u": st.just({"$set": {"a": 1}})},
    optional={"multi": st.booleans(), "upsert": st.booleans(), "hint": st.just({"$natural": 1})},
)


def in_order(statement: dict[str, Any]) -> bytes:
    """The statement as drivers send it: the filter first."""
    return encode({name: statement[name] for name in ("q", "u", "multi", "upsert", "hint") if name in statement})


@given(STATEMENTS)
def test_an_update_without_a_turn_names_one_id(statement: dict[str, Any]) -> None:
    identity = statement["q"].get("_id")
    is_short = (
        statement["q"].keys() == {"_id"} and type(identity) in (int, str, ObjectId)
        and not statement.get("multi") and "hint" not in statement
    )  # fmt: skip
    assert (update._id_and_change(in_order(statement)) is not None) == is_short


@given(STATEMENTS, st.integers(0, 100))
def test_a_statement_that_is_cut_off_takes_a_turn(statement: dict[str, Any], size: int) -> None:
    assert update._id_and_change(in_order(statement)[: size % 20]) is None


def message_of(body: dict[str, Any], **sequences: list[bytes]) -> bytes:
    document = encode({**body, "$db": "t"})
    sections = b""
    for name, documents in sequences.items():
        content = name.encode() + b"\0" + b"".join(documents)
        sections += b"\x01" + (4 + len(content)).to_bytes(4, "little") + content
    return Struct("<iiiiIB").pack(21 + len(document) + len(sections), 7, 0, 2013, 0, 0) + document + sections


def parsed(data: bytes, client: ClientInfo) -> tuple[Any, ...] | None:
    """Return the request that the wire machine reads from one message; None if it refuses it or reads another kind."""
    wire = Connection()
    wire.receive(data)
    try:
        event = wire.next_event()
        if not isinstance(event, Message) or event.flags or not wire.is_at_rest:
            return None
        request = parse_message(event.body, event.sequences, client)
    except (CommandError, ProtocolError):
        return None
    if request.repeated is None:
        remember(request)
    return event.request_id, request.name, request.db, request.raw, request.sequences


def test_a_repeated_message_with_other_bytes_is_read_as_the_wire_machine_reads_it() -> None:
    insert = {"insert": "c", "ordered": True}
    retried = {**insert, "lsid": LSID, "txnNumber": Int64(5), "$clusterTime": cluster_time(3)}
    one = encode({"_id": 1, "a": "x"})
    for message in (
        message_of(insert, documents=[one]), message_of(retried, documents=[one]), message_of({"ping": 1}),
        message_of({"update": "c"}, updates=[one]), message_of({"find": "c", "filter": {"_id": 7}}),
    ):  # fmt: skip
        client = ClientInfo(1, "127.0.0.1:5", ("127.0.0.1", 6))
        for _ in range(3):
            assert parsed(message, client) is not None
        assert repeated_message(message, client) is not None
        changed = [bytes((*message[:at], message[at] ^ mask, *message[at + 1 :]))
                   for at in range(len(message)) for mask in (1, 2, 0x80, 0xFF)]  # fmt: skip
        longer = [message[:at] + extra + message[at:] for at in range(len(message)) for extra in (b"\0", one)]
        shorter = [message[:at] + message[at + size :] for at in range(len(message)) for size in (1, 9, len(one))]
        sized = [len(data).to_bytes(4, "little") + data[4:] for data in (*longer, *shorter)]
        recognised = 0
        for data in (*changed, *longer, *shorter, *sized, message):
            again = repeated_message(data, client)
            if again is not None:
                recognised += 1
                number, request = again
                found = number, request.name, request.db, request.raw, request.sequences
                assert found == parsed(data, client), data
        assert recognised > 8  # the number and the answered message may differ, and so may a document


def test_the_way_of_an_insert_from_socket_to_reply_is_short() -> None:
    frames, counts = 0, []

    def note(frame: Any, event: str, what: Any) -> None:
        nonlocal frames
        frames += event == "call"

    with headrace.Server() as server, RawClient(server.address) as client:
        loop = server._running.loop

        def profile(function: Any) -> None:
            done = threading.Event()
            loop.call_soon_threadsafe(sys.setprofile, function)
            loop.call_soon_threadsafe(done.set)
            assert done.wait(60)

        for number in range(13):
            profile(note)
            frames = 0
            insert(client, number)
            profile(None)
            counts.append(frames)
    assert 0 < min(counts) <= 58  # others may have a timer of the server beside them
