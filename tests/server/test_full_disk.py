"""A full disk: writes are refused with 14031 and nothing is torn; reads, streams and deletes go on, and it recovers.

RLIMIT_FSIZE stands for the disk: the kernel refuses to let the data file grow (EFBIG), until the limit is raised.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main

from .raw import RawClient

pytestmark = pytest.mark.process

MEGABYTES = 3


@contextmanager
def server_with_small_files(path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a server none of whose files may be larger than `MEGABYTES`, and what takes the limit away."""
    words = ["serve", "--port", "0", "--nounixsocket", "--quiet", "--dbpath", str(path)]
    limit = f'ulimit -S -f {MEGABYTES * 2048}; exec "$@"'  # blocks of 512 bytes, as POSIX has it
    with subprocess.Popen(
        ["sh", "-c", limit, "sh", sys.executable, "-m", "headrace", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
        assert address
        try:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            yield address[0], lambda: resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        finally:
            process.terminate()
            assert process.wait(timeout=60) == 0


def fill(client: RawClient) -> tuple[int, dict[str, Any]]:
    """Insert until a write is refused: how many documents were acknowledged, and the refusal."""
    for number in range(1000):
        reply = client.ask({"insert": "c", "documents": [{"_id": number, "text": "x" * 20_000}]})
        if reply["ok"] != 1.0:
            return number, reply
    raise AssertionError("the disk is never full")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux changes the limits of another process")
def test_a_full_disk_refuses_writes_and_nothing_else_and_recovers(tmp_path: Path) -> None:
    with (
        server_with_small_files(tmp_path) as (address, make_room),
        RawClient(address) as client,
        RawClient(address) as watcher,
    ):
        stream = watcher.watch("c")
        count, refusal = fill(client)
        assert (refusal["code"], refusal["codeName"]) == (14031, "OutOfDiskSpace")
        assert client.ask({"insert": "c", "documents": [{"_id": -1, "text": "x" * 200_000}]})["code"] == 14031
        assert client.ask({"count": "c", "query": {"text": {"$exists": True}}})["n"] == count
        ids: list[int] = []
        while len(ids) < count:
            events = watcher.ask({"getMore": stream, "collection": "c"})["cursor"]["nextBatch"]
            ids += [event["documentKey"]["_id"] for event in events]
        assert ids == list(range(count))
        for number in range(5):
            assert client.ask({"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1}]})["n"] == 1
        make_room()
        assert client.ask({"insert": "c", "documents": [{"_id": "more", "text": "x" * 200_000}]})["n"] == 1
        assert client.ask({"count": "c", "query": {}})["n"] == count - 4
    assert main(["check", str(tmp_path)]) == 0
