"""A reader process beside a driven server: asked one command at a time."""

from __future__ import annotations

import socket
from typing import Any

from headrace.execution.reader_calls import may_move
from headrace.server.readers.frames import Frames, frame
from headrace.server.readers.pool import spawn
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode


class DrivenReader:
    """A reader process over the data file of a server."""

    def __init__(self, server: DrivenServer) -> None:
        self._server = server
        self._frames = Frames()
        self._cursors: set[int] = set()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = spawn(theirs.fileno())
        options, environment = server.engine.options, server.store.environment
        self._send({
            "path": str(environment.path), "oplog": options.oplog, "mapBytes": options.map_bytes,
            "memoryBytesMax": server.engine.memory.bytes_max, "replicaSet": "rs0", "advertisedHost": None,
            "counts": {}, "parameters": server.engine.parameters,
        })  # fmt: skip
        self._receive()

    def run(self, database: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a command that a server hands over, or a getMore of its cursor; None for another one."""
        if "getMore" in body:
            if body["getMore"] not in self._cursors:
                return None
        else:
            request = self._server.request(database, body)
            command = self._server.engine.commands[request.name]
            if not may_move(self._server.engine, command, request):
                return None
        position = self._server.store.last_position
        raw = encode({**body, "$db": database})
        self._send({"run": 1, "leftMs": None, "position": position, "client": [1, "127.0.0.1:1", "server"]}, raw)
        message, reply = self._receive()
        if "cursor" in message:
            self._cursors.add(message["cursor"]["id"])
        return decode(reply)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait(60)

    def _send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        self._socket.sendall(frame(message, payload))

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        while True:
            for received in self._frames.feed(self._socket.recv(1 << 16)):
                return received
