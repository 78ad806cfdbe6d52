"""Feeds: watchers of one kind are handed the same batch, who is too slow reads the oplog, nobody misses anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64

from headrace import limits
from headrace.dispatch.wait import Wait
from headrace.store.retention import prune
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("d", {"create": "c"})
        yield server


def opened(server: DrivenServer, *stages: dict[str, Any]) -> int:
    body = {"aggregate": "c", "pipeline": [{"$changeStream": {}}, *stages], "cursor": {}}
    return int(server.must("d", body)["cursor"]["id"])


def insert(server: DrivenServer, *numbers: int, collection: str = "c") -> None:
    server.must("d", {"insert": collection, "documents": [{"_id": number} for number in numbers]})


def read(server: DrivenServer, cursor: int, **more: Any) -> list[int]:
    """The `_id`s of the next batch; none where it would wait."""
    reply = server.run("d", {"getMore": Int64(cursor), "collection": "c", **more})
    if isinstance(reply, Wait):
        return []
    assert reply["ok"] == 1.0, reply
    return [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]]


def test_watchers_at_one_position_share_a_batch_and_each_has_a_cursor_id(server: DrivenServer) -> None:
    cursors = [opened(server) for _ in range(3)]
    insert(server, 1, 2)
    replies = [server.must("d", {"getMore": Int64(cursor), "collection": "c"}) for cursor in cursors]
    assert [reply["cursor"].pop("id") for reply in replies] == cursors
    assert replies[0] == replies[1] == replies[2]
    assert [event["documentKey"]["_id"] for event in replies[0]["cursor"]["nextBatch"]] == [1, 2]


def test_the_token_of_a_batch_moves_on_with_what_others_write(server: DrivenServer) -> None:
    cursors = [opened(server), opened(server)]
    insert(server, 1)
    tokens = []
    for cursor in cursors:
        reply = server.must("d", {"getMore": Int64(cursor), "collection": "c"})
        tokens.append(reply["cursor"]["postBatchResumeToken"]["_data"])
        insert(server, len(tokens), collection="other")
    assert tokens[0] < tokens[1]


def test_one_that_joins_a_feed_does_not_pause_while_it_builds_what_that_lacks(server: DrivenServer) -> None:
    numbers = {"input": {"$range": ["$documentKey._id", 500]}, "initialValue": 0, "in": "$$this"}
    slow = {"$match": {"$expr": {"$eq": [{"$reduce": numbers}, 499]}}}
    first = opened(server, slow)
    assert read(server, first) == []
    (feed,) = server.engine.feeds._feeds.values()
    insert(server, *range(20))
    turns, engine = Turns(seconds=0.0), server.engine
    request = server.request("d", {"aggregate": "c", "pipeline": [{"$changeStream": {}}, slow], "cursor": {}})
    answer, built = turns.run(engine.run_read, engine.command(request), request), {feed.end}
    while isinstance(answer, Turn):
        built.add(feed.end)
        answer = turns.resume(answer)
    assert feed.end == 20
    assert built <= {0, 20}, "others would have built the same events, or begun a step whose time another one measures"
    assert read(server, first) == list(range(20))


def test_watchers_that_read_at_random_miss_nothing(server: DrivenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEED_EVENT_COUNT_MAX", 8)
    monkeypatch.setattr(limits, "FEED_BYTES_MAX", 12_000)
    monkeypatch.setattr(limits, "UNREAD_ENTRY_COUNT_MAX", 16)
    chance = random.Random(5)
    even = {"$match": {"documentKey._id": {"$mod": [2, 0]}}}
    watchers = [(opened(server, *([even] if which % 3 == 0 else [])), which % 3 == 0, []) for which in range(9)]
    made = 0
    for _ in range(150):
        count = chance.choice((1, 1, 2, 5, 12))
        insert(server, *range(made, made + count))
        made += count
        for cursor, _, received in chance.sample(watchers, chance.randint(0, 4)):
            received += read(server, cursor, **chance.choice(({}, {"batchSize": 1}, {"batchSize": 3})))
        if chance.random() < 0.2:
            age(server)
    for cursor, is_even, received in watchers:
        while batch := read(server, cursor):
            received += batch
        assert received == [number for number in range(made) if not is_even or number % 2 == 0]


def test_events_that_are_too_many_bytes_are_let_go_and_read_from_the_oplog(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_BYTES_MAX", 10_000)
    fast, slow = opened(server), opened(server)
    for number in range(20):
        insert(server, number)
        assert read(server, fast) == [number]
    received = []
    while batch := read(server, slow):
        received += batch
    assert received == list(range(20))


@pytest.mark.parametrize("next_too", [False, True])
def test_a_slow_watcher_goes_on_where_just_the_entry_of_its_last_event_is_pruned(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch, next_too: bool
) -> None:
    monkeypatch.setattr(limits, "FEED_EVENT_COUNT_MAX", 2)
    slow, fast = opened(server), opened(server)
    for number in range(3):
        insert(server, number)
    assert read(server, slow, batchSize=1) == [0]
    last = server.store.last_position - 2
    for number in range(3, 9):
        insert(server, number)
        read(server, fast)
    txn = server.store.begin()
    prune(txn, last + 1 + next_too, 10)
    server.store.prepare(txn)
    server.store.sync(txn)
    server.store.publish(txn)
    if next_too:  # and also that of the event that comes next
        reply = server.run("d", {"getMore": Int64(slow), "collection": "c"})
        assert isinstance(reply, dict)
        assert reply["code"] == 286
    else:
        assert read(server, slow) == list(range(1, 9))


def age(server: DrivenServer) -> None:
    for _ in server.engine.feeds.forget_aged():
        pass


def held(server: DrivenServer) -> int:
    """How many events and entries are stored for streams."""
    return sum(len(feed._items) + feed.unread_count for feed in server.engine.feeds._feeds.values())


def test_what_was_there_at_two_rounds_is_forgotten_and_nobody_misses_anything(server: DrivenServer) -> None:
    fast, slow, left = opened(server), opened(server), opened(server, {"$match": {"operationType": "insert"}})
    insert(server, 1, 2, 3)
    assert read(server, fast) == [1, 2, 3]
    assert read(server, slow, batchSize=1) == [1]
    age(server)
    insert(server, 4)
    assert read(server, fast) == [4]
    assert held(server) == 8  # the second feed was not read
    age(server)
    assert held(server) == 1  # the second feed has dropped all that it had not read
    assert read(server, fast) == []
    insert(server, 5)
    assert read(server, fast) == [5]
    assert read(server, slow, batchSize=1) == [2]
    assert read(server, left, batchSize=2) == [1, 2]
    age(server)
    age(server)
    assert held(server) == 0
    assert read(server, slow) == [3, 4, 5]
    assert read(server, left) == [3, 4, 5]
    assert read(server, fast) == []


def test_memory_of_aged_entries_and_events_is_given_back(server: DrivenServer) -> None:
    watcher = opened(server)
    for first in range(0, 3000, 1000):
        insert(server, *range(first, first + 1000))
    unread = server.store.memory.used
    assert unread > 3000 * limits.UNREAD_ENTRY_BYTES
    assert len(read(server, watcher, batchSize=3000)) == 3000
    read_once = server.store.memory.used
    assert read_once > 3000 * 512
    age(server)
    age(server)
    assert server.store.memory.used < min(unread - 3000 * limits.UNREAD_ENTRY_BYTES, read_once - 3000 * 512)


def test_what_a_stream_has_not_read_is_known_after_its_events_are_forgotten(server: DrivenServer) -> None:
    watcher, fast = opened(server), opened(server)
    insert(server, 1)
    first = server.store.last_position
    insert(server, 2)
    assert read(server, fast) == [1, 2]
    cursor = server.engine.cursors.peek(watcher)
    assert cursor.unread_since(server.store.last_position) == first
    age(server)
    age(server)
    assert cursor.unread_since(server.store.last_position) <= first
    assert server.engine.cursors.peek(fast).unread_since(server.store.last_position) is None


def test_an_event_whose_stages_take_too_long_is_an_error_of_that_stream(
    server: DrivenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.02)
    sizes = {"$range": [0, {"$add": [100_000, "$fullDocument._id"]}]}
    every = {"$map": {"input": sizes, "in": {"$map": {"input": sizes, "in": 1}}}}
    slow = opened(server, {"$match": {"$expr": {"$gt": [{"$size": [every]}, 0]}}})
    quick = opened(server, {"$match": {"operationType": "insert"}})
    insert(server, 1)
    reply = server.run("d", {"getMore": Int64(slow), "collection": "c"})
    assert (reply["code"], reply["ok"]) == (50, 0)
    assert read(server, quick) == [1]
