"""Kills a server and its continuous backup at random, and compares what is restored with what the server has.

    python -m tests.backup.kills --count 200 --seed 1

One client inserts documents with the numbers 0, 1, 2, ... and increments a counter in the same transaction now and
then. After each kill the archive is restored: it must have all that the server's oplog has up to the archive's end, and
no archive may end before what an earlier restore has seen.

With `--remote` the backup reads the server, as one on another machine does, and not the directory.

With `--inServer` the backup is that of `headrace serve --backup`. It ships what is left after its server was killed, so
that the archive then has all that was acknowledged.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from headrace.backup.archive import BackupArchive, Sealer
from headrace.backup.places import Folder
from headrace.backup.restore import restore
from headrace.testing.driven import DrivenServer
from tests.ports import free_port
from tests.waiting import until

SECONDS_MAX = 60.0


class Lives:
    """A server, its backup and its client, on one directory."""

    def __init__(self, folder: Path, seed: int, *, in_server: bool = False, remote: bool = False) -> None:
        self.in_server = in_server
        self.remote = remote
        self.retain = "5s"
        self.random = random.Random(seed)
        self.data, self.destination, self.folder = folder / "data", folder / "archive", folder
        self.archive = BackupArchive(Folder(self.destination), Sealer())
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.backup: subprocess.Popen[bytes] | None = None
        self.acknowledged = -1
        self.last_end = 0
        self.restores = 0

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        flags = ["--dbpath", str(self.data), "--port", str(self.port)]
        if self.in_server:
            every = f"{self.random.randrange(1, 4)}s"
            flags += ["--backup", str(self.destination), "--backupSnapshotEvery", every, "--backupRetain", self.retain]
        self.server = _start("serve", *flags)
        client = self.client(SECONDS_MAX)
        client.admin.command("ping")
        client.close()

    def start_backup(self) -> None:
        """Start the backup, and wait until it has begun to follow."""
        source = f"mongodb://127.0.0.1:{self.port}/?directConnection=true" if self.remote else str(self.data)
        self.backup = _start(
            "backup", source, str(self.destination), "--follow", "--snapshotEvery",
            f"{self.random.randrange(1, 4)}s", "--retain", "5s",
        )  # fmt: skip
        assert self.backup.stdout is not None
        line = self.backup.stdout.readline()
        assert b"stored" in line, line

    def client(self, seconds: float) -> pymongo.MongoClient[Any]:
        """Return a client of the server."""
        return pymongo.MongoClient(
            f"mongodb://127.0.0.1:{self.port}/?directConnection=true", serverSelectionTimeoutMS=int(seconds * 1000),
            retryWrites=False,
        )  # fmt: skip

    def load(self, stop: threading.Event) -> None:
        """Insert numbers until `stop`, or until the server is gone."""
        client = self.client(1)
        try:
            known = client.shop.numbers.find_one(sort=[("_id", -1)])
            number = 0 if known is None else known["_id"] + 1
            while not stop.is_set():
                if number % 10 == 0:
                    with client.start_session() as session, session.start_transaction():
                        client.shop.numbers.insert_one({"_id": number}, session=session)
                        client.shop.counts.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True, session=session)
                else:
                    client.shop.numbers.insert_one({"_id": number})
                self.acknowledged = number
                number += 1
        except PyMongoError:
            pass
        finally:
            client.close()

    def round(self) -> None:
        """Run for a moment, kill one or both, start again and compare."""
        if self.server is None:
            self.start_server()
        if self.backup is None:
            self.start_backup()
        stop = threading.Event()
        thread = threading.Thread(target=self.load, args=(stop,))
        thread.start()
        stop.wait(self.random.uniform(0.05, 1.8))
        victim = self.random.randrange(3)
        if victim != 0:
            _kill(self.backup)
            self.backup = None
        if victim != 1:
            _kill(self.server)
            self.server = None
        stop.set()
        thread.join(SECONDS_MAX)
        self.compare()

    def round_in_server(self) -> None:
        """Run for a moment, kill the backup now and then, kill the server, and compare."""
        if self.server is None:
            self.start_server()
        assert self.server is not None
        (backup,) = until(partial(_children, self.server.pid))
        stop = threading.Event()
        thread = threading.Thread(target=self.load, args=(stop,))
        thread.start()
        stop.wait(self.random.uniform(0.05, 1.8))
        is_alive = self.random.randrange(3) > 0
        if not is_alive:
            until(self.archive.snapshots)
            os.kill(backup, signal.SIGKILL)
            stop.wait(self.random.uniform(0.0, 2.5))  # it is started again after a second
        self.kill_server()
        stop.set()
        thread.join(SECONDS_MAX)
        self.compare(has_all=is_alive)

    def kill_server(self) -> None:
        """Kill the server, and wait for its backup, which ships what is left and ends."""
        assert self.server is not None
        self.server.send_signal(signal.SIGSTOP)  # so that it starts no other one
        backups = _children(self.server.pid)
        _kill(self.server)
        self.server = None
        for pid in backups:
            until(partial(_is_over, pid))

    def compare(self, *, has_all: bool = False) -> None:
        """Restore the archive, and compare it with the server's oplog up to where the archive ends; `has_all`: it must
        have what was acknowledged."""
        if self.backup is not None:
            _kill(self.backup)  # so that the archive stays as it is
            self.backup = None
        target = self.folder / "restored"
        shutil.rmtree(target, ignore_errors=True)
        end = restore(self.archive, target).position
        assert end >= self.last_end, "the archive ends before what was shipped"
        segments = self.archive.segments()
        assert end == max([item.position for item in self.archive.snapshots()] + [item.last for item in segments])
        self.last_end = end
        self.restores += 1
        if self.server is None:
            self.start_server()
        client = self.client(SECONDS_MAX)
        query = {"ts": {"$lte": _timestamp(end)}}
        numbers, counted = set(), 0
        for entry in client.local["oplog.rs"].find(query):
            for operation in entry["o"].get("applyOps", [entry]):
                if operation["op"] == "i" and operation["ns"] == "shop.numbers":
                    numbers.add(operation["o"]["_id"])
                counted += operation["ns"] == "shop.counts"
        present = client.shop.numbers.count_documents({})
        client.close()
        assert present > self.acknowledged, "an acknowledged write is missing on the server"
        assert numbers == set(range(len(numbers)))
        assert not has_all or len(numbers) > self.acknowledged, "the backup has not shipped an acknowledged write"
        with DrivenServer(target) as server:
            found = server.must("shop", {"find": "numbers", "batchSize": 10_000_000})["cursor"]["firstBatch"]
            count = server.must("shop", {"find": "counts"})["cursor"]["firstBatch"]
        assert [item["_id"] for item in found] == sorted(numbers), (len(found), len(numbers))
        assert (count[0]["n"] if count else 0) == counted

    def close(self) -> None:
        """Kill both."""
        _kill(self.server)
        _kill(self.backup)


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that go on, on Linux."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if not _is_over(int(child))]


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _timestamp(position: int) -> Any:
    from headrace.values.position import to_timestamp

    return to_timestamp(position)


def _start(*words: str) -> subprocess.Popen[bytes]:
    output = subprocess.PIPE if words[0] == "backup" else subprocess.DEVNULL
    command = [sys.executable, "-m", "headrace", *words]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS_MAX)
        if process.stdout is not None:
            process.stdout.close()


def run(count: int, seed: int, folder: Path, *, in_server: bool = False, remote: bool = False) -> int:
    """Kill that often; return how many restores were compared."""
    restores = 0
    for first in range(0, count, 20):
        part = folder / str(first)
        part.mkdir()
        lives = Lives(part, seed * 1000 + first, in_server=in_server, remote=remote)
        try:
            for _ in range(min(20, count - first)):
                lives.round_in_server() if in_server else lives.round()
            assert lives.acknowledged > 0, "the client has written nothing"
        finally:
            lives.close()
        restores += lives.restores
        shutil.rmtree(part)
    return restores


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inServer", action="store_true", help="with the backup of `headrace serve --backup`")
    parser.add_argument("--remote", action="store_true", help="with a backup that reads the server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-kills-") as temporary:
        path = Path(temporary)
        restored = run(arguments.count, arguments.seed, path, in_server=arguments.inServer, remote=arguments.remote)
        print(restored, "restores are right")
