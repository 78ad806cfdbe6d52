"""A server driven by calling functions: commands in, replies out, with no socket, loop, thread or sleep.

    server = DrivenServer(clock=FakeClock())
    server.run("shop", {"insert": "orders", "documents": [{"_id": 1}]})     → {"n": 1, "ok": 1.0, ...}

Each write is committed alone, and at once. A command that would wait is returned as its `Wait`, and may be run
again whenever the caller thinks that its time has come.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace import limits
from headrace.clock import SystemClock
from headrace.commands.command import Command
from headrace.commands.engine import Engine
from headrace.commands.options import ServerOptions
from headrace.commands.request import Peer, Request
from headrace.commands.wait import Wait
from headrace.errors import CommandError
from headrace.store.store import MapFull, Store
from headrace.values.bson import decode, encode


class DrivenServer:
    """A store and an engine on one thread: the caller's. `path=None` keeps nothing."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, clock: SystemClock | None = None, oplog: bool = True,
        map_bytes: int = limits.MAP_BYTES_START, **options: Any,
    ) -> None:  # fmt: skip
        self.path = path
        self.clock = clock or SystemClock()
        self.options = ServerOptions(dbpath=Path(path or os.devnull), oplog=oplog, **options)
        self._map_bytes = map_bytes
        self._peer = Peer(1, "127.0.0.1:1", ("127.0.0.1", 27017))
        self._open()

    def _open(self) -> None:
        self.store = Store(self.path, clock=self.clock, oplog=self.options.oplog, map_bytes=self._map_bytes)
        self.engine = Engine(self.store, self.options)

    def restart(self) -> None:
        """End as a killed process does, with every cursor lost, and start again on the same directory."""
        if self.path is None:
            raise RuntimeError("a throw-away server has nothing to start again from")
        self.store.close()
        self._open()

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> DrivenServer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def request(self, database: str, body: dict[str, Any]) -> Request:
        """The request that a client would have sent."""
        return Request(next(iter(body)), database, encode({**body, "$db": database}), {}, self._peer)

    def run(self, database: str, body: dict[str, Any], *, time_is_up: bool = False) -> dict[str, Any] | Wait:
        """The reply, also to a command that failed; or the `Wait` of one that has nothing to say yet."""
        request = self.request(database, body)
        request.time_is_up = time_is_up
        try:
            command = self.engine.command(request)
            writes = command.writes is True or (command.writes and command.writes(request))
        except CommandError as error:
            return decode(self.engine.failure(error, request))
        answer = self._write(command, request) if writes else self.engine.run_read(command, request)
        return answer if isinstance(answer, Wait) else decode(answer)

    def _write(self, command: Command, request: Request) -> bytes | Wait:
        while True:
            txn = self.store.begin()
            try:
                answer = self.engine.run_write(command, request, txn)
                self.store.prepare(txn)
                self.store.sync(txn)
            except MapFull:
                self.store.abandon(txn)
                self.store.grow()
                continue
            except BaseException:
                self.store.abandon(txn)
                raise
            self.store.publish(txn)
            return answer

    def must(self, database: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of a command that is expected to succeed; raises `CommandError` for any other."""
        reply = self.run(database, body)
        if isinstance(reply, Wait):
            raise RuntimeError(f"{next(iter(body))} would wait")
        if reply["ok"] != 1.0:
            raise CommandError(reply["code"], reply["errmsg"])
        if reply.get("writeErrors"):
            first = reply["writeErrors"][0]
            raise CommandError(first["code"], first["errmsg"])
        return reply
