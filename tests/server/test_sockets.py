"""Clients that misbehave, crowd, dawdle or hurry: nobody else notices."""

from __future__ import annotations

import contextlib
import logging
import random
import resource
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bson import Int64

import headrace
from headrace.values.bson import encode
from tests.waiting import until

from .raw import RawClient, message

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


def count(client: RawClient, collection: str) -> int:
    return int(client.ask({"count": collection})["n"])


def test_pipelined_requests_are_answered_in_order(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        pieces = []
        for number in range(300):
            body = ({"ping": 1}, {"insert": "p", "documents": [{"_id": number}]}, {"count": "p"})[number % 3]
            pieces.append(message({**body, "$db": "t"}, request_id=number))
        client.socket.sendall(b"".join(pieces))
        counted = []
        for number in range(300):
            request, reply = client.receive()
            assert (request, reply["ok"]) == (number, 1.0)
            counted += [reply["n"]] if number % 3 == 2 else []
        assert counted == list(range(1, 101))


def test_a_request_behind_a_waiting_one_is_answered_after_it(server: headrace.Server) -> None:
    with RawClient(server.address) as watching, RawClient(server.address) as writing:
        cursor = watching.watch("behind")
        get_more = {"getMore": cursor, "collection": "behind", "maxTimeMS": 20_000, "$db": "t"}
        watching.socket.sendall(message(get_more, request_id=7) + message({"ping": 1, "$db": "t"}, request_id=8))
        writing.ask({"insert": "behind", "documents": [{"_id": 1}]})
        request, reply = watching.receive()
        assert request == 7 and len(reply["cursor"]["nextBatch"]) == 1
        assert watching.receive()[0] == 8


def test_a_message_cut_into_single_bytes_is_one_message(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        for byte in message({"ping": 1, "$db": "t"}):
            client.socket.sendall(bytes((byte,)))
        assert client.receive()[1]["ok"] == 1.0


def test_a_write_that_was_cut_off_in_the_middle_is_not_done(server: headrace.Server) -> None:
    request = message({"insert": "cut", "$db": "t"}, documents=[encode({"_id": n, "x": "y" * 1000}) for n in range(50)])
    with RawClient(server.address) as other:
        for cut in (10, 100, len(request) // 2, len(request) - 1):
            with RawClient(server.address) as client:
                client.socket.sendall(request[:cut])
            assert other.ask({"ping": 1})["ok"] == 1.0
        assert count(other, "cut") == 0


def test_a_client_that_leaves_without_its_answer_leaves_nothing_waiting(server: headrace.Server) -> None:
    with RawClient(server.address) as other:
        for number in range(20):
            with RawClient(server.address) as client:
                client.send({"insert": "left", "documents": [{"_id": number}]})
            with RawClient(server.address) as client:
                cursor = client.watch("left")
                client.send({"getMore": cursor, "collection": "left", "maxTimeMS": 20_000})
        other.ask({"insert": "left", "documents": [{"_id": "last"}]})
        assert other.ask({"find": "left", "filter": {"_id": "last"}})["cursor"]["firstBatch"]


def test_garbage_cuts_its_sender_off_and_nobody_else(server: headrace.Server) -> None:
    random_ = random.Random(11)
    with RawClient(server.address) as other:
        garbage = [b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", struct.pack("<iiii", 1 << 30, 1, 0, 2013), bytes(100)]
        garbage += [random_.randbytes(random_.randrange(26, 300)) for _ in range(20)]
        for bytes_ in garbage:
            with RawClient(server.address) as client:
                client.socket.sendall(bytes_)
                client.socket.shutdown(1)
                assert client.is_cut_off()
            assert other.ask({"ping": 1})["ok"] == 1.0


def test_messages_with_damaged_bytes_are_answered_or_cut_off_and_never_hang(
    server: headrace.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Right frames around wrong documents: one byte or more of each changed, the length of the message kept."""
    random_ = random.Random(5)
    bodies = [
        {"insert": "damaged", "documents": [{"_id": 1, "a": [1, {"b": "text"}]}]},
        {"find": "damaged", "filter": {"a": {"$gt": 1}}, "sort": {"a": 1}, "lsid": {"id": b"x"}},
        {"update": "damaged", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a.0": 5}}, "upsert": True}]},
        {"aggregate": "damaged", "pipeline": [{"$changeStream": {}}, {"$match": {"a": 1}}], "cursor": {}},
        {"getMore": Int64(5), "collection": "damaged", "maxTimeMS": 5},
        {"delete": "damaged", "deletes": [{"q": {"_id": {"$in": [1, 2]}}, "limit": 0}]},
        {"findAndModify": "damaged", "query": {"_id": 3}, "update": {"$inc": {"n": 1}}, "upsert": True},
    ]
    with RawClient(server.address) as other:
        client = RawClient(server.address)
        for _ in range(700):
            damaged = bytearray(message({**random_.choice(bodies), "$db": "t"}))
            for _ in range(random_.choice((1, 1, 2, 5))):
                damaged[random_.randrange(20, len(damaged))] = random_.choice((0, 1, 0xFF, random_.randrange(256)))
            client.socket.sendall(bytes(damaged))
            try:
                client.receive()
            except ConnectionError:
                client.socket.close()
                client = RawClient(server.address)
        client.socket.close()
        assert other.ask({"ping": 1})["ok"] == 1.0
        other.ask({"insert": "damaged", "documents": [{"_id": "whole"}]})
        assert other.ask({"find": "damaged", "filter": {"_id": "whole"}})["cursor"]["firstBatch"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_document_over_16_mb_is_refused_and_nothing_is_stored(server: headrace.Server) -> None:
    with RawClient(server.address) as client:
        limit = 16 * 1024 * 1024
        large = encode({"_id": 2, "x": b"x" * limit})
        reply = client.ask({"insert": "large"}, documents=[large])
        assert reply["writeErrors"][0]["code"] == 10334 and reply["n"] == 0
        reply = client.ask({"insert": "large"}, documents=[encode({"_id": 1}), large, encode({"_id": 3})])
        assert reply["n"] == 1 and [item["index"] for item in reply["writeErrors"]] == [1]
        assert client.ask({"delete": "large", "deletes": [{"q": {}, "limit": 0}]})["n"] == 1
        head = len(encode({"_id": 4, "x": b""}))
        assert client.ask({"insert": "large"}, documents=[encode({"_id": 4, "x": bytes(limit - head)})])["n"] == 1
        grown = client.ask({"update": "large", "updates": [{"q": {"_id": 4}, "u": {"$set": {"y": "more"}}}]})
        assert grown["nModified"] == 0 and grown["writeErrors"][0]["code"] in (10334, 17419)
        assert count(client, "large") == 1


def test_a_client_that_does_not_read_stalls_nobody_else(server: headrace.Server) -> None:
    with RawClient(server.address) as other, RawClient(server.address, receive_bytes=65536) as lazy:
        other.ask({"insert": "slow"}, documents=[encode({"_id": n, "x": bytes(1_000_000)}) for n in range(4)])
        finds = b"".join(message({"find": "slow", "$db": "t"}, request_id=n) for n in range(12))
        lazy.socket.sendall(finds)
        for _ in range(50):
            assert other.ask({"ping": 1})["ok"] == 1.0
        assert other.ask({"insert": "slow", "documents": [{"_id": "while"}]})["n"] == 1
        for number in range(12):
            request, reply = lazy.receive()
            assert request == number and len(reply["cursor"]["firstBatch"]) >= 4


def test_a_thousand_idle_watchers_receive_their_events_and_no_others(server: headrace.Server) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack, RawClient(server.address) as writing:
        watchers = [stack.enter_context(RawClient(server.address)) for _ in range(1000)]
        for number, client in enumerate(watchers):
            name = f"w{number}"
            client.send({"getMore": client.watch(name), "collection": name, "maxTimeMS": 60_000})
        for number in range(200):
            writing.ask({"insert": "elsewhere", "documents": [{"_id": number}]})
        for number in (0, 123, 999):
            writing.ask({"insert": f"w{number}", "documents": [{"_id": number}]})
            _, reply = watchers[number].receive()
            assert [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]] == [number]
        watchers[5].socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            watchers[5].socket.recv(1)


def test_a_client_that_sends_too_far_ahead_is_not_read_until_its_turn_has_come(server: headrace.Server) -> None:
    """Four times the bound is sent behind a getMore that waits; the sender is held up, and then all is answered."""
    with RawClient(server.address) as client, RawClient(server.address) as other:
        cursor = client.watch("ahead")
        client.send({"getMore": cursor, "collection": "ahead", "maxTimeMS": 60_000})
        large = message({"find": "none", "filter": {"x": bytes(4_000_000)}, "$db": "t"})
        sent = 0

        def send() -> None:
            nonlocal sent
            for _ in range(100):
                client.socket.sendall(large)
                sent += 1

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: sent >= 20)
        other.ask({"insert": "ahead", "documents": [{"_id": 1}]})
        for _ in range(101):
            assert client.receive()[1]["ok"] == 1.0
        sender.join()


def test_a_server_ends_while_clients_go_on_writing_as_fast_as_they_can() -> None:
    def pound(client: RawClient) -> None:
        many = message({"insert": "c", "documents": [{"a": 1}], "$db": "t"}) * 50
        with contextlib.suppress(OSError):
            while True:
                client.socket.sendall(many)

    def take(client: RawClient) -> None:
        with contextlib.suppress(OSError):
            while client.socket.recv(1 << 20):
                pass

    running = headrace.Server().start()
    clients = [RawClient(running.address) for _ in range(8)]
    threads = [threading.Thread(target=work, args=(client,)) for client in clients for work in (pound, take)]
    for thread in threads:
        thread.start()
    with RawClient(running.address) as other:
        until(lambda: count(other, "c") >= 2000)
    running.close()
    for thread in threads:
        thread.join()


def test_all_lines_of_the_log_fit_into_a_reply() -> None:
    with headrace.Server() as server, RawClient(server.address) as client:
        for number in range(1100):
            logging.getLogger("headrace").warning("%d %s", number, "x" * 50_000)
        lines = client.ask({"getLog": "global"}, "admin")["log"]
        assert len(lines) == 1024 and all(len(line) <= 1024 for line in lines) and " 1099 xxx" in lines[-1]


def test_a_browser_is_answered_in_the_words_of_mongodb(server: headrace.Server) -> None:
    with urllib.request.urlopen(f"http://{server.address}/", timeout=60) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, "text/plain")
        sentence = b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"
        assert response.read() == sentence
    with RawClient(server.address) as client:
        client.socket.sendall(b"GET")  # the first bytes may come one by one
        client.socket.sendall(b" / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.socket.recv(15) == b"HTTP/1.0 200 OK"
