"""A soak: 200 clients, each in turn well- and ill-behaved, and a server whose memory must stay flat.

    python bench/soak.py                              half an hour
    python bench/soak.py --minutes 3 --clients 50

A well-behaved client inserts, and watches what it inserts through a change stream that it resumes now and then: each of
its events must come once, in order. An ill-behaved one runs an attack of `attacks/` for a second or two. Prints the
memory of each minute, how each attack was answered, and what went wrong; the exit status is 1 where an event was
missed, where the memory has grown over the last two thirds of the time, or where the server has ended. Cursors that
attackers leave stay for ten minutes: in a shorter soak memory grows to its end, and is printed, but not judged.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import bson
from attacks import ALL
from attacks.attacker import DATABASE, Attack, Attacker
from fairness import is_alive, memory_of
from honest import lower_priority
from messages import command, document, reply_document
from target import StartedServer, Target, receive

HONEST_SECONDS = 20.0
ATTACK_SECONDS = 1.5
PROCESSES = 8
SAMPLE_SECONDS = 5.0
GROWTH_MIB_MAX = 64.0
CURSOR_SECONDS = 600.0
"""How long a cursor stays that nobody reads, and with it what it holds."""
ANSWER_SECONDS_MAX = 300.0
"""That a well-behaved client waits: longer than a virtual machine may be stopped. `fairness.py` measures waits."""
OPLOG_MIB = 4096
"""Room for what attackers insert while a well-behaved client is between two getMores."""
MEMORY_LIMIT = "1G"
"""For what clients make the server hold: attackers leave more of cursors and messages, as it comes, and who holds most
is cut off. So the memory stays the same unless something is not counted."""
_TOO_MUCH = ("connections opened", "watchers", "unread", "nobody reads", "sent slowly")
"""Attacks whose clients need more threads, sockets or memory than one of 200 has."""
ATTACKS = tuple(a for a in ALL if not a.flags and not any(word in a.name for word in _TOO_MUCH))


class Client:
    """One of the clients: a thread's work."""

    def __init__(self, number: int, target: Target, ends: float, seed: int) -> None:
        self.number = number
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self.events = 0
        self._target = target
        self._ends = ends
        self._random = random.Random(seed * 1000 + number)
        self._collection = f"c{number}"
        self._next = 0
        self._step = ""

    def run(self) -> None:
        """Behave well and ill in turn until the time is over."""
        try:
            while time.monotonic() < self._ends:
                self._behave()
                if time.monotonic() < self._ends:
                    self._attack(self._random.choice(ATTACKS))
        except Exception as error:
            left = self._ends - time.monotonic()
            self.failures.append(
                f"client {self.number}, {left:.0f} s before the end, {self._step}: {type(error).__name__}: {error}"
            )

    def _behave(self) -> None:
        until = min(self._ends, time.monotonic() + HONEST_SECONDS * self._random.uniform(0.5, 1.5))
        writer, watcher = self._target.connect(), self._target.connect()
        for connection in (writer, watcher):
            connection.settimeout(ANSWER_SECONDS_MAX)
        cursor = self._watch(watcher, None)
        while time.monotonic() < until:
            count = self._random.randint(1, 20)
            documents = [document(bson.ObjectId()) | {"n": self._next + index} for index in range(count)]
            self._step = "insert"
            _answer(writer, command({"insert": self._collection}, "soak", documents=documents))
            self._step = "getMore"
            token = self._expect(watcher, cursor, count)
            if self._random.random() < 0.1:
                watcher.close()
                watcher = self._target.connect()
                watcher.settimeout(ANSWER_SECONDS_MAX)
                cursor = self._watch(watcher, token)
            time.sleep(self._random.uniform(0.05, 0.5))
        self._step = "delete"
        _answer(writer, command({"delete": self._collection}, "soak", deletes=[{"q": {}, "limit": 0}]))
        writer.close()
        watcher.close()

    def _watch(self, watcher: Any, token: Any) -> int:
        self._step = "aggregate"
        options = {} if token is None else {"resumeAfter": token}
        stages = [{"$changeStream": options}, {"$match": {"operationType": "insert"}}]
        opening = {"aggregate": self._collection, "pipeline": stages, "cursor": {}}
        return int(_answer(watcher, command(opening, "soak"))["cursor"]["id"])

    def _expect(self, watcher: Any, cursor: int, count: int) -> Any:
        """Read so many events, which must be those of the documents inserted; the last one's token."""
        more = command({"getMore": bson.Int64(cursor), "collection": self._collection}, "soak")
        token, wanted = None, self._next + count
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while self._next < wanted:
            for event in _answer(watcher, more)["cursor"]["nextBatch"]:
                if event["fullDocument"]["n"] != self._next:
                    raise RuntimeError(f"event {event['fullDocument']['n']} came instead of {self._next}")
                self._next += 1
                self.events += 1
                token = event["_id"]
            if time.monotonic() > until:
                raise RuntimeError(f"event {self._next} has not come")
        return token

    def _attack(self, attack: Attack) -> None:
        attacker = Attacker(self._target.address, ATTACK_SECONDS)
        try:
            attack.run(attacker)
        except Exception as error:  # an attack may meet another one's data
            attacker.answers[type(error).__name__] += 1
        attacker.close()
        for code, number in attacker.answers.items():
            self.answers[f"{attack.name}: {code}"] += number


