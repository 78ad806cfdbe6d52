"""A server in which every tick is a pause: clients that write and watch at once, and what each of them must see."""

from __future__ import annotations

import random
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from bson import Binary, Int64

import headrace

from ..raw import RawClient

COMMANDS_OF_A_WRITER = 120
WRITERS = 4
WATCHERS = 8
JOINERS = 4
LONG = {"input": {"$range": [0, 300]}, "initialValue": 0, "in": {"$add": ["$$this", {"$size": "$fullDocument.tags"}]}}
STAGES: list[list[dict[str, Any]]] = [
    [],
    [{"$match": {"$expr": {"$gt": [{"$reduce": LONG}, 0]}}}],
    [{"$match": {"fullDocument.tags.0": {"$regex": "(a+)+$|^t"}}}],
    [{"$addFields": {"sum": {"$reduce": LONG}}}],
]
"""None hides an event, and all but the first tick for each of them."""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_watchers_miss_nothing_and_see_nothing_twice_wherever_commands_pause(seed: int) -> None:
    with headrace.Server() as server, ThreadPoolExecutor(WRITERS + WATCHERS + JOINERS) as pool:
        server._running.scheduler.turns.seconds = 0.0
        opened = threading.Barrier(WRITERS + WATCHERS)
        watchers = [pool.submit(_watch, server, opened, seed * 100 + number) for number in range(WATCHERS)]
        writers = [pool.submit(_write, server, opened, number, seed) for number in range(WRITERS)]
        joiners = [pool.submit(_join, server, watchers, number) for number in range(JOINERS)]
        ended = wait([*writers, *watchers, *joiners], return_when=FIRST_EXCEPTION).done
        if any(future.exception() for future in ended):  # the others wait for it
            opened.abort()
            server.close()
        for future in ended:
            future.result()


def _must(client: RawClient, command: dict[str, Any], database: str = "t") -> dict[str, Any]:
    reply = client.ask(command, database)
    assert reply["ok"] == 1.0 and "writeErrors" not in reply, reply
    return reply


def _write(server: headrace.Server, opened: threading.Barrier, number: int, seed: int) -> None:
    """Inserts of several documents, some in a transaction, and updates, each with the next number of this writer."""
    chance, count = random.Random(seed * 1000 + number), 0
    session: dict[str, Any] = {"lsid": {"id": Binary(bytes([number] * 16), 4)}, "autocommit": False}
    with RawClient(server.address) as client:
        opened.wait()
        for _ in range(COMMANDS_OF_A_WRITER):
            if count and chance.random() < 0.3:
                key = {"w": number, "n": chance.randrange(count)}
                update = {"q": {"_id": key}, "u": {"$set": {"last": count}}}
                count += _must(client, {"update": "c", "updates": [update]})["nModified"]
                continue
            tags = ["t" * chance.choice((1, 5_000))] * 3
            documents = [
                {"_id": {"w": number, "n": count + more}, "tags": tags, "last": count + more}
                for more in range(chance.randint(1, 6))
            ]
            if count and chance.random() < 0.2:
                session["txnNumber"] = Int64(count)
                for document in documents:
                    begins = {"startTransaction": True} if document["last"] == count else {}
                    _must(client, {"insert": "c", "documents": [document], **session, **begins})
                _must(client, {"commitTransaction": 1, **session}, "admin")
                count += len(documents)
                continue
            count += _must(client, {"insert": "c", "documents": documents})["n"]
        _must(client, {"insert": "c", "documents": [{"_id": {"w": number, "n": count}, "tags": ["t"], "last": -1}]})


def _watch(server: headrace.Server, opened: threading.Barrier, seed: int) -> None:
    """Read until each writer has ended, by streams that are closed and resumed now and then."""
    chance = random.Random(seed)
    options: dict[str, Any] = {"fullDocument": "updateLookup"}
    seen: dict[int, int] = {}
    ended: set[int] = set()
    with RawClient(server.address) as client:
        cursor = _opened(client, options, chance)
        opened.wait()
        while len(ended) < WRITERS:
            more = {"batchSize": chance.choice((1, 3, 100))}
            batch = _must(client, {"getMore": Int64(cursor), "collection": "c", "maxTimeMS": 100, **more})["cursor"]
            for event in batch["nextBatch"]:
                _check(event, seen, ended)
            options["resumeAfter"] = batch["postBatchResumeToken"]
            if chance.random() < 0.02:
                _must(client, {"killCursors": "c", "cursors": [Int64(cursor)]})
                cursor = _opened(client, options, chance, seen, ended)


def _join(server: headrace.Server, watchers: list[Future[None]], seed: int) -> None:
    """Open streams of the watchers' kinds, one after the other, which begin where they are."""
    chance = random.Random(seed)
    with RawClient(server.address) as client:
        while not all(watcher.done() for watcher in watchers):
            cursor = _opened(client, {"fullDocument": "updateLookup"}, chance)
            _must(client, {"killCursors": "c", "cursors": [Int64(cursor)]})


def _opened(
    client: RawClient, options: dict[str, Any], chance: random.Random, seen: dict[int, int] | None = None,
    ended: set[int] | None = None,
) -> int:  # fmt: skip
    """The cursor of another stream, whose first events are counted."""
    pipeline = [{"$changeStream": options}, *chance.choice(STAGES)]
    batch = _must(client, {"aggregate": "c", "pipeline": pipeline, "cursor": {}})["cursor"]
    for event in batch["firstBatch"]:
        assert seen is not None and ended is not None
        _check(event, seen, ended)
    options["resumeAfter"] = batch["postBatchResumeToken"]
    return int(batch["id"])


def _check(event: dict[str, Any], seen: dict[int, int], ended: set[int]) -> None:
    writer = event["documentKey"]["_id"]["w"]
    if event["operationType"] == "insert":
        number = event["fullDocument"]["last"]
    else:
        number = event["updateDescription"]["updatedFields"]["last"]
    if number == -1:
        ended.add(writer)
        return
    assert number == seen.get(writer, -1) + 1, event
    seen[writer] = number
