"""Kills readers at random under load: no answer may be wrong, and no other client may notice.

    python -m tests.server.readers.kills --count 500 --seed 1

Clients read in every way that readers answer, one writes, and one inserts and finds single documents. Others update
and delete many documents, write the results of pipelines, read the backlog of a stream, and validate. Every answer is
compared with what was written. A client whose cursor was in a killed reader gets error 43, and a read that has lost two
readers 175: that is what a kill may cost. All but such reads may not fail at all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pymongo
from pymongo.errors import OperationFailure

import headrace
from headrace import limits
from tests.server.readers.reading import moved_count, readers_of, serving
from tests.waiting import until

COUNT = 4000
KEYS = 10
LARGE = 10_001
GROUP = {"$group": {"_id": "$a", "n": {"$sum": 1}}}
READING = ("_group", "_scan", "_count", "_distinct")
"""The reads that may end with an error as their reader is killed."""
GOING_ON = ("_write", "_point", "_update", "_delete", "_out", "_merge", "_backlog", "_validate")
WORKS = (*READING, *GOING_ON)


class Load:
    """The clients of one server, until `stop`."""

    def __init__(self, server: headrace.Server, seed: int) -> None:
        self._server = server
        self._seed = seed
        self._ends = threading.Event()
        self._failed: list[BaseException] = []
        self.counts: Counter[str] = Counter()
        """How often each kind of read was answered, and each error."""
        self._written = 0
        self._updates = [0] * KEYS
        with pymongo.MongoClient(server.uri) as client:
            client.t.c.insert_many([{"_id": number, "a": number % KEYS, "s": "x" * 30} for number in range(COUNT)])
            client.t.many.insert_many([{"_id": number, "a": number % KEYS, "n": 0} for number in range(COUNT)])
            with client.t.many.watch() as stream:
                self._token = stream.resume_token
            client.t.many.update_many({}, {"$set": {"k": 1}})
            client.t.large.insert_many([{"_id": number} for number in range(LARGE)])
            assert client.t.large.estimated_document_count() == LARGE
        self._threads = [threading.Thread(target=self._run, args=(getattr(self, work),)) for work in WORKS]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the clients. Raises what one has found to be wrong."""
        self._ends.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def is_right(self) -> bool:
        """Whether nothing wrong has been found."""
        return not self._failed

    def _run(self, work: Callable[[pymongo.MongoClient[Any], random.Random], None]) -> None:
        draw = random.Random(f"{self._seed} {work.__name__}")
        may_lose = work.__name__ in READING
        with pymongo.MongoClient(self._server.uri, retryReads=False, retryWrites=False) as client:
            while not self._ends.is_set() and not self._failed:
                try:
                    work(client, draw)
                    self.counts[work.__name__] += 1
                except OperationFailure as error:
                    self.counts[f"error {error.code}"] += 1
                    if not may_lose or error.code not in (43, 175):
                        self._failed.append(error)
                except BaseException as error:
                    self._failed.append(error)

    def _group(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        groups = client.t.c.aggregate([GROUP, {"$sort": {"_id": 1}}])
        assert list(groups) == [{"_id": key, "n": COUNT // KEYS} for key in range(KEYS)]

    def _scan(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        found = client.t.c.find({"s": "x" * 30}, {"_id": 1}, batch_size=draw.randrange(50, 1000))
        assert [item["_id"] for item in found] == list(range(COUNT))

    def _count(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        key, least = draw.randrange(KEYS), self._written
        assert client.t.c.count_documents({"a": key}) == COUNT // KEYS
        written = client.t.written.count_documents({"n": {"$gte": 0}})
        assert least <= written <= self._written + 1

    def _distinct(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        least = draw.randrange(KEYS)
        assert client.t.c.distinct("a", {"a": {"$gte": least}}) == list(range(least, KEYS))

    def _write(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        client.t.written.insert_one({"n": self._written})
        self._written += 1

    def _point(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        number = draw.randrange(COUNT)
        assert client.t.c.find_one({"_id": number}) == {"_id": number, "a": number % KEYS, "s": "x" * 30}

    def _update(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        """All updates of a group of documents are made, once, and `n` says so."""
        key = draw.randrange(KEYS)
        result = client.t.many.update_many({"a": key, "k": {"$ne": 0}}, {"$inc": {"n": 1}})
        assert (result.matched_count, result.modified_count) == (COUNT // KEYS, COUNT // KEYS)
        self._updates[key] += 1
        number = draw.randrange(COUNT)
        assert client.t.many.find_one({"_id": number})["n"] == self._updates[number % KEYS]

    def _delete(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        key, collection = draw.randrange(KEYS), client.t.deleted
        collection.insert_many([{"a": number % KEYS} for number in range(COUNT // KEYS)])
        each = COUNT // KEYS // KEYS
        assert collection.delete_many({"a": key}).deleted_count == each
        assert collection.delete_many({}).deleted_count == each * (KEYS - 1)

    def _out(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        value = draw.random()
        list(client.t.c.aggregate([{"$set": {"v": value}}, {"$out": "out"}]))
        number = draw.randrange(COUNT)
        assert client.t.out.find_one({"_id": number})["v"] == value
        assert client.t.out.estimated_document_count() == COUNT

    def _merge(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        value = draw.random()
        list(client.t.c.aggregate([GROUP, {"$set": {"v": value}}, {"$merge": "merged"}]))
        for key in range(KEYS):
            assert client.t.merged.find_one({"_id": key}) == {"_id": key, "n": COUNT // KEYS, "v": value}

    def _backlog(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        size, ids = draw.randrange(50, 1000), []
        with client.t.many.watch(resume_after=self._token, batch_size=size) as stream:
            while len(ids) < COUNT:
                ids.append(stream.next()["documentKey"]["_id"])
        assert ids == list(range(COUNT))

    def _validate(self, client: pymongo.MongoClient[Any], draw: random.Random) -> None:
        answer = client.t.command({"validate": "large"})
        assert (answer["valid"], answer["nrecords"], answer["warnings"]) == (True, LARGE, [])


def run(count: int, seed: int, note: Callable[[int], object] = bool) -> Counter[str]:
    """Kill readers `count` times; return what was answered meanwhile. Raises AssertionError for a wrong answer.

    `note` is called with the number of each kill."""
    draw = random.Random(seed)
    with serving(2) as server, mock.patch.object(limits, "LAG_MS", -1.0):
        load = Load(server, seed)
        try:
            for number in range(count):
                note(number)
                moved, more = moved_count(server), draw.randrange(1, 10)
                until(lambda: moved_count(server) >= moved + more or not load.is_right())  # noqa: B023
                ready = [reader for reader in readers_of(server) if reader.is_ready]
                if ready:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(draw.choice(ready).process.pid, signal.SIGKILL)
            until(lambda: all(load.counts[work] for work in WORKS) or not load.is_right())
        finally:
            load.stop()
        return load.counts + Counter({"lost": server._running.engine.metrics["readers.lost"]})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    answered = run(arguments.count, arguments.seed, lambda number: number % 50 or print(number, "kills", flush=True))
    print(dict(sorted(answered.items())))


if __name__ == "__main__":
    main()
