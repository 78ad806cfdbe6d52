"""A getMore that is repeated is recognised by its bytes, and answered as the first was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.dispatch import repeated_getmore
from headrace.dispatch.request import ClientInfo, Request, UnreadRequest
from headrace.dispatch.wait import Wait
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode

CLIENT = ClientInfo(1, "127.0.0.1:1", ("127.0.0.1", 27017))


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("d", {"create": "c"})
        yield server


def opened(server: DrivenServer, **more: Any) -> int:
    reply = server.must("d", {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, **more})
    return int(reply["cursor"]["id"])


def asked(cursor: int, cluster_time: int | None = None, **more: Any) -> bytes:
    body: dict[str, Any] = {"getMore": Int64(cursor), "collection": "c", **more}
    body["lsid"] = {"id": Binary(bytes(16), 4)}
    if cluster_time is not None:
        signature = {"hash": bytes(20), "keyId": Int64(0)}
        body["$clusterTime"] = {"clusterTime": Timestamp(cluster_time, 1), "signature": signature}
    return encode({**body, "$db": "d"})


def ask(server: DrivenServer, body: bytes) -> dict[str, Any] | Wait:
    """As a peer does: recognised, or told apart and looked up."""
    request = repeated_getmore.recognised(server.engine, body, CLIENT)
    if request is None:
        request = Request("getMore", "d", body, {}, CLIENT)
    command = server.engine.commands["getMore"]
    run = server.engine.run_read if request.cursor is None else server.engine.run_stream
    answer = run(command, request)
    return answer if isinstance(answer, Wait) else decode(answer)


def test_the_same_bytes_are_recognised_and_other_bytes_are_not(server: DrivenServer) -> None:
    cursor = opened(server)
    body = asked(cursor, maxTimeMS=500)
    assert repeated_getmore.recognised(server.engine, body, CLIENT) is None
    assert isinstance(ask(server, body), Wait)
    again = repeated_getmore.recognised(server.engine, body, CLIENT)
    assert again is not None and again.db == "d" and again.name == "getMore"
    others = (
        asked(cursor, maxTimeMS=501),
        asked(cursor),
        asked(cursor, 5, maxTimeMS=500),
        asked(cursor + 1),
        body[:20],
    )
    for other in others:
        assert repeated_getmore.recognised(server.engine, other, CLIENT) is None


def test_the_cluster_time_alone_may_differ(server: DrivenServer) -> None:
    cursor = opened(server)
    ask(server, asked(cursor, 1, batchSize=3))
    assert repeated_getmore.recognised(server.engine, asked(cursor, 2, batchSize=3), CLIENT) is not None
    assert repeated_getmore.recognised(server.engine, asked(cursor, 2, batchSize=4), CLIENT) is None
    assert repeated_getmore.recognised(server.engine, asked(cursor, batchSize=3), CLIENT) is None
    longer = encode({**decode(asked(cursor, 2, batchSize=3)), "$clusterTime": {"clusterTime": Timestamp(3, 1), "x": 1}})
    assert repeated_getmore.recognised(server.engine, longer, CLIENT) is None, "which takes the general way"
    text = asked(cursor, 2, batchSize=3, comment="$clusterTime")
    assert repeated_getmore.recognised(server.engine, text, CLIENT) is None


def test_what_it_asked_is_remembered_until_it_asks_otherwise(server: DrivenServer) -> None:
    cursor = opened(server)
    wait = ask(server, asked(cursor, maxTimeMS=500, batchSize=2))
    assert isinstance(wait, Wait) and wait.wait_ms == 500
    server.must("d", {"insert": "c", "documents": [{"_id": number} for number in range(5)]})
    reply = ask(server, asked(cursor, maxTimeMS=500, batchSize=2))
    assert isinstance(reply, dict) and len(reply["cursor"]["nextBatch"]) == 2
    reply = ask(server, asked(cursor, maxTimeMS=500, batchSize=1))
    assert isinstance(reply, dict) and len(reply["cursor"]["nextBatch"]) == 1
    reply = ask(server, asked(cursor))
    assert isinstance(reply, dict) and len(reply["cursor"]["nextBatch"]) == 2
    wait = ask(server, asked(cursor))
    assert isinstance(wait, Wait) and wait.wait_ms == 1000


def test_a_killed_cursor_is_not_recognised_also_while_its_getmore_waits(server: DrivenServer) -> None:
    cursor = opened(server)
    body = asked(cursor)
    ask(server, body)
    waiting = repeated_getmore.recognised(server.engine, body, CLIENT)
    assert waiting is not None
    server.must("d", {"killCursors": "c", "cursors": [Int64(cursor)]})
    assert repeated_getmore.recognised(server.engine, body, CLIENT) is None
    answer = server.engine.run_stream(server.engine.commands["getMore"], waiting)
    assert isinstance(answer, bytes) and decode(answer)["code"] == 43


def test_a_feed_answers_for_a_stream_that_is_caught_up_and_the_command_for_one_that_is_behind(
    server: DrivenServer,
) -> None:
    start = server.must("d", {"ping": 1})["operationTime"]
    server.must("d", {"insert": "c", "documents": [{"_id": number} for number in range(3)]})
    pipeline = [{"$changeStream": {"startAtOperationTime": start}}]
    reply = server.must("d", {"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 0}})
    body = asked(reply["cursor"]["id"], batchSize=1)
    for number in range(3):
        request = repeated_getmore.recognised(server.engine, body, CLIENT)
        assert (request is None) == (number == 0)
        assert request is None or repeated_getmore.from_feed(server.engine, request) is None
        answer = ask(server, body)
        assert isinstance(answer, dict) and answer["cursor"]["nextBatch"][0]["documentKey"] == {"_id": number}
    assert isinstance(ask(server, body), Wait)
    server.must("d", {"insert": "c", "documents": [{"_id": 3}]})
    request = repeated_getmore.recognised(server.engine, body, CLIENT)
    assert request is not None
    reply_bytes = repeated_getmore.from_feed(server.engine, request)
    assert isinstance(reply_bytes, bytes) and b"fullDocument" in reply_bytes
    assert isinstance(ask(server, body), Wait)


def test_a_cursor_whose_client_waits_longer_than_ten_minutes_is_not_idle(server: DrivenServer) -> None:
    cursor = opened(server)
    ask(server, asked(cursor, maxTimeMS=3_600_000))
    server.clock.advance(3_500_000)  # type: ignore[attr-defined]
    assert server.engine.cursors.remove_idle(server.clock.monotonic_ms()) == 0
    server.clock.advance(800_000)  # type: ignore[attr-defined]
    assert server.engine.cursors.remove_idle(server.clock.monotonic_ms()) == 1


def test_streams_of_other_filters_and_scopes_have_replies_with_the_same_event(server: DrivenServer) -> None:
    """Streams of one scope share the bytes of the reply, but for the cursor's id."""
    filters = [[{"$match": {"fullDocument.n": {"$gte": -number}}}] for number in range(3)]
    scopes: list[tuple[Any, list[dict[str, Any]], str]] = [
        *(("c", stages, "c") for stages in filters), (1, filters[0], "$cmd.aggregate"), ("c", filters[1], "c"),
    ]  # fmt: skip
    bodies = []
    for target, stages, collection in scopes:
        pipeline = [{"$changeStream": {}}, *stages]
        reply = server.must("d", {"aggregate": target, "pipeline": pipeline, "cursor": {}})
        bodies.append(asked(reply["cursor"]["id"], collection=collection))
        assert isinstance(ask(server, bodies[-1]), Wait)
    for number in range(2):
        server.must("d", {"insert": "c", "documents": [{"_id": number, "n": number}]})
        made = []
        for body, (_, _, collection) in zip(bodies, scopes, strict=True):
            reply = ask(server, body)
            assert isinstance(reply, dict)
            cursor = reply["cursor"]
            assert (cursor["id"], cursor["ns"]) == (decode(body)["getMore"], f"d.{collection}")
            assert [event["documentKey"]["_id"] for event in cursor["nextBatch"]] == [number]
            assert reply["operationTime"] == reply["$clusterTime"]["clusterTime"]
            made.append(server.engine.feeds.last_batch[2])
        assert made[0] is made[1] is made[2] and made[2] is not made[3]
        server.must("d", {"insert": "other", "documents": [{"_id": number}]})
        late = ask(server, bodies[0])
        assert isinstance(late, Wait)


def test_a_request_that_is_recognised_has_all_that_one_that_is_read_has() -> None:
    body = asked(1)
    read, unread = Request("getMore", "d", body, {}, CLIENT), UnreadRequest("getMore", "d", body, CLIENT)
    for name in Request.__slots__:
        assert getattr(read, name, None) == getattr(unread, name, None), name
