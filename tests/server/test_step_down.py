"""A forced replSetStepDown makes the server a secondary for its time: drivers wait, and go on by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from bson import Binary, Int64

import headrace
from headrace.testing.clock import FakeClock
from headrace.wire.message import EXHAUST_ALLOWED, MORE_TO_COME

from .raw import RawClient

pytestmark = pytest.mark.long


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Iterator[headrace.Server]:
    with headrace.Server(clock=clock) as running:
        yield running


@pytest.fixture
def client(server: headrace.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as connected:
        yield connected


def step_down(client: RawClient, seconds: int = 60) -> dict[str, Any]:
    return client.ask({"replSetStepDown": seconds, "force": True}, "admin")


def test_a_secondary_reads_and_refuses_writes_for_its_time(client: RawClient, clock: FakeClock) -> None:
    client.ask({"insert": "c", "documents": [{"_id": number} for number in range(5)]})
    before = client.ask({"hello": 1}, "admin")
    cursor = Int64(client.ask({"find": "c", "batchSize": 1})["cursor"]["id"])
    assert step_down(client, 20)["ok"] == 1.0
    hello = client.ask({"hello": 1}, "admin")
    assert (hello["isWritablePrimary"], hello["secondary"], "primary" in hello) == (False, True, False)
    assert hello["topologyVersion"]["counter"] > before["topologyVersion"]["counter"]
    assert client.ask({"replSetGetStatus": 1}, "admin")["members"][0]["stateStr"] == "SECONDARY"
    for body in (
        {"insert": "c", "documents": [{}]}, {"create": "d"}, {"findAndModify": "c", "query": {}, "remove": True},
        {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}},
    ):  # fmt: skip
        reply = client.ask(body)
        assert (reply["code"], reply["topologyVersion"]) == (10107, hello["topologyVersion"])
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1)}
    assert client.ask({"insert": "c", "documents": [{}], **session})["errorLabels"] == ["RetryableWriteError"]
    assert step_down(client)["code"] == 10107
    assert client.ask({"count": "c"})["n"] == 5
    assert len(client.ask({"getMore": cursor, "collection": "c"})["cursor"]["nextBatch"]) == 4
    clock.advance(19_999)
    assert client.ask({"insert": "c", "documents": [{}]})["ok"] == 0.0
    clock.advance(1)
    assert client.ask({"insert": "c", "documents": [{}]})["ok"] == 1.0
    after = client.ask({"hello": 1}, "admin")
    assert after["isWritablePrimary"] and after["topologyVersion"]["counter"] > hello["topologyVersion"]["counter"]


def test_transactions_end_and_do_not_begin(client: RawClient) -> None:
    client.ask({"create": "c"})
    session = {"lsid": {"id": client.ask({"startSession": 1})["id"]["id"]}, "autocommit": False}
    begun = {**session, "txnNumber": Int64(1)}
    assert client.ask({"insert": "c", "documents": [{}], "startTransaction": True, **begun})["ok"] == 1.0
    step_down(client)
    assert client.ask({"find": "c", **begun})["errorLabels"] == ["TransientTransactionError"]
    reply = client.ask({"find": "c", "startTransaction": True, **session, "txnNumber": Int64(2)})
    assert (reply["code"], reply["errorLabels"]) == (10107, ["TransientTransactionError"])


def test_a_hello_that_waits_is_answered_when_the_topology_changes(
    server: headrace.Server, client: RawClient, clock: FakeClock
) -> None:
    known = client.ask({"hello": 1}, "admin")["topologyVersion"]
    body = {"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": 600_000}
    with RawClient(server.address) as other:
        client.send(body, "admin", flags=EXHAUST_ALLOWED)
        step_down(other, 1)
        _, _, flags, reply = client.receive_one()
        assert (flags, reply["isWritablePrimary"]) == (MORE_TO_COME, False)
        clock.advance(1000)
        _, _, flags, reply = client.receive_one()
        assert (flags, reply["isWritablePrimary"]) == (MORE_TO_COME, True)


def test_a_driver_waits_for_the_primary_and_keeps_its_cursor_and_pool() -> None:
    with headrace.Server() as server, pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        client.t.c.insert_many([{"_id": number} for number in range(5)])
        found = client.t.c.find(batch_size=2)
        first = [next(found)]
        connection = client.admin.command("hello")["connectionId"]
        client.admin.command("replSetStepDown", 1, force=True)
        first += list(found)
        client.t.c.insert_one({"_id": 5})  # refused, and sent again when the server is the primary
        assert len(first) == 5 and client.t.c.count_documents({}) == 6
        assert client.admin.command("hello")["connectionId"] == connection
