"""A server process that has no descriptors left: new connections wait, the others are served, and it says so once."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .raw import RawClient

pytestmark = pytest.mark.process

LIMIT = 48


@contextlib.contextmanager
def limited_server(path: Path) -> Iterator[tuple[str, Path]]:
    """The address and the log of a server that may have `LIMIT` descriptors."""
    words = ["serve", "--port", "0", "--nounixsocket", "--dbpath", str(path / "data")]
    with (path / "log").open("w") as log, subprocess.Popen(
        ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "headrace", *words],
        stdout=subprocess.PIPE, stderr=log, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
        assert address
        try:
            yield address[0], path / "log"
        finally:
            process.terminate()
            assert process.wait(timeout=60) == 0


def is_served(client: RawClient, seconds: float) -> bool:
    client.socket.settimeout(seconds)
    try:
        return client.receive()[1]["ok"] == 1.0
    except TimeoutError:
        return False


def test_connections_wait_for_descriptors_and_nobody_is_cut_off(tmp_path: Path) -> None:
    with limited_server(tmp_path) as (address, log), contextlib.ExitStack() as opened:
        clients = [opened.enter_context(RawClient(address)) for _ in range(LIMIT)]
        for client in clients:
            client.send({"ping": 1})
        served: list[RawClient] = []
        for client in clients:
            if not is_served(client, 60.0 if len(served) < 4 else 0.3):
                break
            served.append(client)
        waiting = clients[len(served) :]
        assert 4 <= len(served) < LIMIT - 16
        assert served[0].ask({"insert": "c", "documents": [{"_id": 1}]})["n"] == 1
        for client in served[1:]:
            client.socket.shutdown(socket.SHUT_RDWR)
        # The server may have opened something of its own meanwhile, as the process of a reader: half of them at once.
        for number, client in enumerate(waiting):
            if number >= len(served) // 2:
                waiting[number - len(served) // 2].socket.close()
            assert is_served(client, 60.0), number
        for client in waiting:
            client.socket.close()
        with RawClient(address) as late:
            assert late.ask({"count": "c"})["n"] == 1
        lines = log.read_text().splitlines()
        # A line when they are used up, and one when no connection waits: on a slow machine that comes again.
        used_up = ["has no descriptors left (its limit is 48)" in line for line in lines if "descriptors" in line]
        assert used_up and used_up == [number % 2 == 0 for number in range(len(used_up))]
