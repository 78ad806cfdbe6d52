"""A job whose processes are killed, again and again, in its snapshot and its stream, while writers write.

In turn: the driver, Spark's JVM, the workers and all that is left, at once or a moment later; now and then the server.
When is random: the seed is printed, and HEADRACE_SEED gives it again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from headrace.cli.pipeline import EXIT_FAILED
from headrace.spark.jobs.job_file import read_job
from headrace.spark.jobs.report import verify_job
from tests.ports import free_port
from tests.spark.support.processes import children

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the job's processes in /proc"),
]

KINDS = ("workers and all", "driver", "jvm")
DOCUMENTS = 3000
JOB = """
checkpoint = "checkpoint"
report_seconds = 0.2
[source]
uri = "{uri}"
database = "shop"
collection = "orders"
startingPosition = "snapshot"
maxRowsPerTrigger = 300
[spark]
quick = true
[[sink]]
kind = "changes"
path = "changes"
[[sink]]
kind = "mirror"
path = "mirror"
[[sink]]
kind = "history"
path = "history"
[[sink]]
kind = "mongodb"
uri = "{uri}"
database = "copy"
collection = "orders"
"""


ONLY_CHANGES = JOB[: JOB.index('[[sink]]\nkind = "mirror"')].replace("[spark]", "partitions = 2\n[spark]")
"""The job whose only sink is a log: the workers that read the events write its files."""


def kill(*processes: int) -> None:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Server:
    """`headrace serve` on one directory and one port, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.uri = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"
        self._command = [sys.executable, "-m", "headrace.cli.main", "serve", "--dbpath", str(folder)]
        self._command += ["--port", str(self.port), "--nounixsocket", "--quiet"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with MongoClient[Any](self.uri, serverSelectionTimeoutMS=30_000) as client:
            client.admin.command("ping")

    def restart_killed(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()


@contextmanager
def writers(uri: str, count: int) -> Iterator[list[int]]:
    """Threads that write all the while, through the server's ends; what they have done, in writes."""
    stop = threading.Event()
    done = [0] * count

    def write(number: int) -> None:
        choose = random.Random(number)
        with MongoClient[Any](uri) as client:
            orders = client.shop.orders
            while not stop.wait(0.05):
                key = {"_id": choose.randrange(DOCUMENTS)}
                try:
                    match choose.randrange(4):
                        case 0:
                            orders.delete_one(key)
                        case 1:
                            orders.replace_one(key, {"n": done[number], "list": []}, upsert=True)
                        case _:
                            orders.update_one(key, {"$push": {"list": done[number]}, "$inc": {"n": 1}}, upsert=True)
                    done[number] += 1
                except PyMongoError:
                    # It is not known whether the write was done; the collection is what counts.
                    continue

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def command_of(process: int) -> str:
    """The name of the process's program; empty if it has ended meanwhile, as a worker may."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def victims(driver: int, kind: str) -> list[int]:
    """The processes of a job to be killed; the driver comes first where it is among them."""
    started = children(driver)
    java = [each for each in started if command_of(each) == "java"]
    match kind:
        case "all":
            return [driver, *started]
        case "driver":
            return [driver]
        case "jvm":
            return java
        case "workers":
            return [each for jvm in java for each in children(jvm)]
    raise AssertionError(kind)


def run_and_kill(job: Path, choose: random.Random, kind: str) -> str:
    """Starts the job, waits for some batches and a random moment more; the last thing it told.

    Without its JVM the driver ends by itself, with an error. Without its workers it may do so, or go on with new ones,
    until all are killed.
    """
    command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", str(job)]
    errors = job.with_suffix(".errors")
    with errors.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        assert process.stdout
        progress, seen = "", set()
        wanted = choose.choice([1, 1, 2, 4])
        while len(seen) < wanted:
            line = process.stdout.readline()
            assert line, f"the job ended by itself after {progress!r}: {errors.read_text()[-2000:]}"
            if ": batch " in line:
                progress = line.strip()
                seen.add(progress.partition(",")[0])
        time.sleep(choose.random() * choose.choice([0, 0.3, 2]))
        assert process.poll() is None, f"the job ended by itself: {errors.read_text()[-2000:]}"
        if kind == "workers and all":
            kill(*victims(process.pid, "workers"))
            time.sleep(choose.choice([0, 0, 0.1, 0.5]))
        kill(*victims(process.pid, "all" if kind == "workers and all" else kind))
        if kind == "jvm":
            assert process.wait(timeout=240) == EXIT_FAILED
            assert "Spark's JVM has ended" in errors.read_text()
        process.kill()
    return progress


def test_a_job_killed_in_each_way_ends_right(tmp_path: Path) -> None:
    """Takes one to two minutes: Spark is started four times."""
    kill_again_and_again(tmp_path, len(KINDS))


def test_a_job_whose_workers_write_the_log_as_they_read_ends_right(tmp_path: Path) -> None:
    """Takes a minute: its workers are killed, and with them all."""
    kill_again_and_again(tmp_path, 1, ONLY_CHANGES)


@pytest.mark.soak
@pytest.mark.parametrize("text", [JOB, ONLY_CHANGES], ids=["every sink", "only changes"])
def test_a_job_killed_again_and_again_ends_right(tmp_path: Path, text: str) -> None:
    """Takes several minutes: Spark is started 16 times."""
    kill_again_and_again(tmp_path, 5 * len(KINDS), text)


def kill_again_and_again(tmp_path: Path, kills: int, text: str = JOB) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or random.randrange(10**6))
    print(f"HEADRACE_SEED={seed}", flush=True)
    choose = random.Random(seed)
    server = Server(tmp_path / "data")
    job = tmp_path / "job.toml"
    job.write_text(text.format(uri=server.uri))
    try:
        with MongoClient[Any](server.uri) as client:
            client.shop.orders.insert_many([{"_id": number, "list": [], "n": 0} for number in range(DOCUMENTS)])
        with writers(server.uri, 2) as done:
            for number in range(kills):
                kind = KINDS[number % len(KINDS)]
                progress = run_and_kill(job, choose, kind)
                print(f"killed {number + 1} of {kills}, {kind}: {progress}", flush=True)
                if number % 5 == 1:
                    server.restart_killed()
        assert min(done) > 10
        # What is left may be much: the last run takes larger steps.
        job.write_text(job.read_text().replace("maxRowsPerTrigger = 300", "maxRowsPerTrigger = 3000"))
        command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", "--once", str(job)]
        subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
        verifications = list(verify_job(read_job(job)))
        for each in verifications:
            print(each.description, flush=True)
        assert [each.equal for each in verifications] == [True] * text.count("[[sink]]"), verifications
    finally:
        server.process.kill()
        server.process.wait()
