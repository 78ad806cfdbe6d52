"""Kills a standby at random while it follows a server under load, then the server, and promotes the standby.

    python -m tests.backup.standby_kills --count 50 --seed 1

The backup of the killed server ships what is left, so that the promoted directory must have all that was acknowledged.
With `--remote` the standby follows the server, which is killed and started again meanwhile; the client ends before the
last kill, and the standby has then applied all. A stream's last token resumes there. Then it is the next server's
directory, with the same archive.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from headrace.backup.source import NO_ENTRIES, DirectorySource
from headrace.store.check.directory import check
from headrace.testing.driven import DrivenServer
from tests.backup.kills import SECONDS_MAX, Lives
from tests.waiting import until


class StandbyLives(Lives):
    """A server with its backup, and a standby that takes its place, again and again."""

    def __init__(self, folder: Path, seed: int, *, remote: bool = False) -> None:
        super().__init__(folder, seed, in_server=not remote, remote=remote)
        self.retain = "1h"
        self.number = 0

    @property
    def standby(self) -> Path:
        """The standby's directory: each has a new one."""
        return self.folder / f"standby-{self.number}"

    def start_standby(self) -> subprocess.Popen[str]:
        """Start the process."""
        followed = f"mongodb://127.0.0.1:{self.port}/?directConnection=true" if self.remote else str(self.destination)
        command = [sys.executable, "-m", "headrace", "standby", followed, str(self.standby)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def round(self) -> None:
        """Kill the standby now and then, kill the server, promote, and compare."""
        self.number += 1
        self.start_server()
        if not self.remote:
            until(self.archive.snapshots)
        stop = threading.Event()
        thread = threading.Thread(target=self.load, args=(stop,))
        thread.start()
        for _ in range(self.random.randrange(1, 3)):
            following = self.start_standby()
            stop.wait(self.random.uniform(0.3, 2.5))
            following.kill()
            following.communicate()
        following = self.start_standby()
        assert following.stdout is not None
        assert "follows" in following.stdout.readline()
        stop.wait(self.random.uniform(0.0, 1.5))
        if self.remote:
            thread = self.restart_server(thread, stop)
        token = self.last_token()
        if self.remote:
            stop.set()
            thread.join(SECONDS_MAX)
            last = DirectorySource(self.data).look(NO_ENTRIES).newest
            until(lambda: DirectorySource(self.standby).look(NO_ENTRIES).newest >= last)
        self.kill_server()
        stop.set()
        thread.join(SECONDS_MAX)
        promoted = subprocess.run(
            [sys.executable, "-m", "headrace", "promote", str(self.standby)],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert promoted.returncode == 0, promoted.stderr
        assert following.wait(SECONDS_MAX) == 128 + signal.SIGTERM
        following.stdout.close()
        self.compare_promoted(token)
        shutil.rmtree(self.data)
        self.data = self.standby

    def restart_server(self, client: threading.Thread, stop: threading.Event) -> threading.Thread:
        """Kill the server that a standby follows, and start it and its client again."""
        self.kill_server()
        client.join(SECONDS_MAX)
        stop.wait(self.random.uniform(0.0, 1.5))
        self.start_server()
        client = threading.Thread(target=self.load, args=(stop,))
        client.start()
        stop.wait(self.random.uniform(0.3, 1.5))
        return client

    def last_token(self) -> dict[str, Any]:
        """The token of a high-water mark or event that a client of the old server has."""
        client = self.client(SECONDS_MAX)
        try:
            with client.shop.numbers.watch(max_await_time_ms=100) as stream:
                stream.try_next()
                assert stream.resume_token is not None
                return dict(stream.resume_token)
        finally:
            client.close()

    def compare_promoted(self, token: dict[str, Any]) -> None:
        """Look whether the promoted directory has what was acknowledged, and takes the old server's token."""
        assert check(self.standby).problems == []
        with DrivenServer(self.standby) as server:
            found = server.must("shop", {"find": "numbers", "batchSize": 10_000_000})["cursor"]["firstBatch"]
            count = server.must("shop", {"find": "counts"})["cursor"]["firstBatch"]
            pipeline = [{"$changeStream": {"resumeAfter": token}}]
            opened = server.must("shop", {"aggregate": "numbers", "pipeline": pipeline, "cursor": {}})
        numbers = [item["_id"] for item in found]
        assert numbers == list(range(len(numbers))) and len(numbers) > self.acknowledged
        assert (count[0]["n"] if count else 0) == -(-len(numbers) // 10)
        events = [event["documentKey"]["_id"] for event in opened["cursor"]["firstBatch"]]
        assert events == numbers[len(numbers) - len(events) :] or len(events) > 100
        self.restores += 1


def run(count: int, seed: int, folder: Path, *, remote: bool = False) -> int:
    """Promote that often; return how many directories were compared."""
    lives = StandbyLives(folder, seed, remote=remote)
    try:
        for _ in range(count):
            lives.round()
        assert lives.acknowledged > 0, "the client has written nothing"
    finally:
        lives.close()
    return lives.restores


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--remote", action="store_true", help="with standbys that follow the server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-standby-") as temporary:
        promoted = run(arguments.count, arguments.seed, Path(temporary), remote=arguments.remote)
        print(promoted, "promoted directories are right")
