"""A reader process beside a driven server: asked one command at a time, also by writes of the server."""

from __future__ import annotations

import socket
from typing import Any

from headrace.dispatch.shell import Shell
from headrace.errors import CommandError, HandedOver
from headrace.execution.reader_calls import ReaderAnswer, ReaderCall, ReaderCursor, may_move
from headrace.server.readers.frames import Frames, frame
from headrace.server.readers.pool import spawn
from headrace.testing.driven import DrivenServer
from headrace.turns import Turn, Turns
from headrace.values.bson import decode, encode
from tests.server.readers.reading import next_message

_ASKING = ("aggregate", "delete", "findAndModify", "update")


class _Shell(Shell):
    def has_reader(self) -> bool:
        return True


class DrivenReader:
    """A reader process over the data file of a server."""

    def __init__(self, server: DrivenServer) -> None:
        self._server = server
        server.engine.shell = _Shell()
        self._frames = Frames()
        self._cursors: set[int] = set()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = spawn(theirs.fileno())
        options, environment = server.engine.options, server.store.environment
        self._send({
            "path": str(environment.path), "numberBase": environment.number_base,
            "files": environment.files, "oplog": options.oplog, "mapBytes": options.map_bytes,
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
                return self._written(database, body) if request.name in _ASKING and "autocommit" not in body else None
        message, reply = self._run(encode({**body, "$db": database}))
        if "cursor" in message:
            self._cursors.add(message["cursor"]["id"])
        return decode(reply)

    def _run(self, raw: bytes) -> tuple[dict[str, Any], bytes]:
        position = self._server.store.last_position
        self._send({"run": 1, "leftMs": None, "position": position, "client": [1, "127.0.0.1:1", "server"]}, raw)
        return self._receive()

    def _written(self, database: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a write that pauses at each of its ticks, and asks the reader; None for a read."""
        server, turns = self._server, Turns(seconds=0.0)
        request = server.request(database, body)
        try:
            command = server.engine.command(request)
        except CommandError:
            return None
        if not (command.writes is True or (command.writes and command.writes(request))):
            return None
        txn = server.store.begin()
        result = turns.run(server.engine.run_write, command, request, txn)
        while isinstance(result, Turn):
            server.store.commit(txn)
            if type(result.waits_for) is ReaderCall:
                self._answer(result.waits_for)
            elif result.begins_again:
                result.interruption = HandedOver()
            txn = server.store.begin()
            result = turns.resume(result, txn)
        server.store.commit(txn)
        return decode(result)

    def _answer(self, call: ReaderCall) -> None:
        message, reply = self._run(call.request.raw)
        shown = message.get("cursor")
        cursor = None if shown is None else ReaderCursor(self, shown["id"], shown["ns"], no_timeout=False)
        call.outcome = ReaderAnswer(reply, cursor, 0 if shown is None else shown["documentCount"])

    def close_cursor(self, cursor_id: int) -> None:
        """Close a cursor of the reader."""
        self._send({"close": cursor_id})

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait(60)

    def _send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        self._socket.sendall(frame(message, payload))

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        return next_message(self._socket, self._frames)
