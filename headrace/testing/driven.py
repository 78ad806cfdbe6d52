"""A server that a test drives by calling functions, without a socket, loop, thread or sleep.

    server = DrivenServer(clock=FakeClock())
    server.run("shop", {"insert": "orders", "documents": [{"_id": 1}]})     → {"n": 1, "ok": 1.0, ...}

Each write is committed alone and at once. A command that would wait returns its `Wait`; the caller decides when to run
it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.clock import Clock, SystemClock
from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.dispatch.command import Command
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.wait import Wait, only_others
from headrace.errors import CommandError, Interrupted
from headrace.store.store import Store
from headrace.turns import Turn, Turns
from headrace.values.bson import decode, encode


class DrivenServer:
    """A store and an engine in the calling thread. With `path=None` the directory is a throw-away one."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None, oplog: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        self.path = path
        self.clock = clock or SystemClock()
        self.options = ServerOptions(dbpath=Path(path or os.devnull), oplog=oplog, **options)
        self.between: Callable[[str], None] = lambda stage: None
        """Called during a commit with "prepared" and then "synced", where a slow disk would let reads run."""
        self.client = ClientInfo(1, "127.0.0.1:1", ("127.0.0.1", 27017))
        """The client that sends the commands. Assign another one to use another connection."""
        self._open()

    def _open(self) -> None:
        options = self.options
        self.store = Store(self.path, clock=self.clock, oplog=options.oplog, map_bytes=options.map_bytes)
        self.engine = Engine(self.store, self.options, commands_for(self.options), first_parameters(self.options))

    def restart(self) -> None:
        """Start again on the same directory, without the cursors, as after a killed process."""
        if self.path is None:
            raise RuntimeError("a throw-away server has nothing to start again from")
        self.store.close()
        self._open()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> DrivenServer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def request(self, database: str, body: dict[str, Any]) -> Request:
        """Return the request that a client would send."""
        return Request(next(iter(body)), database, encode({**body, "$db": database}), {}, self.client)

    def run(self, database: str, body: dict[str, Any], *, time_is_up: bool = False) -> dict[str, Any] | Wait:
        """Run a command; return its reply, also if it failed, or its `Wait` if it cannot answer yet."""
        request = self.request(database, body)
        request.time_is_up = time_is_up
        return self.answer(request)

    def answer(self, request: Request) -> dict[str, Any] | Wait:
        """Answer a request, which may have arbitrary bytes, as `run` does."""
        try:
            command = self.engine.command(request)
            writes = command.writes is True or (command.writes and command.writes(request))
        except CommandError as error:
            return decode(self.engine.failure(error, request))
        if writes:
            answer = self._commit([(command, request)])[0]
        else:
            answer = self.engine.run_again(command, request) or self.engine.run_read(command, request)
        while isinstance(answer, Wait) and answer.over is only_others:
            answer = self.engine.run_read(command, request)
        return answer if isinstance(answer, Wait) else decode(answer)

    def in_turns(
        self, database: str, body: dict[str, Any], between: Callable[[int], object] = lambda count: None,
        *, interruption: Interrupted | None = None,
    ) -> tuple[dict[str, Any], int]:  # fmt: skip
        """Run a write that pauses at each of its ticks; return its reply and the number of pauses.

        Each pause commits the finished part and then calls `between`. If `between` raises, the process ends there.
        `interruption` interrupts the write at every pause; a value that `between` returns does so at this pause.
        """
        turns, store, request = Turns(seconds=0.0), self.store, self.request(database, body)
        txn, pauses = store.begin(), 0
        result = turns.run(self.engine.run_write, self.engine.command(request), request, txn)
        while isinstance(result, Turn):
            pauses += 1
            store.commit(txn)
            result.interruption = interruption
            try:
                returned = between(pauses)
            except BaseException:
                turns.abandon(result)
                raise
            if isinstance(returned, Interrupted):
                result.interruption = returned
            txn = store.begin()
            result = turns.resume(result, txn)
        store.commit(txn)
        return decode(result), pauses

    def together(self, commands: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Run writes of several clients in one commit and return their replies."""
        requests = [self.request(database, body) for database, body in commands]
        answers = self._commit([(self.engine.command(request), request) for request in requests])
        return [decode(answer) for answer in answers if not isinstance(answer, Wait)]

    def given_up(self, commands: list[tuple[str, dict[str, Any]]]) -> None:
        """Run writes in a transaction that is then abandoned, as if its commit had failed."""
        txn = self.store.begin()
        for database, body in commands:
            request = self.request(database, body)
            self.engine.run_write(self.engine.command(request), request, txn)
        self.store.prepare(txn)
        self.store.abandon(txn)

    def _commit(self, batch: list[tuple[Command, Request]]) -> list[bytes | Wait]:
        """Run and commit a batch of writes, as the shell does; call `between` wherever reads could run."""
        txn = self.store.begin()
        try:
            run_again, run_write = self.engine.run_again, self.engine.run_write
            answers = [run_again(*each, txn) or run_write(*each, txn) for each in batch]
            self.store.prepare(txn)
            self.between("prepared")
            self.store.sync(txn)
        except BaseException:
            self.store.abandon(txn)
            raise
        self.between("synced")
        self.store.publish(txn)
        return answers

    def must(self, database: str, body: dict[str, Any]) -> dict[str, Any]:
        """Run a command that must succeed and return its reply. Raises `CommandError` if it fails."""
        reply = self.run(database, body)
        if isinstance(reply, Wait):
            raise RuntimeError(f"{next(iter(body))} would wait")
        if reply["ok"] != 1.0:
            raise CommandError(reply["code"], reply["errmsg"])
        if reply.get("writeErrors"):
            first = reply["writeErrors"][0]
            raise CommandError(first["code"], first["errmsg"])
        return reply
