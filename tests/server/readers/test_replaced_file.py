"""A reader process whose server replaces the data file while the process opens it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace import limits
from headrace.commands.server_info.parameters import first_parameters
from headrace.server.readers.frames import Frames, frame
from headrace.server.readers.pool import spawn
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode
from tests.server.readers.reading import next_message
from tests.store.test_running_compaction import compacted

pytestmark = pytest.mark.process
OTHER = "others"
"""The name of files that are not in the directory."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DrivenServer]:
    with DrivenServer(tmp_path / "data") as opened:
        opened.must("t", {"insert": "c", "documents": [{"_id": number} for number in range(3)]})
        yield opened


class Talk:
    """The server's end of a reader."""

    def __init__(self, ours: socket.socket) -> None:
        ours.settimeout(60)
        self._ours = ours
        self._frames = Frames()

    def send(self, *messages: bytes) -> None:
        """Send messages that arrive together."""
        self._ours.sendall(b"".join(messages))

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next message."""
        return next_message(self._ours, self._frames)


def start(server: DrivenServer, files: str) -> bytes:
    environment = server.store.environment
    return frame({
        "path": str(environment.path), "numberBase": 0, "files": files, "oplog": True, "mapBytes": limits.MAP_BYTES,
        "replicaSet": "rs0", "advertisedHost": None, "counts": {}, "memoryBytesMax": limits.MEMORY_BYTES_LEAST,
        "parameters": first_parameters(server.options),
    })  # fmt: skip


def reopen(base: int, files: str) -> bytes:
    return frame({"reopen": base, "files": files})


def find(server: DrivenServer) -> bytes:
    message = {"run": 1, "leftMs": None, "position": server.store.last_position, "client": [1, "127.0.0.1:1", None]}
    return frame(message, encode({"find": "c", "$db": "t"}))


def test_a_reader_follows_the_exchanges_that_it_meets(server: DrivenServer) -> None:
    """The numbers of commits tell which message the reader has followed last."""
    files = server.store.environment.files
    ours, theirs = socket.socketpair()
    with closing(ours), theirs:
        process, talk = spawn(theirs.fileno()), Talk(ours)
        try:
            talk.send(start(server, OTHER), reopen(1000, files))  # exchanged while the process starts
            ready, _ = talk.receive()
            assert 1000 < ready["commit"] < 2000
            theirs.close()
            compacted(server)
            server.must("t", {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
            files = server.store.environment.files  # exchanged twice
            talk.send(reopen(2000, OTHER), find(server), reopen(3000, files))
            answer, reply = talk.receive()
            assert answer["commit"] > 3000
            assert [item["_id"] for item in decode(reply)["cursor"]["firstBatch"]] == [0, 2]
        finally:
            process.kill()
            process.wait()
