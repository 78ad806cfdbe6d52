"""Clients that take many replies to one request: they stream hello, or exhaust a cursor."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import pack, unpack_from
from typing import Any

import pytest
from bson import Int64, ObjectId

import headrace
from headrace import limits
from headrace.values.bson import decode
from headrace.wire.message import EXHAUST_ALLOWED, MORE_TO_COME, OP_COMPRESSED
from tests.waiting import until

from .raw import RawClient, message

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def client(server: headrace.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as connected:
        yield connected


def fill(client: RawClient, collection: str, count: int, size: int = 10) -> Int64:
    """Documents of a size; a cursor over them that has returned nothing yet."""
    client.ask({"drop": collection})
    documents = [{"_id": number, "x": "x" * size} for number in range(count)]
    for start in range(0, count, 40):
        client.ask({"insert": collection, "documents": documents[start : start + 40]})
    return Int64(client.ask({"find": collection, "batchSize": 0})["cursor"]["id"])


def exhaust(client: RawClient, cursor: Int64, collection: str, **fields: Any) -> None:
    body = {"getMore": cursor, "collection": collection, **fields}
    client.send(body, request_id=70, flags=EXHAUST_ALLOWED)


@pytest.mark.parametrize("name", ["hello", "isMaster", "ismaster"])
def test_a_streaming_hello_is_answered_again_and_again(client: RawClient, name: str) -> None:
    known = client.ask({name: 1}, "admin")["topologyVersion"]
    client.send({name: 1, "topologyVersion": known, "maxAwaitTimeMS": 10}, "admin", request_id=7, flags=EXHAUST_ALLOWED)
    answered = 7
    for _ in range(4):
        number, request, flags, reply = client.receive_one()
        assert (request, flags, reply["ok"]) == (answered, MORE_TO_COME, 1.0)
        assert reply["topologyVersion"] == known
        answered = number


def test_a_streaming_hello_after_a_restart_is_answered_at_once_and_then_waits(
    server: headrace.Server, client: RawClient
) -> None:
    known = client.ask({"hello": 1}, "admin")["topologyVersion"]
    former = {"processId": ObjectId(), "counter": Int64(6)}
    body = {"hello": 1, "topologyVersion": former, "maxAwaitTimeMS": 600_000}
    client.send(body, "admin", flags=EXHAUST_ALLOWED)
    _, _, flags, reply = client.receive_one()
    assert (flags, reply["topologyVersion"]) == (MORE_TO_COME, known)
    with RawClient(server.address) as other:  # the next one waits, with the version of the reply
        until(lambda: waiting(other) == [{**body, "topologyVersion": known, "$db": "admin"}])


def waiting(client: RawClient) -> list[dict[str, Any]]:
    """The commands hello that wait."""
    pipeline = [{"$currentOp": {}}, {"$match": {"command.hello": 1}}]
    found = client.ask({"aggregate": 1, "pipeline": pipeline, "cursor": {}}, "admin")["cursor"]["firstBatch"]
    return [operation["command"] for operation in found]


def test_a_hello_that_is_refused_ends_the_stream(client: RawClient) -> None:
    client.send({"hello": 1, "maxAwaitTimeMS": 5}, "admin", flags=EXHAUST_ALLOWED)
    _, _, flags, reply = client.receive_one()
    assert (flags, reply["code"]) == (0, 31368)
    assert client.ask({"ping": 1})["ok"] == 1.0


@pytest.mark.parametrize("name", ["hello", "isMaster", "ismaster"])
def test_a_hello_that_streams_must_say_how_long_it_waits(client: RawClient, name: str) -> None:
    client.send({name: 1}, "admin", flags=EXHAUST_ALLOWED)
    _, _, flags, reply = client.receive_one()
    assert (flags, reply["code"]) == (0, 51756)
    assert client.ask({name: 1}, "admin")["ok"] == 1.0


def test_a_hello_without_the_flag_waits_and_is_answered_once(client: RawClient) -> None:
    known = client.ask({"hello": 1}, "admin")["topologyVersion"]
    client.send({"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": 10}, "admin")
    assert client.receive_one()[2] == 0
    assert client.ask({"ping": 1})["ok"] == 1.0


def test_a_getmore_that_exhausts_is_answered_until_the_cursor_ends(client: RawClient) -> None:
    cursor = fill(client, "all", 250)
    exhaust(client, cursor, "all", batchSize=100)
    answered, seen = 70, []
    for count, last in ((100, False), (100, False), (50, True)):
        number, request, flags, reply = client.receive_one()
        assert (request, flags) == (answered, 0 if last else MORE_TO_COME)
        assert reply["cursor"]["id"] == (0 if last else cursor) and len(reply["cursor"]["nextBatch"]) == count
        seen += [document["_id"] for document in reply["cursor"]["nextBatch"]]
        answered = number
    assert seen == list(range(250))
    assert client.ask({"ping": 1})["ok"] == 1.0


def test_an_error_ends_the_replies(client: RawClient) -> None:
    exhaust(client, Int64(99), "none")
    assert client.receive_one()[2:][0] == 0
    assert client.ask({"ping": 1})["ok"] == 1.0


def test_other_commands_have_one_reply_whatever_the_flag(client: RawClient) -> None:
    for body in ({"ping": 1}, {"find": "none"}, {"hello": 1}, {"insert": "one", "documents": [{}]}):
        client.send(body, flags=EXHAUST_ALLOWED)
        assert client.receive_one()[2] == 0


def test_a_stream_of_changes_can_be_exhausted(server: headrace.Server, client: RawClient) -> None:
    cursor = client.watch("changes")
    exhaust(client, cursor, "changes", maxTimeMS=20_000)
    with RawClient(server.address) as writing:
        for number in range(3):
            writing.ask({"insert": "changes", "documents": [{"_id": number}]})
            _, _, flags, reply = client.receive_one()
            assert flags == MORE_TO_COME
            assert [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]] == [number]


def test_batches_are_sent_as_the_client_reads_them(server: headrace.Server) -> None:
    with RawClient(server.address, receive_bytes=4096) as slow, RawClient(server.address) as other:
        cursor = fill(slow, "slow", 120, 1_000_000)
        exhaust(slow, cursor, "slow", batchSize=1)
        slow.receive_one()

        def returned() -> int:
            pipeline = [{"$currentOp": {"idleCursors": True}}, {"$match": {"cursor.cursorId": cursor}}]
            reply = other.ask({"aggregate": 1, "pipeline": pipeline, "cursor": {}}, "admin")
            operations = reply["cursor"]["firstBatch"]
            return int(operations[0]["cursor"]["nDocsReturned"]) if operations else 120

        stands, before = returned(), -1
        while stands != before:  # until the sockets are full
            stands, before = returned(), stands
            other.ask({"aggregate": "slow", "pipeline": [{"$count": "n"}], "cursor": {}})
        assert stands < 40  # megabytes: the kernel's buffers and the server's
        assert server_bytes(other) < 8 * limits.WRITE_BUFFER_BYTES_MAX
        while slow.receive_one()[2] & MORE_TO_COME:
            pass
        assert returned() == 120


def server_bytes(client: RawClient) -> int:
    """Return the memory that the server holds for clients, in bytes."""
    return int(client.ask({"serverStatus": 1}, "admin")["mem"]["countedBytes"])


def test_the_cursor_of_a_client_that_leaves_is_closed(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        with RawClient(server.address, receive_bytes=4096) as leaving:
            cursor = fill(leaving, "left", 40, 1_000_000)
            exhaust(leaving, cursor, "left", batchSize=1)
            leaving.receive_one()
        until(lambda: other.ask({"getMore": cursor, "collection": "left"}).get("code") == 43)


def test_other_clients_are_served_while_one_exhausts_a_cursor(server: headrace.Server, client: RawClient) -> None:
    cursor = fill(client, "long", 3000)
    exhaust(client, cursor, "long", batchSize=1)
    with RawClient(server.address) as other:
        assert other.ask({"ping": 1})["ok"] == 1.0
    count = 0
    while client.receive_one()[2] & MORE_TO_COME:
        count += 1
    assert count == 3000


def test_what_is_sent_behind_is_answered_when_the_cursor_has_ended(client: RawClient) -> None:
    cursor = fill(client, "behind", 30)
    body = {"getMore": cursor, "collection": "behind", "batchSize": 10, "$db": "t"}
    first = message(body, request_id=70, flags=EXHAUST_ALLOWED)
    client.socket.sendall(first + message({"ping": 1, "$db": "t"}, request_id=71))
    received = [client.receive_one() for _ in range(5)]
    assert [flags for _, _, flags, _ in received] == [MORE_TO_COME] * 3 + [0, 0]
    assert received[-1][1] == 71


def test_replies_are_compressed_as_the_request_was(client: RawClient) -> None:
    client.ask({"hello": 1, "compression": ["zlib"]}, "admin")
    cursor = fill(client, "packed", 250)
    plain = message({"getMore": cursor, "collection": "packed", "batchSize": 100, "$db": "t"}, flags=EXHAUST_ALLOWED)
    packed = zlib.compress(plain[16:])
    head = pack("<iiiiiiB", 25 + len(packed), 5, 0, OP_COMPRESSED, 2013, len(plain) - 16, 2)
    client.socket.sendall(head + packed)
    seen = []
    for expected in (MORE_TO_COME, MORE_TO_COME, 0):
        length, _, _, opcode = unpack_from("<iiii", start := client._exactly(25))
        assert opcode == OP_COMPRESSED and start[24] == 2
        content = zlib.decompress(client._exactly(length - 25))
        assert unpack_from("<I", content)[0] == expected
        seen += [document["_id"] for document in decode(content[5:])["cursor"]["nextBatch"]]
    assert seen == list(range(250))


def test_a_fail_point_ends_the_stream_of_replies() -> None:
    with headrace.Server(enable_test_commands=True) as server, RawClient(server.address) as client:
        cursor = fill(client, "c", 250)
        data = {"failCommands": ["getMore"], "errorCode": 2}
        client.ask({"configureFailPoint": "failCommand", "mode": {"skip": 1}, "data": data}, "admin")
        exhaust(client, cursor, "c", batchSize=100)
        assert client.receive_one()[2] == MORE_TO_COME
        _, _, flags, reply = client.receive_one()
        assert (flags, reply["code"]) == (0, 2)
