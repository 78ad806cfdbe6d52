"""Streams with slow filters: others hear of an event before them, and what they read in slices is complete."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace import limits
from headrace.dispatch.wait import Wait
from headrace.server.peer import Peer
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.waiting import until

from .raw import RawClient


class HurriedClock(FakeClock):
    """Each look at it takes as long as a slice may."""

    def monotonic_ms(self) -> float:
        """The time, which goes on by a slice."""
        self.advance(limits.FEED_MS_MAX + 1)
        return super().monotonic_ms()


def opened(server: DrivenServer, *stages: dict[str, Any]) -> int:
    body = {"aggregate": "c", "pipeline": [{"$changeStream": {}}, *stages], "cursor": {}}
    reply = server.run("t", body)
    assert isinstance(reply, dict)
    return int(reply["cursor"]["id"])


def read(server: DrivenServer, cursor: int, count_max: int = 1000) -> tuple[list[int], list[str], int]:
    """The keys of all events up to the end, the tokens of the batches, and how many batches had none."""
    keys, tokens, empty = [], [], 0
    while not isinstance(
        reply := server.run("t", {"getMore": cursor, "collection": "c", "batchSize": count_max}), Wait
    ):
        batch = reply["cursor"]["nextBatch"]
        keys += [event["documentKey"]["_id"] for event in batch]
        tokens.append(reply["cursor"]["postBatchResumeToken"]["_data"])
        empty += not batch
    return keys, tokens, empty


@pytest.mark.parametrize("count_max", [1, 7, 1000])
def test_a_stream_that_is_read_in_slices_skips_and_repeats_nothing(count_max: int) -> None:
    with DrivenServer(clock=HurriedClock()) as server:
        all_events = opened(server)
        odd = opened(server, {"$match": {"documentKey._id": {"$mod": [2, 1]}}})
        late = opened(server, {"$match": {"documentKey._id": {"$gt": 90}}})
        for first in (0, 50):
            server.run("t", {"insert": "c", "documents": [{"_id": key} for key in range(first, first + 50)]})
            keys, tokens, _ = read(server, all_events, count_max)
            assert keys == list(range(first, first + 50))
            assert tokens == sorted(tokens)
        assert read(server, odd, count_max)[0] == list(range(1, 100, 2))
        keys, tokens, empty = read(server, late, count_max)
        assert keys == list(range(91, 100))
        assert tokens == sorted(tokens)
        assert empty == 0  # what is there is returned by the first getMore, however many slices it takes to come to it


def test_a_stream_resumes_from_the_middle_of_a_slice() -> None:
    with DrivenServer(clock=HurriedClock()) as server:
        cursor = opened(server, {"$match": {"documentKey._id": {"$gte": 3}}})
        server.run("t", {"insert": "c", "documents": [{"_id": key} for key in range(10)]})
        token = None
        for _ in range(5):  # whose time is up: empty batches
            reply = server.run("t", {"getMore": cursor, "collection": "c"}, time_is_up=True)
            assert isinstance(reply, dict)
            token = reply["cursor"]["postBatchResumeToken"]
        resumed = server.run(
            "t", {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": token}}], "cursor": {}}
        )
        assert isinstance(resumed, dict)
        keys = [event["documentKey"]["_id"] for event in resumed["cursor"]["firstBatch"]]
        keys += read(server, resumed["cursor"]["id"])[0]
        assert keys[-6:] == [4, 5, 6, 7, 8, 9]


def test_a_stream_without_stages_is_woken_before_those_with_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    original = Peer.wake

    def wake(self: Peer, command: Any, request: Any) -> None:
        order.append(self.client.connection_id)
        original(self, command, request)

    monkeypatch.setattr(Peer, "wake", wake)
    with headrace.Server() as server:
        clients = [RawClient(server.address) for _ in range(12)]
        last, writer = clients[-2:]
        slow = [{"$match": {"$expr": {"$ne": [{"$size": {"$range": [0, 2000]}}, 1]}}}]
        for number, client in enumerate(clients[:-2]):
            stages = [{"$changeStream": {}}, *slow, {"$set": {"x": number}}]
            cursor = client.ask({"aggregate": "c", "pipeline": stages, "cursor": {}})["cursor"]["id"]
            client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 60_000})
        cursor = last.watch("c")
        last.send({"getMore": cursor, "collection": "c", "maxTimeMS": 60_000})
        until(lambda: sum(map(len, list(server._running.notifier._parked.values()))) == 11)
        writer.ask({"insert": "c", "documents": [{"_id": key} for key in range(20)]})
        for client in clients[:-1]:
            assert client.receive()[1]["cursor"]["nextBatch"]
        last_number = next(peer.client.connection_id for peer in server._running.peers if
                           peer.client.address.endswith(f":{last.socket.getsockname()[1]}"))  # fmt: skip
        assert order.index(last_number) == 0
        for client in clients:
            client.socket.close()