def _answer(connection: Any, message: bytes) -> dict[str, Any]:
    connection.sendall(message)
    reply = reply_document(receive(connection))
    if reply.get("ok") != 1.0 or "writeErrors" in reply:
        raise RuntimeError(f"refused: {str(reply)[:300]}")
    return reply


def _work(numbers: range, target: Target, ends: float, seed: int, pipe: Connection) -> None:
    """A process of clients, each on a thread."""
    lower_priority()
    clients = [Client(number, target, ends, seed) for number in numbers]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(1.0, ends + ANSWER_SECONDS_MAX - time.monotonic()))
    stuck = [f"client {client.number} is stuck" for client, thread in zip(clients, threads) if thread.is_alive()]
    failures = [failure for client in clients for failure in client.failures] + stuck
    answers = sum((client.answers for client in clients), Counter())
    pipe.send((failures, answers, sum(client.events for client in clients)))


def soak(minutes: float, clients: int, seed: int, directory: Path | None = None) -> list[str]:
    """What went wrong, after so many minutes; prints what happens."""
    problems: list[str] = []
    with StartedServer(directory, ("--oplogSize", str(OPLOG_MIB), "--memoryLimit", MEMORY_LIMIT)) as target:
        Attacker(target.address, float("inf")).fill(20_000)
        ends = time.monotonic() + minutes * 60
        context = multiprocessing.get_context("fork")
        workers = []
        for start in range(PROCESSES):
            ours, theirs = context.Pipe()
            numbers = range(start, clients, PROCESSES)
            worker = context.Process(target=_work, args=(numbers, target, ends, seed, theirs), daemon=True)
            worker.start()
            workers.append((worker, ours))
        memory = _watch_memory(target, ends)
        answers: Counter[str] = Counter()
        events = 0
        for worker, ours in workers:
            if ours.poll(2 * ANSWER_SECONDS_MAX):
                failures, more, count = ours.recv()
                problems += failures
                answers += more
                events += count
            else:
                problems.append("a process of clients has not ended")
            worker.kill()
            worker.join()
        if not is_alive(target):
            problems.append("the server has ended")
        print(f"{events:,} events were watched; answers by attack:")
        print("\n".join(f"    {name}  {count:,}" for name, count in sorted(answers.items())))
        problems += [f"an error inside the server: {name}" for name in answers if name.endswith(": 1")]
        problems += _growth(memory, minutes)
    return problems


def _watch_memory(target: Target, ends: float) -> list[float]:
    """A sample every few seconds; each minute a line. Drops what the attackers have inserted."""
    memory: list[float] = []
    minute = time.monotonic()
    while time.monotonic() < ends:
        time.sleep(SAMPLE_SECONDS)
        memory.append(memory_of(target))
        if math.isnan(memory[-1]):  # the process has ended
            return []
        if time.monotonic() - minute >= 60:
            minute = time.monotonic()
            recent = memory[-int(60 / SAMPLE_SECONDS) :]
            cleaner = Attacker(target.address, float("inf"))
            counted = cleaner.ask({"serverStatus": 1}, "admin").get("mem", {})
            largest = [f"{one['bytes'] / 1024**2:.0f} {one['holder']}" for one in counted.get("largest", ())]
            print(
                f"{min(recent):.0f} to {max(recent):.0f} MiB, median {statistics.median(recent):.0f};"
                f" {counted.get('countedBytes', 0) / 1024**2:.0f} are counted now: {', '.join(largest)}", flush=True,
            )  # fmt: skip
            for name in ("large", "made", "many", "merged", "t", "w", "victims", "validated", "r"):
                cleaner.ask({"drop": name}, DATABASE)
            cleaner.ask({"delete": "c", "deletes": [{"q": {"_id": {"$type": "objectId"}}, "limit": 0}]}, DATABASE)
            cleaner.close()
    return memory


def _growth(memory: list[float], minutes: float) -> list[str]:
    """Whether the least memory of the last third is more than that of the second, once cursors go as they come."""
    third = len(memory) // 3
    if not third:
        return []
    second, last = memory[third : 2 * third], memory[2 * third :]
    print(f"memory, least and median: {min(second):.0f}, {statistics.median(second):.0f} MiB in the second third,")
    print(f"                          {min(last):.0f}, {statistics.median(last):.0f} MiB in the last")
    grown = min(last) - min(second)
    if minutes * 20 < CURSOR_SECONDS:
        return []
    return [f"memory has grown by {grown:.0f} MiB"] if grown > GROWTH_MIB_MAX else []


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="how long (default: 30)")
    add("--clients", type=int, default=200, help="how many clients (default: 200)")
    add("--seed", type=int, default=None, help="of what each client does when")
    add("--directory", type=Path, help="where the server has its data (default: the temporary directory)")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server and the clients end, too
    problems = soak(arguments.minutes, arguments.clients, seed, arguments.directory)
    print("\n".join(problems) or "nothing went wrong")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
