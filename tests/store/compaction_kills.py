"""Compacts a server again and again while clients write, read and watch it, and kills it at random.

    python -m tests.store.compaction_kills --count 100 --seed 1

Writers insert the numbers 0, 1, 2, ... of their own, some in transactions, and a reader sums what is there, mostly in a
reader process. A watcher sees each number once. After each kill the directory is checked, and what was acknowledged
must be there. Between the kills the file must have shrunk.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from headrace.store.check.directory import check
from tests.ports import free_port

WRITER_COUNT = 3
SECONDS_MAX = 60.0


class Lives:
    """A server and its clients, on one directory."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = folder / "data"
        self.log = folder / "server.log"
        self.port = free_port()
        self.acknowledged = [0] * WRITER_COUNT
        self.compacted = self.freed = self.reads = self.events = 0
        self.problems: list[str] = []
        self.slowest_ms = 0.0
        self._stop = threading.Event()

    def client(self, seconds: float = SECONDS_MAX) -> pymongo.MongoClient[Any]:
        """Return a client that waits as long for the server."""
        return pymongo.MongoClient(
            f"mongodb://127.0.0.1:{self.port}/?directConnection=true", serverSelectionTimeoutMS=int(seconds * 1000),
            retryWrites=False, retryReads=False,
        )  # fmt: skip

    def round(self, seconds: float, *, kills: bool = True) -> None:
        """Run for some seconds, kill the server or end it, and look at what is left."""
        command = [sys.executable, "-m", "headrace", "serve", "--dbpath", str(self.path), "--port", str(self.port)]
        with self.log.open("ab") as log:
            server = subprocess.Popen([*command, "--readers", "1"], stdout=log, stderr=log)
        try:
            with self.client() as client:
                client.admin.command("ping")
                self._compare(client)
            self._stop.clear()
            works = [*((self._write, number) for number in range(WRITER_COUNT)), (self._read,), (self._watch,)]
            works += [(self._compact,)]
            threads = [threading.Thread(target=self._run, args=work) for work in works]
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            if not kills:
                self._stop.set()
                for thread in threads:
                    thread.join(SECONDS_MAX)
            (server.kill if kills else server.terminate)()
            server.wait(SECONDS_MAX)
            self._stop.set()
            for thread in threads:
                thread.join(SECONDS_MAX)
        finally:
            server.kill()
            server.wait()
        self.problems += check(self.path).problems
        assert not self.problems, f"{self.problems}\n{self.log.read_text()[-10_000:]}"

    def _run(self, work: Any, *arguments: Any) -> None:
        try:
            with self.client(0.5) as client:
                work(client, *arguments)
        except PyMongoError as error:
            if isinstance(error, OperationFailure) and not error.timeout:
                self.problems.append(f"{work.__name__}: {error}")
        except Exception as error:
            self.problems.append(f"{work.__name__}: {error!r}")

    def _write(self, client: Any, writer: int) -> None:
        database = client[f"w{writer}"]
        number = self.acknowledged[writer]
        while not self._stop.is_set():
            began = time.monotonic()
            if number % 7 == 0:
                # The time also ends the attempts, once the server is killed.
                with client.start_session() as session, pymongo.timeout(3):
                    session.with_transaction(lambda inside, at=number: self._both(database, at, inside))
            else:
                self._both(database, number, None)
            self.slowest_ms = max(self.slowest_ms, (time.monotonic() - began) * 1000)
            number += 1
            self.acknowledged[writer] = number

    @staticmethod
    def _both(database: Any, number: int, session: Any) -> None:
        # A write that was not acknowledged may be there, and then this number is in use.
        database.numbers.update_one({"_id": number}, {"$set": {"n": number}}, upsert=True, session=session)
        database.counts.update_one({"_id": 1}, {"$max": {"n": number}}, upsert=True, session=session)

    def _read(self, client: Any) -> None:
        numbers = client.w0.numbers
        while not self._stop.is_set():
            least = self.acknowledged[0]
            group = {"_id": None, "count": {"$sum": 1}, "most": {"$max": "$n"}, "all": {"$push": "$_id"}}
            for found in numbers.aggregate([{"$group": group}]):
                if found["count"] < least or found["most"] != found["count"] - 1:
                    self.problems.append(f"{found['count']} documents up to {found['most']}, {least} acknowledged")
            cursor = numbers.find({}, batch_size=50).sort("_id", 1)
            seen = [document["_id"] for document in cursor]
            if len(seen) < least or seen != list(range(len(seen))):
                self.problems.append(f"a cursor returned {len(seen)} documents, {least} were acknowledged")
            self.reads += 1

    def _watch(self, client: Any) -> None:
        last: dict[str, int] = {}
        match = [{"$match": {"ns.coll": "numbers", "operationType": {"$in": ["insert", "update"]}}}]
        with client.watch(match, max_await_time_ms=100) as stream:
            while not self._stop.is_set():
                event = stream.try_next()
                if event is None:
                    continue
                database, number = event["ns"]["db"], event["documentKey"]["_id"]
                if number > last.get(database, number - 1) + 1:
                    self.problems.append(f"the stream skips from {last[database]} to {number} of {database}")
                last[database] = number
                self.events += 1

    def _compact(self, client: Any) -> None:
        while not self._stop.is_set():
            client.waste.large.insert_many([{"x": os.urandom(100_000)} for _ in range(40)])
            client.waste.large.drop()
            time.sleep(self.random.uniform(1.0, 1.3))  # which the server takes to remove the documents
            client.waste.small.update_one({"_id": 1}, {"$set": {"x": 1}}, upsert=True)
            done = client.waste.command({"compact": "small", "force": True, "freeSpaceTargetMB": 1})
            self.compacted += done["bytesFreed"] > 0
            self.freed += done["bytesFreed"]

    def _compare(self, client: Any) -> None:
        for writer, count in enumerate(self.acknowledged):
            found = [item["_id"] for item in client[f"w{writer}"].numbers.find().sort("_id", 1)]
            assert len(found) >= count and found == list(range(len(found))), (writer, count, len(found))
            self.acknowledged[writer] = len(found)


def run(count: int, seed: int, folder: Path) -> Lives:
    """Kill the server `count` times and return what was counted. Raise AssertionError if a write is lost."""
    lives = Lives(folder, seed)
    for _ in range(count):
        lives.round(lives.random.uniform(1.5, 5.0))
    lives.round(6.0, kills=False)
    return lives


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lives = run(arguments.count, arguments.seed, Path(folder))
    print(
        f"{arguments.count} kills, {lives.compacted} compactions freed {lives.freed / 1e6:.0f} MB; "
        f"{sum(lives.acknowledged)} writes acknowledged, the slowest took {lives.slowest_ms:.0f} ms; "
        f"{lives.reads} reads and {lives.events} events right"
    )


if __name__ == "__main__":
    main()
